"""Which samples a segment is made of: the chosen images of every source, under its corruption."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from opentta.datasets.orders import Draw, Indices
from opentta.datasets.sets import ImageSet, Labels, Source
from opentta.datasets.spec import Segment, Share, StreamSpec
from opentta.errors import DataError


@dataclass(frozen=True)
class Part:
    """The samples of one segment: a few image sets, one after the other."""

    sets: tuple[ImageSet, ...]
    domains: tuple[str, ...]  # of each set
    origins: Indices  # (n,) 0: ID; k: the k-th OOD set
    set_numbers: Indices  # (n,) which of the sets
    labels: Labels  # (n,)

    def __len__(self) -> int:
        return len(self.labels)


def compose(spec: StreamSpec, segment: Segment, sources: Sequence[Source]) -> Part:
    """The samples of one segment; ``sources`` are the ID source, then the OOD sources."""
    sets: list[ImageSet] = []
    domains: list[str] = []
    origins: list[int] = []
    known = 0
    for origin, source in enumerate(sources):
        share = spec.ood[origin - 1] if origin else spec.id
        for images, domain in _under(segment, source, share, spec.seed, known):
            sets.append(images.as_ood() if origin else images)
            domains.append(domain)
            origins.append(origin)
        if origin == 0:
            known = sum(len(images) for images in sets)
    sizes = [len(images) for images in sets]
    return Part(
        sets=tuple(sets),
        domains=tuple(domains),
        origins=np.repeat(origins, sizes),
        set_numbers=np.repeat(np.arange(len(sets)), sizes),
        labels=np.concatenate([images.labels for images in sets]),
    )


def _under(
    segment: Segment, source: Source, share: Share, seed: int, known: int
) -> Iterator[tuple[ImageSet, str]]:
    """The chosen images of one source under a segment, as sets of one corruption each."""
    names = segment.corruptions if source.follows_corruption else ()
    severity = segment.severity if names else 0
    if len(names) < 2:
        images = source.at(names[0] if names else "", severity)
        domain = segment.domain if names else "clean"
        yield images.subset(_pick(share, len(images), known, seed)), domain
        return
    families = [source.at(name, severity) for name in names]
    if len({len(images) for images in families}) > 1:
        sizes = ", ".join(f"{n}: {len(f)}" for n, f in zip(names, families, strict=True))
        raise DataError(
            f"{source.name}: expected the same images under every corruption of a mixed segment, "
            f"got {sizes}; complete the folders (see `opentta data check`)"
        )
    chosen = _pick(share, len(families[0]), known, seed)
    drawn = Draw(seed, "mixed", segment.corruption, source.name).integers(len(names), len(chosen))
    for number in np.unique(drawn):  # of few images, none may have drawn some corruption
        images = families[number].subset(chosen[drawn == number])
        yield images, f"{names[number]}/{severity}"


def _pick(share: Share, available: int, known: int, seed: int) -> Indices:
    """Which images take part; the same under every corruption, as their number allows."""
    wanted = share.take(available, known)
    if share.pick == "random" and wanted < available:
        return np.sort(Draw(seed, "pick", share.name).permutation(available)[:wanted])
    return np.arange(wanted, dtype=np.int64)
