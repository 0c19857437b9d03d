"""What was tried for the embedded backbone: one entry a recipe, the first is the plainest.

Also what the recipes share: the classes of Tiny-ImageNet that are set apart, and the schedule.

All of them: no mixing of images, no label smoothing, LayerNorm, random initialisation, crops and
flips. What each one gave stands in docs/decisions/embedded.md.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from embedded_vit import Shape

NEAR_UNKNOWN = {  # classes of Tiny-ImageNet that are ships or trucks, or next to them
    "n03447447": "gondola",
    "n03662601": "lifeboat",
    "n03796401": "moving van",
    "n03977966": "police van",
    "n04146614": "school bus",
    "n04465501": "tractor",
    "n04487081": "trolleybus",
}

LIKE_KNOWN = {  # classes of Tiny-ImageNet that look like a known class: never taught as unknown
    "n01629819": "fire salamander",
    "n01641577": "bullfrog",
    "n01644900": "tailed frog",
    "n01855672": "goose",
    "n02002724": "black stork",
    "n02056570": "king penguin",
    "n02058221": "albatross",
    "n02085620": "Chihuahua",
    "n02094433": "Yorkshire terrier",
    "n02099601": "golden retriever",
    "n02099712": "Labrador retriever",
    "n02106662": "German shepherd",
    "n02113799": "standard poodle",
    "n02123045": "tabby",
    "n02123394": "Persian cat",
    "n02124075": "Egyptian cat",
    "n02125311": "cougar",
    "n02129165": "lion",
    "n02403003": "ox",
    "n02410509": "bison",
    "n02415577": "bighorn",
    "n02423022": "gazelle",
    "n02437312": "Arabian camel",
    "n02814533": "beach wagon",
    "n03100240": "convertible",
    "n03444034": "go-kart",
    "n03670208": "limousine",
    "n04285008": "sports car",
}


@dataclass(frozen=True)
class Phase:
    """A stretch of training with a learning-rate cycle of its own."""

    data: Literal["cifar", "tiny", "joint"]  # joint: half of each batch, a head for each
    share: float  # of the whole budget
    augment: str
    lr: float = 1e-3
    objective: Literal["classify", "paint"] = "classify"
    seen: float = 1.0  # share of the patches that the network is shown, drawn for each image
    outlier: float = 0.0  # weight of "answer Tiny-ImageNet uniformly" on the head that is shipped
    shuffled: float = 0.0  # weight of the same for known images whose blocks are out of order


@dataclass(frozen=True)
class Recipe:
    """A shape and the phases it goes through."""

    phases: tuple[Phase, ...]
    shape: Shape = Shape()
    drop_path: float = 0.0  # the same in every block
    weight_decay: float = 0.05
    batch: int = 512
    warmup: float = 0.05  # share of a phase
    average: float = 0.999  # weight of the past in the averaged weights
    one_cycle: bool = False  # one learning-rate cycle over all phases


def two_stages(augment: str, **fields: float) -> Recipe:
    """Most of the time with five patches of eight, which is faster, then with all of them."""
    main = Phase("joint", 0.8, augment, lr=1.4e-3, seen=0.625, **fields)
    return Recipe(
        (main, replace(main, share=0.2, seen=1.0)), drop_path=0.05, batch=1024, one_cycle=True
    )


SMALL = Shape(embed_dim=128, depth=8, num_heads=4)
JOINT = Recipe((Phase("joint", 1.0, "moderate"),))

RECIPES = {
    "scratch": Recipe((Phase("cifar", 1.0, "moderate"),)),
    "tiny_then_cifar": Recipe(
        (Phase("tiny", 0.65, "moderate"), Phase("cifar", 0.35, "moderate", lr=3e-4))
    ),
    "joint": JOINT,
    "joint_weak": Recipe((Phase("joint", 1.0, "weak"),), drop_path=0.1),
    "joint_strong": Recipe((Phase("joint", 1.0, "strong"),)),
    "strong_then_weak": Recipe(
        (Phase("joint", 0.75, "strong"), Phase("cifar", 0.25, "weak", lr=2e-4))
    ),
    "paint_then_joint": Recipe(
        (
            Phase("joint", 0.4, "weak", lr=1.5e-3, objective="paint"),
            Phase("joint", 0.6, "moderate", lr=7e-4),
        )
    ),
    "joint_deep": replace(JOINT, shape=Shape(depth=12), drop_path=0.05),
    "joint_wide": replace(JOINT, shape=Shape(embed_dim=256, depth=6, num_heads=4)),
    "joint_small": replace(JOINT, shape=SMALL),
    # Round two: longer training, and unknown images answered uniformly (outlier exposure,
    # Hendrycks et al. 2019).
    "weak": two_stages("weak"),
    "oe_weak": two_stages("weak", outlier=0.25),
    "oe_moderate": two_stages("moderate", outlier=0.25),
    "oe_wild": two_stages("wild", outlier=0.25),
    "oe_shuffle": two_stages("weak", outlier=0.25, shuffled=0.1),
    # Round three: nothing is taught about unknown images; a size for three minutes on two cores.
    "wild": two_stages("wild"),
    "wild_small": replace(two_stages("wild"), shape=SMALL),
    "calm_small": replace(two_stages("calm"), shape=SMALL),
    "moderate_small": replace(two_stages("moderate"), shape=SMALL),
    "tiny_only_head": Recipe(  # features of 193 classes; CIFAR-10 meets them only briefly
        (Phase("tiny", 0.85, "moderate"), Phase("cifar", 0.15, "moderate", lr=1e-4))
    ),
}


class Clock:
    """How much of the budget is spent: of the steps, or of the seconds since the start."""

    def __init__(self, steps: int | None, seconds: float | None, began: float) -> None:
        self.steps, self.seconds, self.began = steps, seconds, began
        self.count, self.ready = -1, began

    def fraction(self) -> float:
        """0 to 1; the first two steps (where a compiler works) do not count in seconds."""
        self.count += 1
        if self.steps is not None:
            return self.count / self.steps
        assert self.seconds is not None
        if self.count <= 2:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.ready = time.monotonic()
        end = self.began + self.seconds
        return (time.monotonic() - self.ready) / max(1e-9, end - self.ready)


def phases(recipe: Recipe, clock: Clock) -> Iterator[tuple[int, Phase, float]]:
    """(index, phase, lr) for every step, until the clock has run out."""
    ends = np.cumsum([p.share for p in recipe.phases]) / sum(p.share for p in recipe.phases)
    while (now := clock.fraction()) < 1:
        index = min(int(np.searchsorted(ends, now, side="right")), len(ends) - 1)
        phase, start, end = recipe.phases[index], ends[index - 1] if index else 0.0, ends[index]
        if recipe.one_cycle:
            start, end = 0.0, 1.0
        local = (now - start) / (end - start)
        warm = min(1.0, local / recipe.warmup)
        yield index, phase, phase.lr * warm * 0.5 * (1 + math.cos(math.pi * local))
