"""ID and OOD samples as one seeded stream of batches, the same for every method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count as count_up
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from opentta.datasets.draws import ClassDraw, draw_known
from opentta.datasets.loader import (
    Decoded,
    Decoder,
    Prepared,
    Squares,
    as_floats,
    cached,
    decode,
)
from opentta.datasets.orders import Draw, Indices, arrange
from opentta.datasets.sets import ImagePool, ImageSet, Labels
from opentta.datasets.spec import Segment, Share, StreamSpec
from opentta.errors import ConfigError, DataError, UnreadableImageError
from opentta.labels import UNLABELLED
from opentta.types import Batch


@dataclass(frozen=True)
class Step:
    """One batch of a stream, its number, and whether the model starts afresh before it."""

    number: int  # counts the batches as planned; resume with steps(start=number + 1)
    reset: bool
    batch: Batch


@dataclass(frozen=True)
class SegmentSamples:
    """The samples of one segment: a few image sets, one after the other."""

    sets: tuple[ImageSet, ...]
    domains: tuple[str, ...]  # of each set
    origins: Indices  # (n,) 0: ID; k: the k-th OOD set
    set_numbers: Indices  # (n,) which of the sets
    places: Indices  # (n,) place of the image in its whole pool; the same when it comes again
    labels: Labels  # (n,)

    def __len__(self) -> int:
        return len(self.labels)


class Stream:
    """Batches of ID and OOD images that depend on the spec and the data, never on the reader.

    ``id`` and ``ood`` are image pools with the names that the spec gives them. Iterating yields
    ``Batch``; ``steps`` adds the batch number and the resets that the protocol asks for.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> from opentta.datasets.folders import image_folder, ood_folder
        >>> from opentta.datasets.spec import Share
        >>> root = Path(tempfile.mkdtemp())
        >>> for name in ("id/cat", "id/dog", "ood"):
        ...     (root / name).mkdir(parents=True)
        ...     Image.new("RGB", (8, 8)).save(root / name / "1.png")
        >>> spec = StreamSpec(Share("pets"), (Share("far"),), batch_size=2)
        >>> pets, far = image_folder(root / "id", "pets"), ood_folder(root / "ood", "far")
        >>> [tuple(batch.images.shape) for batch in Stream(spec, pets, [far])]
        [(2, 3, 224, 224), (1, 3, 224, 224)]
    """

    def __init__(
        self,
        spec: StreamSpec,
        id: ImagePool,
        ood: Sequence[ImagePool] = (),
        *,
        workers: int = 0,
        cache: Path | str | None = None,
        start_method: str | None = None,
    ) -> None:
        given = [pool.name for pool in (id, *ood)]
        named = [share.name for share in (spec.id, *spec.ood)]
        if given != named:
            raise ConfigError(
                f"expected the image sets that the spec names ({', '.join(named)}), in that order, "
                f"got {', '.join(given)}; the spec is stored with the result, so it must be true"
            )
        corrupted = any(segment.corruptions for segment in spec.segments)
        if corrupted and not id.follows_corruption:
            raise ConfigError(
                f"expected an ID set that can be corrupted, but {id.name} is the same under every "
                "corruption; wrap it in OnTheFly(...), or leave the segments clean"
            )
        if workers < 0:
            raise ConfigError(f"expected workers >= 0 (0: no extra process), got {workers}")
        self.spec = spec
        self.workers = workers
        self.cache = cache
        self.start_method = start_method
        self.unreadable: dict[int, str] = {}  # index -> message, of every sample left out so far
        self._pools = (id, *ood)
        self._samples: dict[int, SegmentSamples] = {}

    @property
    def origins(self) -> tuple[str, ...]:
        """Names of the sets: the ID set first, then the OOD sets."""
        return tuple(pool.name for pool in self._pools)

    @property
    def class_indices(self) -> tuple[int, ...] | None:
        """ImageNet indices of the classes, for a set that has only some of them (R, A)."""
        return self._samples_of(0).sets[0].class_indices

    @property
    def unlabelled(self) -> bool:
        """Whether nobody has said the classes of the known images."""
        return bool((self._samples_of(0).labels == UNLABELLED).any())

    def __len__(self) -> int:
        """Batches of the whole stream."""
        if self.spec.passes is None:
            raise ConfigError("a stream with passes=None never ends, so it has no length")
        a_pass = sum(self._batches_in(i) for i in range(len(self.spec.segments)))
        return a_pass * self.spec.passes

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """The batches from number ``start`` on: the identical rest of the stream."""
        return (step.batch for step in self.steps(start))

    def steps(self, start: int = 0) -> Iterator[Step]:
        """The batches from number ``start`` on, numbered, with the resets of the protocol.

        A batch of which no image could be read is left out; its number is left out with it.
        """
        if start < 0:
            raise ConfigError(f"expected the number of a batch to start from, got {start}")
        everywhere = range(len(self.spec.segments))
        if self.spec.drop_last and not any(self._batches_in(i) for i in everywhere):
            raise ConfigError(
                f"expected at least one whole batch of {self.spec.batch_size}, but drop_last "
                "leaves none; take a smaller batch_size, or keep the last batch"
            )
        number = 0
        reset = False
        before: tuple[str, ...] | None = None  # corruptions of the segment that went by
        visits: dict[str, int] = {}
        for segment_number in self._walk():
            segment = self.spec.segments[segment_number]
            visit = visits.get(segment.corruption, 0)
            visits[segment.corruption] = visit + 1
            fresh = self.spec.reset == "corruption" and segment.corruptions != before
            before = segment.corruptions
            size = self._batches_in(segment_number)
            if start >= number + size:
                number += size
                continue
            skip = max(start - number, 0)
            number += skip
            reset = reset or (fresh and skip == 0)
            for batch in self._segment(segment_number, visit, skip):
                if batch is not None:
                    yield Step(number, reset, batch)
                    reset = False
                number += 1

    def domain(self, index: Tensor) -> list[str]:
        """``corruption/severity`` of each sample, or ``clean``, also in a mixed segment.

        ``index`` (B,) is that of a batch.
        """
        return [samples.domains[samples.set_numbers[i]] for samples, i in self._locate(index)]

    def places(self, index: Indices) -> Indices:
        """The place of each sample's image in its whole set, the same whenever the image comes.

        ``index`` (N,) is that of batches, or of ``Samples``. Under another corruption or seed an
        image has the same place.
        """
        parts = [self._samples_of(i).places for i in range(len(self.spec.segments))]
        found: Indices = np.concatenate(parts)[index]
        return found

    def check_labels(self, classes: int) -> None:
        """Raise unless a head of ``classes`` classes has an answer for every known sample."""
        for number in range(len(self.spec.segments)):
            top = int(self._samples_of(number).labels.max())
            if top >= classes:
                raise DataError(
                    f"{self.origins[0]}: expected a head that knows label {top}, got one of "
                    f"{classes} classes; take weights that know all classes of the set, or name "
                    "them all in adapt(..., classes=...)"
                )

    def counts(self) -> dict[str, int]:
        """Images of each set in the first segment, as found on disk."""
        numbers = np.bincount(self._samples_of(0).origins, minlength=len(self.origins))
        return dict(zip(self.origins, numbers.tolist(), strict=True))

    def describe(self) -> dict[str, Any]:
        """What to store with a result: the spec, the counts, and what could not be read."""
        return {
            "spec": self.spec.to_dict(),
            "counts": self.counts(),
            "unreadable": len(self.unreadable),
            "unreadable_files": sorted(set(self.unreadable.values())),
        }

    def _walk(self) -> Iterator[int]:
        passes = count_up() if self.spec.passes is None else range(self.spec.passes)
        return (i for _ in passes for i in range(len(self.spec.segments)))

    def _batches_in(self, segment_number: int) -> int:
        samples, size = len(self._samples_of(segment_number)), self.spec.batch_size
        return samples // size if self.spec.drop_last else -(-samples // size)

    def _segment(self, segment_number: int, visit: int, skip: int) -> Iterator[Batch | None]:
        """The batches of one visit to a segment, from the ``skip``-th on; None: all unreadable."""
        spec, samples = self.spec, self._samples_of(segment_number)
        segment = spec.segments[segment_number]
        draw = Draw(spec.seed, segment.corruption, "+".join(self.origins[1:]), visit)
        order = arrange(samples.labels, samples.origins, spec.order, draw)
        plan = [
            order[i * spec.batch_size : (i + 1) * spec.batch_size]
            for i in range(skip, self._batches_in(segment_number))
        ]
        squares = [self._pixels(images) for images in samples.sets]
        decoder = Decoder(squares, spec.preprocessing.size)
        offset = self._offset(segment_number)
        for decoded in decode(decoder, plan, self.workers, self.start_method):
            self._note(decoded, offset)
            if len(decoded.kept) == 0:
                yield None
                continue
            yield Batch(
                images=as_floats(decoded.pixels),  # (B, 3, S, S)
                labels=torch.from_numpy(samples.labels[decoded.kept]),
                index=torch.from_numpy(decoded.kept + offset),
                domain=segment.domain,
                origin=torch.from_numpy(samples.origins[decoded.kept]),
            )

    def _note(self, decoded: Decoded, offset: int) -> None:
        for index, message in decoded.unreadable:
            if self.spec.on_error == "raise":
                raise UnreadableImageError(message)
            self.unreadable[index + offset] = message

    def _pixels(self, images: ImageSet) -> Squares:
        prepared = Prepared(images, self.spec.preprocessing.geometry(images.kind))
        if self.cache is None:
            return prepared
        return cached(prepared, self.cache, self.workers, self.start_method)

    def _offset(self, segment_number: int) -> int:
        """Place of a segment's first sample in the stream's list of samples."""
        return sum(len(self._samples_of(i)) for i in range(segment_number))

    def _locate(self, index: Tensor) -> Iterator[tuple[SegmentSamples, int]]:
        for place in index.tolist():
            for number in range(len(self.spec.segments)):
                samples = self._samples_of(number)
                if place < len(samples):
                    yield samples, place
                    break
                place -= len(samples)
            else:
                raise DataError(
                    f"expected an index below {self._offset(len(self.spec.segments))}, the number "
                    f"of samples of this stream, got {place}; was it another stream's batch?"
                )

    def _samples_of(self, segment_number: int) -> SegmentSamples:
        if segment_number not in self._samples:
            self._samples[segment_number] = compose(
                self.spec, self.spec.segments[segment_number], self._pools
            )
        return self._samples[segment_number]


def compose(spec: StreamSpec, segment: Segment, pools: Sequence[ImagePool]) -> SegmentSamples:
    """The samples of one segment; ``pools`` are the ID pool, then the OOD pools."""
    sets: list[ImageSet] = []
    domains: list[str] = []
    origins: list[int] = []
    places: list[Indices] = []
    known = 0
    for origin, pool in enumerate(pools):
        share = spec.ood[origin - 1] if origin else spec.id
        draw = ClassDraw() if origin else spec.draw
        for images, chosen, domain in _under(segment, pool, share, spec.seed, known, draw):
            places.append(chosen)
            sets.append(images.as_ood() if origin else images)
            domains.append(domain)
            origins.append(origin)
        if origin == 0:
            known = sum(len(images) for images in sets)
    sizes = [len(images) for images in sets]
    return SegmentSamples(
        sets=tuple(sets),
        domains=tuple(domains),
        origins=np.repeat(origins, sizes),
        set_numbers=np.repeat(np.arange(len(sets)), sizes),
        places=np.concatenate(places),
        labels=np.concatenate([images.labels for images in sets]),
    )


def _under(
    segment: Segment, pool: ImagePool, share: Share, seed: int, known: int, draw: ClassDraw
) -> Iterator[tuple[ImageSet, Indices, str]]:
    """The chosen images of one pool under a segment, as sets of one corruption each.

    With each set come the places of its images in the pool, and its domain.
    """
    names = segment.corruptions if pool.follows_corruption else ()
    severity = segment.severity if names else 0
    if len(names) < 2:
        images = pool.at(names[0] if names else "", severity)
        domain = segment.domain if names else "clean"
        chosen = _pick(share, images.labels, known, seed, draw)
        yield images.subset(chosen), chosen, domain
        return
    families = [pool.at(name, severity) for name in names]
    if len({len(images) for images in families}) > 1:
        sizes = ", ".join(f"{n}: {len(f)}" for n, f in zip(names, families, strict=True))
        raise DataError(
            f"{pool.name}: expected the same images under every corruption of a mixed segment, "
            f"got {sizes}; complete the folders (see `opentta data check`)"
        )
    chosen = _pick(share, families[0].labels, known, seed, draw)
    drawn = Draw(seed, "mixed", segment.corruption, pool.name).integers(len(names), len(chosen))
    for number in np.unique(drawn):  # of few images, none may have drawn some corruption
        own = chosen[drawn == number]
        yield families[number].subset(own), own, f"{names[number]}/{severity}"


def _pick(share: Share, labels: Labels, known: int, seed: int, draw: ClassDraw) -> Indices:
    """Which images take part; the same under every corruption, as their number allows."""
    available = len(labels)
    wanted = share.take(available, known)
    if wanted > available:  # passes over all, each in an order of its own
        dice = Draw(seed, "repeat", share.name)
        return np.concatenate(
            [dice.permutation(available) for _ in range(-(-wanted // available))]
        )[:wanted]
    chosen = np.arange(wanted, dtype=np.int64)
    if share.pick == "random" and wanted < available:
        chosen = np.sort(Draw(seed, "pick", share.name).permutation(available)[:wanted])
    return chosen[draw_known(labels[chosen], draw, seed)]
