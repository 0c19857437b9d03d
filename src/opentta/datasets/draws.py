"""Which known images come, and how often: all once, few classes, a long tail, changing classes.

Pure functions of the labels and a seed. Where more images are asked for than there are, some come
again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opentta.datasets.orders import Draw, Indices
from opentta.errors import ConfigError, unknown

KINDS = ("all", "few", "zipf", "redraw", "drift")
_NEEDS = {
    "all": (),
    "few": ("images", "classes"),
    "zipf": ("images",),
    "redraw": ("images",),
    "drift": ("images", "classes", "stretch"),
}


@dataclass(frozen=True)
class ClassDraw:
    """How the known images of a segment are drawn.

    - ``all``: each once.
    - ``few``: ``classes`` of the classes; passes over their images until there are ``images``.
    - ``zipf``: class frequencies fall as 1 / rank; drawn with replacement.
    - ``redraw``: uniform, with replacement.
    - ``drift``: ``classes`` of the classes for ``stretch`` draws, then others, and so on.

    Example:
        >>> ClassDraw("few", images=1500, classes=50).number
        0
    """

    kind: str = "all"
    images: int | None = None  # known images in all
    classes: int | None = None  # of the stream (few), or of a stretch (drift)
    stretch: int | None = None  # images before other classes come
    number: int = 0  # another one gives another draw of the same kind

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown("draw of classes", self.kind, KINDS)
        given = {name: getattr(self, name) for name in ("images", "classes", "stretch")}
        for name, value in given.items():
            if (value is None) == (name in _NEEDS[self.kind]) or (value is not None and value < 1):
                needs = ", ".join(_NEEDS[self.kind]) or "none of them"
                raise ConfigError(
                    f"draw {self.kind}: expected numbers of at least 1 for {needs} and nothing "
                    f"else, got {', '.join(f'{n}={v}' for n, v in given.items())}"
                )


def draw_known(labels: Indices, draw: ClassDraw, seed: int) -> Indices:
    """Places in ``labels`` (N,), in the order of drawing; ``seed`` is the stream's.

    Example:
        >>> labels = np.array([0, 0, 1, 1, 2, 2])
        >>> drawn = draw_known(labels, ClassDraw("few", images=5, classes=1), seed=1)
        >>> len(drawn), len(set(labels[drawn].tolist()))
        (5, 1)
    """
    if draw.kind == "all":
        return np.arange(len(labels), dtype=np.int64)
    dice = Draw(seed, "draw", draw.kind, draw.number)
    images = draw.images or 0
    if draw.kind == "redraw":
        return dice.integers(len(labels), images)
    classes = np.unique(labels)
    classes = classes[dice.permutation(len(classes))]
    if draw.classes is not None and draw.classes > len(classes):
        raise ConfigError(
            f"draw {draw.kind}: expected at most the {len(classes)} classes of the set, got "
            f"classes={draw.classes}"
        )
    if draw.kind == "few":
        members = np.flatnonzero(np.isin(labels, classes[: draw.classes]))
        passes = -(-images // len(members))
        drawn = [members[dice.permutation(len(members))] for _ in range(passes)]
        return np.concatenate(drawn)[:images]
    if draw.kind == "zipf":
        weight = 1 / (1 + np.arange(len(classes)))
        chosen = np.searchsorted(np.cumsum(weight) / weight.sum(), dice.uniform(images))
        return _one_of_each(labels, classes[np.minimum(chosen, len(classes) - 1)], dice)
    parts = []
    count, stretch = draw.classes or 1, draw.stretch or 1
    for number, start in enumerate(range(0, images, stretch)):
        now = np.take(classes, np.arange(number * count, (number + 1) * count), mode="wrap")
        size = min(stretch, images - start)
        members = np.flatnonzero(np.isin(labels, now))
        parts.append(members[dice.integers(len(members), size)])
    return np.concatenate(parts)


def _one_of_each(labels: Indices, wanted: Indices, dice: Draw) -> Indices:
    """For each wanted class one of its images."""
    order = np.argsort(labels, kind="stable")
    starts, ends = (np.searchsorted(labels[order], wanted, side=side) for side in ("left", "right"))
    places = starts + np.floor(dice.uniform(len(wanted)) * (ends - starts)).astype(np.int64)
    found: Indices = order[places]
    return found
