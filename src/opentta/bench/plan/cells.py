"""A cell: one method on one stream with one seed, described well enough to be run anywhere.

The description is what is hashed: two cells with one hash give the same numbers on the same kind
of machine. What does not change numbers (where the data lie, how many processes read it, which
preset asked) is not part of it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from dataclasses import fields as fields_of
from functools import cached_property
from typing import Any

from opentta import registry
from opentta.bench.store.files import content_hash, plain
from opentta.bench.store.places import Place, place_of
from opentta.config import GUARD_VERSION, Policy, make_config
from opentta.datasets.spec import Share, StreamSpec
from opentta.errors import ConfigError, unknown

DEVICES = ("cpu", "cuda")
PRECISIONS = ("full", "tf32", "bfloat16")


@dataclass(frozen=True)
class Weights:
    """A backbone and the numbers in it.

    ``name`` is timm's name with its tag (``vit_base_patch16_224.augreg_in21k_ft_in1k``), or
    ``embedded``. Without a ``file`` timm downloads the tag's own weights.
    """

    name: str
    hash: str  # SHA-256 of the file that was loaded
    file: str | None = None  # a safetensors file to load instead; not hashed, its content is


HASHED_AS = {"bfloat16": "bfloat16 weights"}  # "bfloat16" was autocast over float32 weights


@dataclass(frozen=True)
class Reject:
    """What a cell rejects by: known images that are set aside, and the share of such to lose."""

    known: Share  # clean, and not among the stream's
    rate: float = 0.05
    follow: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, ready for JSON; a later field where it is used."""
        later = {"follow": True} if self.follow else {}
        return {"known": self.known.to_dict(), "rate": self.rate, **later}


@dataclass(frozen=True)
class Cell:
    """What one line of the store is the result of.

    Example:
        >>> cell = Cell("tent", Weights("vit", "ab"), StreamSpec(Share("imagenet-val")))
        >>> cell.hash == Cell("tent", Weights("vit", "ab", "x"), cell.stream, row="mine").hash
        True
        >>> cell.hash == Cell("tent", cell.weights, cell.stream, {"lr": 0.1}).hash
        False
    """

    method: str
    weights: Weights
    stream: StreamSpec
    fields: dict[str, Any] = field(default_factory=dict)  # of the config, where not the default
    policy: dict[str, Any] = field(default_factory=dict)  # group, guard, where not the default
    seed: int = 0  # of the method; the stream has its own, and a preset gives both the same
    precision: str = "full"
    device: str = "cpu"
    threads: int = 1
    source: Share | None = None  # source images for a method that needs some
    tokens: tuple[int, ...] = ()  # layers whose class tokens are kept as 2-D coordinates
    reject: Reject | None = None  # the adapter is calibrated before the stream
    # from here on nothing is hashed
    row: str = ""  # name in the table; the method's when left out
    settings: dict[str, Any] = field(default_factory=dict)  # swept fields, for the table
    thumbnails: bool = False  # keep 24 small images
    preset: str = ""

    def __post_init__(self) -> None:
        for what, value, known in (
            ("device", self.device, DEVICES),
            ("precision", self.precision, PRECISIONS),
        ):
            if value not in known:
                raise unknown(what, value, known)
        if self.precision == "tf32" and self.device != "cuda":
            raise ConfigError(
                f"expected precision full on {self.device}: tf32 is a way of GPUs to multiply; "
                "leave the precision out, or use a GPU"
            )
        if self.threads < 1:
            raise ConfigError(f"expected at least 1 thread per cell, got {self.threads}")
        _ = self.config  # a mistyped field is an error now, not after an hour
        _ = self.whole_policy

    @property
    def config(self) -> dict[str, Any]:
        """Every field of the method's config, defaults filled in; a rule for None stays None."""
        cls = registry.method(self.method)
        config = make_config(cls.Config, self.fields, what=self.method)
        values: dict[str, Any] = plain(asdict(config))
        return values

    @property
    def whole_policy(self) -> Policy:
        """The method's policy with what the cell changes of it."""
        own = asdict(registry.method(self.method).policy)
        return make_config(Policy, {**own, **self.policy}, what="policy")

    def describe(self) -> dict[str, Any]:
        """What is hashed and stored: plain values only."""
        method = registry.method(self.method)
        new = {f.name: f.default for f in fields_of(method.Config) if f.metadata.get("added")}
        config = self.config
        description = {
            "method": self.method,
            "version": method.version,
            # a later field is listed only where it is used: older results keep their hash
            "config": {k: v for k, v in config.items() if k not in new or v != new[k]},
            "backbone": self.weights.name,
            "weights": self.weights.hash,
            "stream": self.stream.to_dict(),
            "seed": self.seed,
            "precision": HASHED_AS.get(self.precision, self.precision),
            "device": self.device,
            "threads": self.threads,
        }
        own, policy = asdict(method.policy), asdict(self.whole_policy)
        changed = {name: value for name, value in policy.items() if value != own[name]}
        if changed.get("guard"):  # a method that has it by default raises its own version
            changed["guard_version"] = GUARD_VERSION
        if changed:
            description["policy"] = changed
        if self.source is not None:
            description["source"] = self.source.to_dict()
        if self.tokens:
            description["tokens"] = self.tokens
        if self.reject is not None:
            description["reject"] = self.reject.to_dict()
        values: dict[str, Any] = plain(description)
        return values

    @cached_property
    def hash(self) -> str:
        """Name of the cell in the store."""
        return content_hash(self.describe())

    @cached_property
    def place(self) -> Place:
        """Where the cell belongs in a table."""
        return place_of(self.hash, self.describe(), self.row, plain(self.settings))

    @property
    def title(self) -> str:
        """One line for people: ``sar · fog/5 · textures · seed 2024``."""
        place = self.place
        parts = [place.row, self.stream.segments[0].domain, place.ood, f"seed {self.seed}"]
        if place.id != "imagenet-c":
            parts.insert(1, place.id)
        parts += [f"{name}={value}" for name, value in self.settings.items()]
        return " · ".join(part for part in parts if part)
