"""From a score to a decision: known images set aside, or the stream's own two groups.

With n known images set aside, p = (1 + #{their scores >= s}) / (n + 1) is a conformal p-value of an
image that scores s: of known images like them, at most a share ``rate`` has p <= ``rate``. The
scores of the set-aside images are those of the current weights, as far as ``ALLOWED`` goes.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from opentta.adapter.images import source_images
from opentta.errors import CalibrationError, StateError
from opentta.models.backbone import Backbone
from opentta.parts.pixels import packed, unpacked
from opentta.parts.recent import Recent
from opentta.types import Decision

CHUNK = 8  # set-aside images that are scored in one go
STEADY_SHARE = 0.05  # forwards per image of the stream, for good
EARLY, EARLY_FADES = 1000, 700  # forwards beside it, spent over so many images (e-fold)
WINDOW = 640  # scores behind a threshold of the stream's own
ENOUGH = 64  # of them, before anything is rejected

Score = Callable[[Tensor], Tensor]
"""Images (b, 3, H, W) -> their OOD scores (b,) under the current weights."""


def allowed(images: int) -> float:
    """Forwards that ``images`` of the stream pay for: at most 0.1 each over 20,000 images.

    Example:
        >>> allowed(1_000) > 500, allowed(20_000) <= 0.1 * 20_000
        (True, True)
    """
    return STEADY_SHARE * images + EARLY * (1 - math.exp(-images / EARLY_FADES))


class Calibration:
    """Known images set aside and their scores, kept up with the weights a few at a time.

    Example:
        >>> images = torch.rand(19, 3, 4, 4)
        >>> calibration = Calibration(images, rate=0.05)
        >>> calibration.score_all(lambda images: torch.arange(float(len(images))), moves=0)
        >>> calibration.decide(torch.tensor([17.5, 18.5])).rejected
        tensor([False,  True])
    """

    def __init__(self, images: Tensor, rate: float, *, follow: bool = False) -> None:
        self.rate = rate
        self.recent = Recent(WINDOW, images.device) if follow else None
        self.images = images  # (n, 3, H, W), packed
        self.scores = torch.full(
            (len(images),), torch.nan, dtype=torch.float64, device=images.device
        )
        self.source_scores: Tensor | None = None  # (n,) of the adapter as it started
        self.moves = torch.zeros(len(images), dtype=torch.int64)  # of the weights, at each scoring
        self.seen = 0  # images of the stream since
        self.spent = 0  # forwards since

    @staticmethod
    def check(rate: float, count: int | None = None, *, follow: bool = False) -> None:
        """Refuse a rate or a switch that is none, and too few images for the rate."""
        if isinstance(rate, bool) or not isinstance(rate, Real) or not 0 < rate < 1:
            raise CalibrationError(
                f"expected rate between 0 and 1, the share of known images that may be rejected, "
                f"got {rate!r}"
            )
        if not isinstance(follow, bool):
            raise CalibrationError(f"expected follow as True or False, got {follow!r}")
        least = math.ceil(1 / rate - 1 - 1e-9)
        if count is not None and count < least:
            raise CalibrationError(
                f"a rate of {rate:g} takes at least {least} known images (1 / rate - 1), got "
                f"{count}: with fewer nothing could ever be rejected. Give more, or a higher rate"
            )

    def decide(self, scores: Tensor, *, by: Tensor | None = None) -> Decision:
        """p-values of ``scores`` (B,) and what they mean; ``by`` other scores of the set-aside."""
        known = (self.scores if by is None else by).sort().values
        scores = scores.detach().to(known) - (self.shift() if by is None else 0.0)
        higher = len(known) - torch.searchsorted(known, scores)  # ties count
        p = (1 + higher) / (len(known) + 1)
        return Decision(p <= self.rate * (1 + 1e-6), p)  # 1 / 20 is 0.05, also in float32

    def push(self, scores: Tensor) -> None:
        """Take the ``scores`` (B,) of a call into the window that the shift is read from."""
        if self.recent is not None:
            self.recent.push(scores, where=torch.ones((), dtype=torch.bool, device=scores.device))

    def shift(self) -> Tensor | float:
        """How far the stream's known images score above the set-aside ones, at least: () or 0.

        Were half of the latest scores of unknown images, all at the top, then a quarter of all
        would be half of the known ones. What the quarter lies above the set-aside median is a
        shift that unknown images do not explain.
        """
        if self.recent is None:
            return 0.0
        there = (~self.recent.values.isnan()).sum() >= ENOUGH
        beyond = self.recent.quantiles(0.25)[0].to(self.scores) - self.scores.median()
        return torch.where(there, beyond.clamp_min(0), 0.0)

    def score_all(self, score: Score, *, moves: int) -> None:
        """Score every image now; ``moves`` says which version of the weights this is."""
        self.scores.copy_(self.scores_of(score))
        self.moves.fill_(moves)

    def score_source(self, score: Score, *, moves: int) -> None:
        """The same of the adapter as it started; what is known of it is not computed again."""
        self.scores.copy_(self.of_source(score))
        self.moves.fill_(moves)

    def of_source(self, score: Score) -> Tensor:
        """The scores (n,) that the adapter as it started gives, by ``score`` if not known yet."""
        if self.source_scores is None:
            self.source_scores = self.scores_of(score)
            self.spent += len(self.images)
        return self.source_scores

    def scores_of(self, score: Score) -> Tensor:
        """What ``score`` says of the set-aside images: (n,)."""
        return torch.cat([score(unpacked(part)) for part in torch.split(self.images, 32)]).to(
            self.scores
        )

    def keep_up(self, score: Score, *, images: int, moves: int) -> None:
        """After a call of ``images``: score again as many as are paid for, the oldest first."""
        self.seen += images
        credit = allowed(self.seen) - self.spent
        self.spent += max(0, math.floor(credit) - len(self.images))  # rest is not saved up
        chunk_size = min(CHUNK, len(self.images))
        while allowed(self.seen) - self.spent >= chunk_size and self.age(moves) > 0:
            start = CHUNK * (int(self.moves.argmin()) // CHUNK)
            chunk = slice(start, min(start + CHUNK, len(self.images)))
            self.scores[chunk] = score(unpacked(self.images[chunk])).to(self.scores)
            self.moves[chunk] = moves
            self.spent += chunk.stop - chunk.start

    def start_again(self) -> None:
        """The weights are those of the start: no shift is known. What was spent stays spent."""
        if self.recent is not None:
            self.recent.values.fill_(torch.nan)

    def age(self, moves: int) -> int:
        """Moves of the weights since the oldest score."""
        return moves - int(self.moves.min())

    def to(self, device: torch.device) -> None:
        """Move all that lies on the model's device."""
        self.images, self.scores = self.images.to(device), self.scores.to(device)
        if self.source_scores is not None:
            self.source_scores = self.source_scores.to(device)
        if self.recent is not None:
            self.recent.values = self.recent.values.to(device)

    def tensors(self) -> dict[str, Tensor]:
        """What a saved state holds."""
        spent = torch.tensor([self.seen, self.spent])
        rate = torch.tensor(self.rate, dtype=torch.float64)
        values = {"images": self.images, "scores": self.scores, "moves": self.moves}
        window = {} if self.recent is None else {"window": self.recent.values}
        source = {} if self.source_scores is None else {"source_scores": self.source_scores}
        return values | window | source | {"spent": spent, "rate": rate}


class StreamThreshold:
    """The stream's own threshold: the cut between two groups of its latest scores.

    There may be a cut also where nothing is unknown: it promises no rate.

    Example:
        >>> threshold = StreamThreshold(torch.device("cpu"))
        >>> scores = torch.cat([torch.randn(400), torch.randn(100) + 9])
        >>> threshold.push(scores)
        >>> threshold.decide(scores).rejected.sum()
        tensor(100)
    """

    def __init__(self, device: torch.device) -> None:
        self.recent = Recent(WINDOW, device)

    def push(self, scores: Tensor) -> None:
        """Take the ``scores`` (B,) of a call into the window."""
        self.recent.push(scores, where=torch.ones((), dtype=torch.bool, device=scores.device))

    def decide(self, scores: Tensor) -> Decision:
        """Which of ``scores`` (B,) lie beyond the cut."""
        return Decision(scores > two_group_cut(self.recent.values), None)

    def start_again(self) -> None:
        """Scores of another version of the weights say nothing of this one's."""
        self.recent.values.fill_(torch.nan)

    def to(self, device: torch.device) -> None:
        """Move the window."""
        self.recent.values = self.recent.values.to(device)

    def tensors(self) -> dict[str, Tensor]:
        """What a saved state holds."""
        return {"window": self.recent.values}


def known_images(known: Iterable[Any] | Tensor, rate: float, backbone: Backbone) -> Tensor:
    """The set-aside images of a loader (n, 3, H, W), packed, or why they are none."""
    batches = [known] if isinstance(known, Tensor) else known
    images = list(source_images(batches, backbone, what="calibrate"))
    sizes = {tuple(batch.shape[2:]) for batch in images}
    if len(sizes) > 1:
        raise CalibrationError(f"expected known images of one size, got {sorted(sizes)}")
    Calibration.check(rate, sum(map(len, images)))
    with torch.inference_mode(False):
        return packed(torch.cat(images))


def two_group_cut(values: Tensor) -> Tensor:
    """The cut of (N,) values, some NaN, into the two likeliest Gaussian groups: ().

    Of all cuts of the sorted values the one under which two Gaussians, each fitted to its side and
    weighted by its share, make the values likeliest (Kittler & Illingworth, 1986); at most half of
    them lie above it. Infinite where one Gaussian explains them as well (by BIC), and with fewer
    than ``ENOUGH`` values. Nothing is read back to the host.

    Example:
        >>> two_group_cut(torch.cat([torch.linspace(0, 1, 90), torch.linspace(5, 6, 10)]))
        tensor(3.)
    """
    least = 8  # values on a side
    known = values.isfinite()
    count = known.sum()
    x = torch.where(known, values, torch.inf).sort().values.double()
    x = torch.where(x.isfinite(), x, 0.0)
    place = torch.arange(1, len(x) + 1, device=x.device, dtype=x.dtype)
    total = count.to(x)
    sums, squares = x.cumsum(0), x.square().cumsum(0)

    def spread(n: Tensor, s: Tensor, q: Tensor) -> Tensor:
        n = n.clamp_min(1)
        return (q / n - (s / n).square()).clamp_min(1e-12)

    rest = total - place
    low = spread(place, sums, squares)
    high = spread(rest, sums[-1] - sums, squares[-1] - squares)
    cost = place * (0.5 * low.log() - (place / total.clamp_min(1)).log())
    cost = cost + rest * (0.5 * high.log() - (rest.clamp_min(1) / total.clamp_min(1)).log())
    inside = (place >= total / 2) & (rest >= least)
    best = torch.where(inside, cost, torch.inf).argmin()
    after = (best + 1).clamp_max(len(x) - 1)
    one_group = total * 0.5 * spread(total, sums[-1], squares[-1]).log()
    least_cost = cost.gather(0, best[None])[0]  # an index would be read back
    below, above = x.gather(0, torch.stack([best, after]))
    better = least_cost + 1.5 * total.clamp_min(1).log() < one_group  # three numbers more
    usable = (count >= ENOUGH) & (above > below) & better
    return torch.where(usable, (below + above) / 2, torch.inf).to(values)


def restored(values: Mapping[str, Tensor], device: torch.device) -> Calibration | StreamThreshold:
    """What ``tensors`` gave, on ``device``; what does not fit is refused."""
    try:
        if set(values) == {"window"}:
            threshold = StreamThreshold(device)
            _put(threshold.recent.values, values["window"])
            return threshold
        images, scores, moves = (values[name] for name in ("images", "scores", "moves"))
        calibration = Calibration(
            images.to(device, copy=True), float(values["rate"]), follow="window" in values
        )
        if calibration.recent is not None:
            _put(calibration.recent.values, values["window"])
        Calibration.check(calibration.rate, len(images))
        _put(calibration.scores, scores)
        if "source_scores" in values:  # not in older states
            calibration.source_scores = torch.empty_like(calibration.scores)
            _put(calibration.source_scores, values["source_scores"])
        _put(calibration.moves, moves)
        calibration.seen, calibration.spent = values["spent"].tolist()
        if min(calibration.seen, calibration.spent, int(calibration.moves.min())) < 0:
            raise ValueError("a count is below 0")
    except (KeyError, RuntimeError, ValueError) as error:
        raise StateError(f"the saved calibration does not fit: {error}") from None
    return calibration


def _put(place: Tensor, value: Tensor) -> None:
    if place.shape != value.shape:
        raise ValueError(f"expected shape {tuple(place.shape)}, got {tuple(value.shape)}")
    place.copy_(value)
