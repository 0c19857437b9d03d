"""In which order the samples of a stream arrive. Pure functions of labels, origins and a seed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opentta.errors import ConfigError, unknown

Indices = npt.NDArray[np.int64]  # (N,)

LABEL_ORDERS = ("shuffled", "dirichlet", "sorted", "drawn")
OOD_ORDERS = ("spread", "bursts", "once")


@dataclass(frozen=True)
class Order:
    """How ID labels follow each other, and where the OOD samples come in between.

    Example:
        >>> Order()  # the paper's: one shuffle of everything
        Order(labels='shuffled', concentration=0.1, slots=None, ood='spread', burst=64)
        >>> Order(labels="dirichlet", ood="bursts", burst=100).burst
        100
    """

    # "dirichlet": classes cluster in time; "sorted": one class after the other; "drawn": as listed
    labels: str = "shuffled"
    concentration: float = 0.1  # of the Dirichlet; smaller = stronger clusters
    slots: int | None = None  # stretches of time that classes spread over; None: one a class
    # "bursts": OOD samples of one set arrive in unbroken runs; "once": all in one, after a third
    ood: str = "spread"
    burst: int = 64  # samples in a run

    def __post_init__(self) -> None:
        if self.labels not in LABEL_ORDERS:
            raise unknown("label order", self.labels, LABEL_ORDERS)
        if self.ood not in OOD_ORDERS:
            raise unknown("OOD order", self.ood, OOD_ORDERS)
        if not self.concentration > 0 or self.burst < 1 or (self.slots or 1) < 1:
            raise ConfigError(
                "expected concentration > 0, burst >= 1 and slots >= 1 or None, got "
                f"concentration={self.concentration}, burst={self.burst}, slots={self.slots}"
            )


class Draw:
    """Random numbers that depend on the given words alone, on every machine.

    Example:
        >>> Draw(0, "fog", "textures").permutation(6).tolist()
        [0, 1, 5, 2, 4, 3]
    """

    def __init__(self, *words: object) -> None:
        text = "\0".join(str(word) for word in words)
        seed = np.frombuffer(hashlib.sha256(text.encode()).digest(), dtype="<u4")
        self._bits = np.random.PCG64(np.random.SeedSequence(seed.tolist()))

    def permutation(self, count: int) -> Indices:
        """A random order of ``range(count)``: (count,) int64.

        Raw bits are sorted because numpy promises those across versions; the output of
        ``Generator.permutation`` may change with a release, and with it every stored result.
        """
        raw = np.asarray(self._bits.random_raw(count), dtype=np.uint64)
        return np.argsort(raw, kind="stable").astype(np.int64)

    def integers(self, bound: int, count: int) -> Indices:
        """Uniform draws from ``range(bound)``: (count,) int64. The bias is below 2^-40."""
        raw = np.asarray(self._bits.random_raw(count), dtype=np.uint64)
        return (raw % np.uint64(bound)).astype(np.int64)

    def uniform(self, count: int) -> npt.NDArray[np.float64]:
        """Uniform draws from [0, 1): (count,), from the same bits on every version of numpy."""
        raw = np.asarray(self._bits.random_raw(count), dtype=np.uint64)
        return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def dirichlet(self, concentration: float, count: int) -> npt.NDArray[np.float64]:
        """Shares that sum to one: (count,)."""
        alphas = np.full(count, concentration)
        return np.random.Generator(self._bits).dirichlet(alphas)


def arrange(labels: Indices, origins: Indices, order: Order, draw: Draw) -> Indices:
    """The arrival order of N samples: a permutation (N,) of ``range(N)``.

    ``labels`` (N,) are read for ID samples only; ``origins`` (N,) is 0 for ID samples and the
    number of the OOD set, from 1, for the others.

    Example:
        >>> origins = np.array([0, 0, 0, 0, 1, 1])
        >>> runs = arrange(np.zeros(6, np.int64), origins, Order(ood="bursts", burst=2), Draw(1))
        >>> "".join("io"[i] for i in origins[runs])
        'iiiooi'
    """
    if order.labels == "shuffled" and order.ood == "spread":
        return draw.permutation(len(labels))
    known = np.flatnonzero(origins == 0)
    if order.labels == "shuffled":
        known = known[draw.permutation(len(known))]
    elif order.labels == "sorted":
        known = known[_sorted(labels[known], draw)]
    elif order.labels == "dirichlet":
        known = known[_dirichlet(labels[known], order, draw)]
    if order.ood == "once":
        unknowns = np.flatnonzero(origins != 0)
        unknowns = unknowns[draw.permutation(len(unknowns))]
        third = len(known) // 3
        return np.concatenate([known[:third], unknowns, known[third:]])
    if order.ood == "spread":
        unknowns = np.flatnonzero(origins != 0)
        runs = [unknowns[i : i + 1] for i in draw.permutation(len(unknowns))]
    else:
        runs = _bursts(origins, order.burst, draw)
    return _insert(known, runs, draw)


def _sorted(labels: Indices, draw: Draw) -> Indices:
    """One class after the other, in a random order of classes and within each."""
    classes = np.unique(labels)
    rank = np.empty(len(classes), dtype=np.int64)
    rank[draw.permutation(len(classes))] = np.arange(len(classes))
    shuffled = draw.permutation(len(labels))
    place = rank[np.searchsorted(classes, labels[shuffled])]
    return shuffled[np.argsort(place, kind="stable")]


def _dirichlet(labels: Indices, order: Order, draw: Draw) -> Indices:
    """Each class is dealt over the slots by a Dirichlet; inside a slot classes stay together."""
    classes = np.unique(labels)
    slots = order.slots or max(len(classes), 1)
    pieces: list[list[Indices]] = [[] for _ in range(slots)]
    for label in classes:
        members = np.flatnonzero(labels == label)
        members = members[draw.permutation(len(members))]
        shares = np.cumsum(draw.dirichlet(order.concentration, slots))[:-1]
        cuts = np.floor(shares * len(members) + 0.5).astype(np.int64)
        for slot, piece in enumerate(np.split(members, cuts)):
            if len(piece):
                pieces[slot].append(piece)
    parts = [slot[i] for slot in pieces for i in draw.permutation(len(slot))]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _bursts(origins: Indices, burst: int, draw: Draw) -> list[Indices]:
    """Runs of at most ``burst`` samples; a run never mixes two OOD sets."""
    runs: list[Indices] = []
    for origin in range(1, int(origins.max(initial=0)) + 1):
        members = np.flatnonzero(origins == origin)
        members = members[draw.permutation(len(members))]
        runs.extend(members[i : i + burst] for i in range(0, len(members), burst))
    return [runs[i] for i in draw.permutation(len(runs))]


def _insert(known: Indices, runs: list[Indices], draw: Draw) -> Indices:
    """``known`` in its order, with every run at a random gap of it."""
    # Which of the (known + runs) places are runs: a uniform choice, so all gaps are alike.
    places = draw.permutation(len(known) + len(runs))
    is_run = np.zeros(len(places), dtype=bool)
    is_run[places[: len(runs)]] = True
    parts: list[Indices] = []
    start = 0
    for number, place in enumerate(np.flatnonzero(is_run)):
        stop = int(place) - number  # known samples before this run
        parts += [known[start:stop], runs[number]]
        start = stop
    parts.append(known[start:])
    return np.concatenate(parts)
