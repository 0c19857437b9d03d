"""OWTTT: open-world test-time training with dynamically expanded prototypes.

Li et al., "On the Robustness of Open-World Test-Time Training: Self-Training with Dynamic Prototype
Expansion", ICCV 2023, https://arxiv.org/abs/2308.09942. Samples near a source prototype are "seen"
(the paper's weak OOD), the others "unseen" (strong OOD). Two forwards, one backward a batch.

Departures from the authors' code:
- A class that the model predicts for no source image has its head row as prototype (there, the
  zero vector); ``missing="zero"`` restores it. Classes are the model's own labels, as there.
- While no threshold splits the scores, all samples are seen (there, all are unseen);
  ``unsplit="unseen"`` restores it.
- Seen features of the first forward are aligned (there, of another forward, which on a network
  without BatchNorm gives the same). STAMP's port aligns all samples: ``align_on="all"``; it also
  compares with the mean of the normalised prototypes and never passes its alignment scale on.
- The Kullback-Leibler divergences are taken in float64, in closed form; the ridge is at least 1e-6,
  and a batch larger than the window moves the target by its own size, not by the window's.
- No decision to reject is taken, so the second queue of scores, which serves it, is left out.
- Rates are those of STAMP's port for a Vision Transformer; theirs for ResNet-50 are lr 0.001 and
  a ``ce_scale`` set a dataset.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from opentta.adapter.base import Adapter
from opentta.adapter.method import BACKWARD_ALL
from opentta.config import Count, Momentum, Positive, Rate, Weight
from opentta.errors import SourceDataError
from opentta.parts.losses import masked_mean
from opentta.parts.mixture import split_threshold
from opentta.parts.optim import Sgd
from opentta.registry import register
from opentta.types import Prediction

KL_SCALE = 0.05  # of the two divergences, before alignment_scale
RIDGE = 1 / 30  # of the largest source covariance, added to both diagonals


@dataclass(frozen=True)
class OwtttConfig:
    """Paper symbols on the right; every field changes behaviour, and a test says how."""

    lr: Rate = 2.5e-5
    momentum: Momentum = 0.9
    temperature: Positive = 0.1  # delta: logits are cosines / delta
    ce_scale: Weight = 1.0  # of the clustering around prototypes
    alignment_scale: Weight = 1.0  # of the alignment of feature distributions
    align_on: Literal["seen", "all"] = "seen"
    window: Count = 1280  # samples that the target's mean and covariance look back over
    queue: Count = 512  # N_m: scores that the threshold tau* is found on
    max_prototypes: Count = 100  # of unseen classes
    unsplit: Literal["seen", "unseen"] = "seen"  # what samples are while no threshold splits them
    missing: Literal["head", "zero"] = "head"  # prototype of a class without source images
    predict_from: Literal["after", "before"] = "after"  # the update


@dataclass
class OwtttState:
    """What OWTTT remembers between batches, in float64. Newest last; unused places come first."""

    sgd: Sgd
    scores: Tensor  # (queue,) OOD scores so far; NaN where there were none yet
    pool: Tensor  # (max_prototypes, d) normalised prototypes of unseen classes
    pooled: Tensor  # () int64, how many of them there are
    mean: Tensor  # (d,) of the target's features
    covariance: Tensor  # (d, d)
    count: Tensor  # () int64, how many samples they saw


@register("owttt")
class Owttt(Adapter):
    """Cluster features around source and discovered prototypes, aligned with the source's."""

    Config = OwtttConfig
    config: OwtttConfig
    state: OwtttState
    needs_source = True
    synchronises = True  # the threshold, the choice of prototypes, and what enters the loss
    grid = ([{"lr": (1e-5, 2.5e-5, 1e-4, 5e-4)}],)
    bibtex = """@inproceedings{li2023robustness,
  title = {On the Robustness of Open-World Test-Time Training: Self-Training with
           Dynamic Prototype Expansion},
  author = {Li, Yushu and Xu, Xun and Su, Yongyi and Jia, Kui},
  booktitle = {IEEE/CVF International Conference on Computer Vision},
  year = {2023}
}"""

    @classmethod
    def cost(cls, config: Any, batch_size: int) -> float:
        """Two forwards, a backward to all weights, and the prototypes."""
        return 2.5 + BACKWARD_ALL

    def parameters(self) -> Iterable[nn.Parameter]:
        """All of the model; no gradient reaches the head, so it stays."""
        parameters: Iterable[nn.Parameter] = self.backbone.model.parameters()
        return parameters

    def initial_state(self) -> OwtttState:
        """No momentum, no scores, no prototypes, an empty target distribution."""
        c, d = self.config, self.backbone.dim
        zero = torch.zeros((), dtype=torch.float64, device=self.backbone.device)
        return OwtttState(
            sgd=Sgd([(self.params, c.lr)], momentum=c.momentum),
            scores=zero.new_full((c.queue,), torch.nan),
            pool=zero.new_zeros(c.max_prototypes, d),
            pooled=zero.long(),
            mean=zero.new_zeros(d),
            covariance=zero.new_zeros(d, d),
            count=zero.long(),
        )

    def answer(self, images: Tensor) -> Prediction:
        """Cosines to the source prototypes: logits cos / delta, score 1 - the largest."""
        return self._prediction(self._cosines(self._features(images)))

    def step(self, images: Tensor) -> Prediction:
        """Sort the batch into seen and unseen, cluster and align, and predict."""
        features = self._features(images)  # (B, d)
        cosines = self._cosines(features)  # (B, C)
        score = 1 - cosines.detach().max(dim=1).values  # (B,)
        threshold = self._threshold(score)
        seen = score < threshold
        nearest = self._nearest(features)  # (B, 1) or (B, 0), before this batch adds prototypes
        if not bool(seen.all()):
            self._expand(features.detach(), score, nearest.detach(), threshold)
        losses = []
        aligned = seen if self.config.align_on == "seen" else torch.ones_like(seen)
        if bool(seen.any()):
            losses.append(self.config.alignment_scale * self._alignment(features[aligned]))
        if nearest.numel():
            logits = torch.cat([cosines, nearest], dim=1) / self.config.temperature  # (B, C + 1)
            losses.append(self.config.ce_scale * self._clustering(logits, score, seen))
        if losses:
            self.descend(torch.stack(losses).sum(), self.state.sgd)
        if self.config.predict_from == "after":
            with torch.no_grad():
                cosines = self._cosines(self._features(images))
        return self._prediction(cosines, seen=seen, prototypes=self.state.pooled.clone())

    # Seen and unseen ----------------------------------------------------------------------

    def _threshold(self, score: Tensor) -> float:
        """tau*: what splits the last scores best; where nothing does, above or below them all."""
        queue = self.state.scores
        queue.copy_(torch.cat([queue, score])[-len(queue) :])
        best = split_threshold(queue[~queue.isnan()])
        if best is None:
            return float("inf") if self.config.unsplit == "seen" else 0.0
        return best

    def _nearest(self, features: Tensor) -> Tensor:
        """Cosine to the nearest prototype of an unseen class: (B, 1); (B, 0) without any."""
        pool = self.state.pool
        used = pool[len(pool) - int(self.state.pooled) :].clone()  # (n, d); the pool moves on
        if not len(used):
            return features.new_zeros(len(features), 0)
        return (functional.normalize(features) @ used.T).max(dim=1, keepdim=True).values

    def _expand(self, features: Tensor, score: Tensor, nearest: Tensor, threshold: float) -> None:
        """Unseen samples far from every prototype become prototypes, the farthest first."""
        distance = torch.cat([score[:, None], 1 - nearest], dim=1).min(dim=1).values  # (B,)
        least = split_threshold(distance[score >= threshold]) or 0.0
        pool, pooled = self.state.pool, self.state.pooled
        for i in score.argsort(descending=True, stable=True).tolist():
            if float(score[i]) <= threshold:
                return
            new = functional.normalize(features[i : i + 1])  # (1, d)
            to_pool = 1 - self._nearest(new)[0]  # (1,) or (0,); sees those added just now
            if bool(torch.cat([score[i : i + 1], to_pool]).min() > least):
                pool.copy_(torch.cat([pool[1:], new]))  # a full pool loses its oldest
                pooled.copy_((pooled + 1).clamp_max(len(pool)))

    # Losses -------------------------------------------------------------------------------

    def _clustering(self, logits: Tensor, score: Tensor, seen: Tensor) -> Tensor:
        """Cross-entropy of the confident half of each side to its nearest prototype."""
        known, unknown = seen, ~seen
        if bool(seen.any()) and not bool(seen.all()):
            low = score[seen].sort(descending=True).values  # the half farthest below tau*
            high = score[~seen].sort(descending=True).values  # and farthest above
            known = seen & (score < low[-(len(low) // 2)])
            unknown = ~seen & (score > high[len(high) // 2])
        to_class = logits[:, :-1]  # (B, C)
        own = functional.cross_entropy(to_class, to_class.argmax(dim=1), reduction="none")
        other = logits.logsumexp(dim=1) - logits[:, -1]  # CE to the nearest unseen prototype
        return (masked_mean(own, known) + masked_mean(other, unknown)) / 2

    def _alignment(self, features: Tensor) -> Tensor:
        """KL both ways between the source's Gaussian and the target's, which moves on: ()."""
        state, size = self.state, len(features)
        state.count += size
        rate = 1 / max(min(int(state.count), self.config.window), size)
        apart = features - state.mean  # (B, d)
        shift = rate * apart.sum(dim=0)  # (d,)
        mean = state.mean + shift
        fresh = apart.T @ apart - size * state.covariance
        covariance = state.covariance + rate * fresh - torch.outer(shift, shift)
        with torch.no_grad():
            state.mean.copy_(mean)
            state.covariance.copy_(covariance)
        ours = covariance + self.source["ridge"] * torch.eye(len(mean), device=mean.device)
        theirs, precision = self.source["covariance"], self.source["precision"]
        gap = (mean - self.source["mean"])[:, None]  # (d, 1)
        root = torch.linalg.cholesky(ours)
        traces = torch.cholesky_solve(theirs, root).trace() + (precision * ours).sum()
        means = (gap * (torch.cholesky_solve(gap, root) + precision @ gap)).sum()
        return KL_SCALE * 0.5 * (traces + means - 2 * len(gap))  # the log-determinants cancel

    # Source -------------------------------------------------------------------------------

    def fit(self, loader: Iterable[Tensor]) -> Mapping[str, Tensor]:
        """Class means, mean and covariance of the source's features, by the model's own labels."""
        b = self.backbone
        total = torch.zeros(b.classes, b.dim, dtype=torch.float64, device=b.device)
        square = torch.zeros(b.dim, b.dim, dtype=torch.float64, device=b.device)
        number = torch.zeros(b.classes, dtype=torch.float64, device=b.device)
        with torch.no_grad():
            for images in loader:
                trace = b.trace(images)
                features, label = trace.penultimate.double(), trace.logits.argmax(dim=1)
                total.index_add_(0, label, features)
                number.index_add_(0, label, torch.ones_like(features[:, 0]))
                square += features.T @ features
        return self._summary(total, number, square)

    def _summary(self, total: Tensor, number: Tensor, square: Tensor) -> Mapping[str, Tensor]:
        """Sums a class (C, d), counts (C,), sum of outer products (d, d) -> what is kept."""
        mean = total.sum(dim=0) / number.sum()
        covariance = square / number.sum() - torch.outer(mean, mean)
        ridge = (RIDGE * covariance.max()).clamp_min(1e-6)
        covariance = covariance + ridge * torch.eye(len(mean), device=mean.device)
        prototypes = functional.normalize(total)  # the direction of a sum is that of its mean
        if self.config.missing == "head":
            rows = functional.normalize(self.backbone.class_weights().detach().double())
            prototypes = torch.where(number[:, None] > 0, prototypes, rows)
        return {
            "prototypes": prototypes,
            "mean": mean,
            "covariance": covariance,
            "precision": torch.linalg.inv(covariance).contiguous(),
            "ridge": ridge,
        }

    # Features -----------------------------------------------------------------------------

    def _features(self, images: Tensor) -> Tensor:
        return self.backbone.trace(images).penultimate.double()  # (B, d); no autocast from here

    def _cosines(self, features: Tensor) -> Tensor:
        """To each source prototype: (B, d) -> (B, C)."""
        if "prototypes" not in self.source:
            raise SourceDataError(
                "owttt needs source prototypes: call adapter.fit_source(loader) first, with "
                "batches of unlabelled source images (B, 3, H, W) in [0, 1]"
            )
        return functional.normalize(features) @ self.source["prototypes"].T

    def _prediction(self, cosines: Tensor, **details: Tensor) -> Prediction:
        logits = (cosines / self.config.temperature).to(self.backbone.dtype)  # (B, C)
        score = (1 - cosines.max(dim=1).values).to(self.backbone.dtype)  # (B,)
        return Prediction(logits, score, details)
