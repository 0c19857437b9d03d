"""The description of a stream: small, frozen, plain values; stored with every result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from opentta.datasets.corruptions.constants import CORRUPTIONS
from opentta.datasets.draws import ClassDraw
from opentta.datasets.orders import Order
from opentta.datasets.preprocess import PAPER, Preprocessing
from opentta.errors import ConfigError, unknown

PICKS = ("first", "random")
RESETS = ("corruption", "never")
ON_ERROR = ("raise", "skip")


@dataclass(frozen=True)
class ListedSet:
    """A data set that a preset declares: the images of a list, in its order."""

    name: str  # an OOD set whose name ends in -c is corrupted as the ID images are
    role: Literal["id", "ood"]
    list: str  # path of the list: `path label` per line
    folder: str  # of the images, below the data root
    sha256: str  # of the list's bytes
    images: int


@dataclass(frozen=True)
class OwnSet:
    """A data set that is a folder of the user's, as it was when it was examined."""

    name: str
    role: Literal["id", "ood"]
    folder: str
    sha256: str  # of its images: paths, contents and labels, and the classes that are answered
    listing: str  # of paths and sizes: tells a folder that has changed since
    images: int
    classes: tuple[tuple[str, int], ...] = ()  # folder -> class of the head; none: no labels
    names: tuple[str, ...] = ()  # of all classes that are answered, in order, where all have one
    class_indices: tuple[int, ...] | None = None  # of the head; None: all of it answers


DeclaredSet = ListedSet | OwnSet
"""A data set of a preset's own."""


@dataclass(frozen=True)
class Share:
    """How much of a data set takes part: all of it, ``count`` images, or a ratio to the ID images.

    Example:
        >>> Share("textures", count=5000).take(5640, known=50000)
        5000
        >>> Share("places", ratio=0.2).take(10000, known=2000)
        400
    """

    name: str
    count: int | None = None
    ratio: float | None = None  # images of this OOD set for each ID image
    pick: str = "first"  # in folder order, as the paper; "random": by the stream's seed
    # all of a set that has fewer than count; not described, as what a folder holds is not: what
    # was found is stored with the result
    at_most: bool = field(default=False, compare=False)
    list_sha256: str = ""  # of a declared set: another list, or other images, is another stream
    listed: DeclaredSet | None = field(default=None, compare=False)  # where the images lie
    repeat: bool = False  # images come again where the set has fewer than are wanted

    def __post_init__(self) -> None:
        if self.listed is not None:
            object.__setattr__(self, "list_sha256", self.listed.sha256)
        if self.pick not in PICKS:
            raise unknown("pick", self.pick, PICKS)
        if self.count is not None and self.ratio is not None:
            raise ConfigError(f"{self.name}: expected a count or a ratio, got both; leave one out")
        if (self.count is not None and self.count < 1) or (
            self.ratio is not None and not self.ratio > 0
        ):
            raise ConfigError(
                f"{self.name}: expected a count of at least 1 or a ratio above 0, got "
                f"count={self.count}, ratio={self.ratio}; to take no image, leave the set out"
            )

    def take(self, available: int, known: int) -> int:
        """How many of the ``available`` images are taken beside ``known`` ID images."""
        wanted = available
        if self.count is not None:
            wanted = self.count
        if self.ratio is not None:
            wanted = round(self.ratio * known)
        if wanted > available and self.at_most:
            return available
        if wanted > available and not self.repeat:
            raise ConfigError(
                f"{self.name}: expected at least {wanted} images, but it has {available}; ask for "
                "fewer, or for all (count=None, ratio=None)"
            )
        if wanted < 1:
            raise ConfigError(
                f"{self.name}: expected at least one image, but a ratio of {self.ratio} to "
                f"{known} ID images gives none; raise it, or leave the set out"
            )
        return wanted

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, ready for JSON."""
        values = {"name": self.name, "count": self.count, "ratio": self.ratio, "pick": self.pick}
        later = {"list_sha256": self.list_sha256, "repeat": self.repeat}
        return values | {name: value for name, value in later.items() if value}


@dataclass(frozen=True)
class Segment:
    """A stretch of a stream under one corruption, under several mixed, or under none.

    Example:
        >>> Segment(("fog",), 5).domain, Segment().domain, Segment(("fog", "snow"), 3).domain
        ('fog/5', 'clean', 'mixed/3')
    """

    corruptions: tuple[str, ...] = ()
    severity: int = 0

    def __post_init__(self) -> None:
        good = self.severity in range(1, 6) if self.corruptions else self.severity == 0
        if isinstance(self.corruptions, str) or not good:
            raise ConfigError(
                "expected a tuple of corruptions with a severity from 1 to 5, or none with "
                f"severity 0, got {self.corruptions!r} with {self.severity!r}; one corruption is "
                'written Segment(("fog",), 5)'
            )

    @property
    def corruption(self) -> str:
        """One word for the corruption: it seeds the order of the segment."""
        return "+".join(self.corruptions) or "clean"

    @property
    def domain(self) -> str:
        """``corruption/severity``, for the meter and the report."""
        if not self.corruptions:
            return "clean"
        name = self.corruptions[0] if len(self.corruptions) == 1 else "mixed"
        return f"{name}/{self.severity}"


def separate(corruptions: Iterable[str] | None = None, severity: int = 5) -> tuple[Segment, ...]:
    """One segment per corruption, one after the other; the paper's fifteen when none is named.

    Example:
        >>> [s.domain for s in separate(["fog", "snow"])]
        ['fog/5', 'snow/5']
    """
    return tuple(Segment((name,), severity) for name in _or_all(corruptions))


def gradual(corruptions: Iterable[str] | None = None, peak: int = 5) -> tuple[Segment, ...]:
    """Each corruption rises from severity 1 to ``peak`` and falls again.

    Example:
        >>> [s.severity for s in gradual(["fog"], peak=3)]
        [1, 2, 3, 2, 1]
    """
    if isinstance(peak, bool) or peak not in range(1, 6):
        raise ConfigError(f"expected a peak from 1 to 5, got {peak!r}; 5 is the strongest")
    ramp = [*range(1, peak), *range(peak, 0, -1)]
    return tuple(Segment((name,), severity) for name in _or_all(corruptions) for severity in ramp)


def mixed(corruptions: Iterable[str] | None = None, severity: int = 5) -> tuple[Segment, ...]:
    """One segment in which every image draws its own corruption.

    Example:
        >>> mixed(["fog", "snow"])
        (Segment(corruptions=('fog', 'snow'), severity=5),)
    """
    return (Segment(_or_all(corruptions), severity),)


@dataclass(frozen=True)
class StreamSpec:
    """Everything that decides which samples arrive, in which order and how prepared.

    Example:
        >>> import json
        >>> spec = StreamSpec(Share("imagenet-c"), (Share("textures", count=5000),), separate())
        >>> StreamSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
        True
    """

    id: Share
    ood: tuple[Share, ...] = ()
    segments: tuple[Segment, ...] = (Segment(),)
    order: Order = Order()
    batch_size: int = 32
    passes: int | None = 1  # over all segments; None: for ever
    reset: str = "corruption"  # the model starts afresh before each; "never": continual
    drop_last: bool = False  # leave out a last, smaller batch of a segment
    seed: int = 0
    preprocessing: Preprocessing = PAPER  # stored under the key "preset"
    on_error: str = "raise"  # what an unreadable image does; "skip": left out, and counted
    draw: ClassDraw = ClassDraw()  # which known images come, and how often

    def __post_init__(self) -> None:
        for name, value, known in (
            ("reset", self.reset, RESETS),
            ("on_error", self.on_error, ON_ERROR),
        ):
            if value not in known:
                raise unknown(name, value, known)
        if self.batch_size < 1 or (self.passes is not None and self.passes < 1):
            raise ConfigError(
                f"expected batch_size >= 1 and passes >= 1 or None, got batch_size="
                f"{self.batch_size} and passes={self.passes}"
            )
        if not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise ConfigError(f"expected an integer as seed, got {self.seed!r}; 0 is the default")
        if not self.segments:
            raise ConfigError("expected at least one segment; a clean stream is (Segment(),)")
        if self.id.ratio is not None:
            raise ConfigError(f"{self.id.name}: a ratio counts OOD images; give the ID set a count")
        names = [share.name for share in (self.id, *self.ood)]
        if len(set(names)) < len(names):
            raise ConfigError(
                f"expected every set of a stream to have its own name, got {', '.join(names)}; "
                "a sample's origin is told by that name"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, ready for JSON."""
        values = asdict(self)
        values["preset"] = values.pop("preprocessing")
        if self.draw == ClassDraw():  # streams described before there were draws keep their hash
            del values["draw"]
        return values | {"id": self.id.to_dict(), "ood": tuple(s.to_dict() for s in self.ood)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StreamSpec:
        """The description that ``to_dict`` wrote, also after a round trip through JSON."""
        fields = dict(values)
        known = {"preset", *cls.__dataclass_fields__} - {"preprocessing"}
        for name in fields:
            if name not in known:
                raise unknown("field of a stream", name, known)
        fields["id"] = Share(**fields["id"])
        fields["ood"] = tuple(Share(**share) for share in fields["ood"])
        fields["segments"] = tuple(
            Segment(tuple(segment["corruptions"]), segment["severity"])
            for segment in fields["segments"]
        )
        fields["order"] = Order(**fields["order"])
        fields["preprocessing"] = Preprocessing.from_dict(fields.pop("preset"))
        fields["draw"] = ClassDraw(**fields.get("draw", {}))
        return cls(**fields)


def _or_all(corruptions: Iterable[str] | None) -> tuple[str, ...]:
    if isinstance(corruptions, str):
        raise ConfigError(
            f"expected a list of corruptions, got the text {corruptions!r}; one corruption is "
            f"written [{corruptions!r}]"
        )
    return CORRUPTIONS if corruptions is None else tuple(corruptions)
