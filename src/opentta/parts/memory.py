"""What a method keeps of the stream: class-balanced memories of images, and copies of weights.

A memory holds images with the labels that the model gave them, oldest first and never more than
its capacity. ``Hus`` is SoTTA's, ``Rbm`` STAMP's, ``Cstu`` RoTTA's. Which image goes is decided on
the host: adding reads the labels back. Random choices come from the generator handed in.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from opentta.errors import ShapeError, StateError


class ClassMemory:
    """Images and their pseudo-labels, oldest first; what is stored is a copy."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self.capacity = capacity
        self.images = torch.empty(0, 3, 0, 0, device=device)  # (n, 3, H, W), n <= capacity
        self.labels: list[int] = []

    def __len__(self) -> int:
        return len(self.labels)

    def check_size(self, images: Tensor) -> None:
        """Raise if ``images`` (B, 3, H, W) cannot be stacked with what is stored."""
        if len(self) and images.shape[1:] != self.images.shape[1:]:
            stored, came = (f"{t.shape[2]}x{t.shape[3]}" for t in (self.images, images))
            raise ShapeError(
                f"the method's memory holds {stored} images, got {came}; resize all images of a "
                "stream to one size, or reset() the adapter first"
            )

    def tensors(self) -> Mapping[str, Tensor]:
        """What it remembers."""
        return {"images": self.images, "labels": torch.tensor(self.labels, dtype=torch.int64)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what another memory's ``tensors()`` gave, however many images that is."""
        missing = self.tensors().keys() - tensors.keys()
        if missing:
            raise StateError(f"the saved memory lacks {sorted(missing)}")
        images, labels = tensors["images"], tensors["labels"].tolist()
        if len(images) != len(labels) or len(labels) > self.capacity:
            raise StateError(
                f"the saved memory does not fit: {len(images)} images with {len(labels)} labels, "
                f"for a memory of at most {self.capacity}"
            )
        self.images, self.labels = images.to(self.images.device, copy=True), labels

    def _keep(self, images: Tensor, kept: Sequence[int]) -> None:
        """Of the stored images followed by ``images``, those numbered ``kept``, in that order."""
        stored = self.images.to(images.dtype)
        pool = torch.cat([stored, images]) if stored.numel() else images
        self.images = pool.detach()[torch.tensor(kept, device=pool.device)]  # a copy


class BalancedMemory(ClassMemory, ABC):
    """A memory that takes every image and, when full, first drops one of a frequent class."""

    def __init__(self, capacity: int, generator: torch.Generator) -> None:
        super().__init__(capacity, generator.device)
        self.generator = generator

    @abstractmethod
    def victim(self, label: int, chance: Sequence[float]) -> int:
        """The place of the image that makes room for one of ``label``; ``chance``: two draws."""

    def add(self, images: Tensor, labels: Tensor) -> None:
        """Store ``images`` (n, 3, H, W) under ``labels`` (n,), one after another."""
        new, start = len(images), len(self)
        if not new:
            return
        kept = list(range(start))
        drawn = self._draw(new) if start + new > self.capacity else []
        for i, label in enumerate(labels.tolist()):
            if len(kept) == self.capacity:
                place = self.victim(label, drawn[i])
                del kept[place], self.labels[place]
            kept.append(start + i)
            self.labels.append(label)
        self._keep(images, kept)

    def _draw(self, count: int) -> list[list[float]]:
        """One draw and one read a batch, not one an image."""
        device = self.generator.device
        drawn: list[list[float]] = torch.rand(
            count, 2, generator=self.generator, device=device
        ).tolist()
        return drawn

    def _of_class(self, label: int) -> list[int]:
        return [place for place, stored in enumerate(self.labels) if stored == label]


class Hus(BalancedMemory):
    """SoTTA's memory: high confidence (the caller's filter), uniform classes.

    When full, a random image of the new image's class goes if that class is among the largest;
    else a random image of a random largest class.
    """

    def victim(self, label: int, chance: Sequence[float]) -> int:
        """A random image of a largest class, the new image's own if it is one."""
        sizes = Counter(self.labels)
        top = max(sizes.values())
        largest = sorted(c for c, n in sizes.items() if n == top)
        places = self._of_class(label if label in largest else _pick(largest, chance[0]))
        return _pick(places, chance[1])


class Rbm(BalancedMemory):
    """STAMP's memory: the oldest image of the class that has long been the largest goes.

    "Long" is a moving average of each class's size, advanced whenever the memory is read.
    """

    def __init__(self, capacity: int, classes: int, generator: torch.Generator) -> None:
        super().__init__(capacity, generator)
        self.average = torch.zeros(classes)  # of each class's size; on the host

    def victim(self, label: int, chance: Sequence[float]) -> int:
        """The oldest image of a class with the largest average; ties are broken at random."""
        average = {c: float(self.average[c]) for c in sorted(set(self.labels))}
        top = max(average.values())
        return self._of_class(_pick([c for c, a in average.items() if a == top], chance[0]))[0]

    def read(self) -> Tensor:
        """The stored images (n, 3, H, W); the averages take one step."""
        sizes = torch.bincount(
            torch.tensor(self.labels, dtype=torch.int64), minlength=len(self.average)
        )
        self.average.mul_(0.9).add_(sizes, alpha=0.1)
        return self.images

    def tensors(self) -> Mapping[str, Tensor]:
        """What it remembers."""
        return {**super().tensors(), "average": self.average}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """As for every memory, with the averages."""
        super().load(tensors)
        self.average.copy_(tensors["average"])


class Cstu(ClassMemory):
    """RoTTA's memory: category-balanced, with timeliness and uncertainty.

    score = age_weight / (1 + exp(-age / capacity)) + uncertainty_weight * H / ln C, high for what
    is old or unsure. A class may hold capacity / C images. A new image replaces the one with the
    highest score, of its class if that is full, else, if the memory is, of the largest classes;
    but only if that score is above its own. Ages count the images seen, stored or not.
    """

    def __init__(
        self,
        capacity: int,
        classes: int,
        device: torch.device,
        *,
        age_weight: float = 1.0,
        uncertainty_weight: float = 1.0,
    ) -> None:
        super().__init__(capacity, device)
        self.quota = capacity / classes
        self.log_classes = math.log(classes) or 1.0  # a single class has no uncertainty to scale
        self.age_weight, self.uncertainty_weight = age_weight, uncertainty_weight
        self.ages: list[int] = []
        self.uncertainties: list[float] = []

    def add(self, images: Tensor, labels: Tensor, uncertainties: Tensor) -> None:
        """Offer ``images`` (n, 3, H, W) with labels and entropies (n,), one after another."""
        start = len(self)
        kept = list(range(start))
        offered = zip(labels.tolist(), uncertainties.tolist(), strict=True)
        for i, (label, uncertainty) in enumerate(offered):
            places = self._candidates(label)
            worst = max(places, key=self._rank) if places else None
            if worst is None or self._stored_score(worst) > self.score(0, uncertainty):
                if worst is not None:
                    del kept[worst], self.labels[worst], self.ages[worst], self.uncertainties[worst]
                kept.append(start + i)
                self.labels.append(label)
                self.ages.append(0)
                self.uncertainties.append(uncertainty)
            self.ages = [age + 1 for age in self.ages]
        self._keep(images, kept)

    def read(self) -> tuple[Tensor, Tensor]:
        """The stored images (n, 3, H, W) and their ages (n,), one unit being the capacity."""
        ages = torch.tensor(self.ages, dtype=torch.float32, device=self.images.device)
        return self.images, ages / self.capacity

    def score(self, age: int, uncertainty: float) -> float:
        """How much an image deserves to go."""
        timeliness = self.age_weight / (1 + math.exp(-age / self.capacity))
        return timeliness + self.uncertainty_weight * uncertainty / self.log_classes

    def tensors(self) -> Mapping[str, Tensor]:
        """What it remembers."""
        ages = torch.tensor(self.ages, dtype=torch.int64)
        uncertainties = torch.tensor(self.uncertainties, dtype=torch.float64)
        return {**super().tensors(), "ages": ages, "uncertainties": uncertainties}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """As for every memory, with ages and entropies."""
        super().load(tensors)
        self.ages = tensors["ages"].tolist()
        self.uncertainties = tensors["uncertainties"].tolist()

    def _candidates(self, label: int) -> list[int]:
        """Places of which one must be freed before an image of ``label`` fits; none if it does."""
        sizes = Counter(self.labels)
        if sizes[label] >= self.quota:
            return [p for p, stored in enumerate(self.labels) if stored == label]
        if len(self) < self.capacity:
            return []
        top = max(sizes.values())
        return [p for p, stored in enumerate(self.labels) if sizes[stored] == top]

    def _stored_score(self, place: int) -> float:
        return self.score(self.ages[place], self.uncertainties[place])

    def _rank(self, place: int) -> tuple[float, int, int]:
        """By score; of equal scores the last one, classes in order."""
        return self._stored_score(place), self.labels[place], place


def portions(seen: int, size: int, every: int) -> Iterator[tuple[slice, bool]]:
    """Cut a batch of ``size`` where the count of samples reaches a multiple of ``every``.

    Yields (samples, whether an update is due after them). ``every`` 0: once, after the batch.

    Example:
        >>> list(portions(60, 8, every=64))
        [(slice(0, 4, None), True), (slice(4, 8, None), False)]
    """
    start = 0
    while start < size:
        stop = min(size, start + every - (seen + start) % every) if every else size
        yield slice(start, stop), not every or (seen + stop) % every == 0
        start = stop


def _pick(options: Sequence[int], chance: float) -> int:
    """One of ``options`` by a uniform draw in [0, 1)."""
    return options[int(chance * len(options))]
