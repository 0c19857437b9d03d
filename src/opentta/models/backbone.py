"""What a backbone offers to a method, whoever wrote the model inside.

A backbone stands around a copy of the user's model. It takes images in [0, 1], normalises them
inside, and opens the places that the methods need: the ordered blocks, the class token after
each block, the input of each attention, Q, K and V before attention, and the final norm + head
as one classifier.
"""

import copy
import operator
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from opentta.errors import ConfigError, NothingToAdaptError, UnsupportedModelError
from opentta.models.compiling import compiled
from opentta.models.normalization import Statistics

Edit = Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""(attention input (B, N, d), qkv (B, N, 3, heads, d_head)) -> qkv, same shape; what it noticed."""

Opened = Callable[[Tensor, Tensor], Tensor]
"""The same without what was noticed."""

MOST_SHAPES = 3  # of batches, for which blocks are compiled, with gradients and without

Tap = Callable[[int, Tensor], None]
"""(block index, tokens after that block (B, N, d)): sees, changes nothing."""


@dataclass(frozen=True)
class Trace:
    """One forward pass, with what happened on the way."""

    logits: Tensor  # (B, C) after the class mask
    class_tokens: list[Tensor]  # depth x (B, d): the class token after each block, before the norm
    penultimate: Tensor  # (B, d): what the head sees
    patches: int  # P, the number of patch tokens
    noticed: list[Tensor]  # by edits, one for each block where there was something


class Backbone(nn.Module, ABC):
    """A Vision Transformer with a class token, behind one protocol.

    ``dim`` is the token width d, ``heads`` the number of attention heads, ``prefix`` the number of
    tokens before the patches (the class token first), ``image_size`` the (H, W) that the model
    takes, or None where it takes any multiple of its patch. Nothing here knows a fixed size.
    """

    family: ClassVar[str]
    whole: ClassVar[str]  # names (a regex) of the modules called as in the model's own forward
    dim: int
    heads: int
    prefix: int
    image_size: tuple[int, int] | None
    patch: int

    def __init__(
        self, model: nn.Module, statistics: Statistics, classes: Sequence[int] | None
    ) -> None:
        super().__init__()
        self.model: Any = _copied(model).eval().requires_grad_(False)
        self.read_shape()
        weight = self.head_weight()
        if len(weight) < 2:
            raise UnsupportedModelError(
                f"this {type(model).__name__} has a head of one class, of which every model is "
                "sure; give it two classes or more (for one logit: a row of zeros beside its own)"
            )
        if weight.shape[1] != self.dim:
            raise UnsupportedModelError(
                f"the head of {type(model).__name__} takes {weight.shape[1]} features but the "
                f"tokens have {self.dim}; give the model a head of nn.Linear({self.dim}, classes)"
            )
        mean, std = statistics
        self.mean: Tensor
        self.std: Tensor
        for name, values in (("mean", mean), ("std", std)):
            buffer = torch.tensor(values).to(weight).view(1, 3, 1, 1)
            self.register_buffer(name, buffer, persistent=False)
        self.is_compiled = False  # blocks may run as compiled by torch.compile
        self._met: Counter[tuple[torch.Size, bool]] = Counter()  # shapes of batches, with gradients
        self._compiled: set[tuple[torch.Size, bool]] = set()  # those for which blocks are
        self.class_index: Tensor | None
        index = _class_index(classes, weight.shape[0], weight.device)
        self.register_buffer("class_index", index, persistent=False)

    # What a family writes -----------------------------------------------------------------

    @abstractmethod
    def read_shape(self) -> None:
        """Fill dim, heads, prefix, image_size and patch from ``self.model``, or refuse it."""

    @property
    @abstractmethod
    def blocks(self) -> Sequence[Any]:
        """The transformer blocks, input side first."""

    @abstractmethod
    def embed(self, images: Tensor) -> Tensor:
        """Normalised images (B, 3, H, W) -> tokens (B, N, d) before the first block."""

    @abstractmethod
    def run_block(
        self, block: Any, tokens: Tensor, edit: Opened | None, class_only: bool
    ) -> Tensor:
        """Tokens (B, N, d) through ``block``, with Q, K and V changed by ``edit``.

        ``class_only``: all tokens are looked at, the class token's answer alone is made: (B, 1, d).
        """

    @abstractmethod
    def final(self, token: Tensor) -> Tensor:
        """The class token of the last block (B, d) -> what the head sees (B, d)."""

    @abstractmethod
    def head_logits(self, features: Tensor) -> Tensor:
        """What the head sees (B, d) -> logits over all classes of the model."""

    @abstractmethod
    def head_weight(self) -> Tensor:
        """The head's weight (classes of the model, d)."""

    @abstractmethod
    def block_norms(self, index: int) -> list[nn.Module]:
        """The norm layers of one block, in order."""

    @abstractmethod
    def outer_norms(self) -> tuple[list[nn.Module], list[nn.Module]]:
        """The norm layers before the first block, and those after the last one."""

    # What every family has ----------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Number of blocks L."""
        return len(self.blocks)

    @property
    def classes(self) -> int:
        """Number of classes C that the logits have, after the class mask."""
        return self.head_weight().shape[0] if self.class_index is None else len(self.class_index)

    @property
    def device(self) -> torch.device:
        """Where the model lies."""
        return self.mean.device

    @property
    def dtype(self) -> torch.dtype:
        """The model's floating-point type."""
        return self.mean.dtype

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, 3, H, W) in [0, 1] -> logits (B, C)."""
        return self.trace(images).logits

    def trace(
        self,
        images: Tensor,
        edits: Callable[[int], Edit | None] | None = None,
        tap: Tap | None = None,
        embedded: Tensor | None = None,
    ) -> Trace:
        """The same forward, keeping the class token after each block.

        ``images`` (B, 3, H, W) lie in [0, 1]; ``edits`` gives for a block's index what
        changes its Q, K and V; ``tap`` is shown the tokens after each block. Of the last block's
        tokens only the class token is needed where there is no tap: the others are not made.
        ``embedded``: what ``embedded(images)`` gave, where it is there already.
        """
        if embedded is None:
            self._meet(images)
        tokens = self._embed(images) if embedded is None else embedded  # (B, N, d)
        patches = tokens.shape[1] - self.prefix
        run = self._through(images)
        class_tokens, noticed = [], []
        for index, block in enumerate(self.blocks):
            is_last = index == self.depth - 1
            class_only = is_last and tap is None and not self._is_watched(block)
            edit = None if edits is None else edits(index)
            tokens, seen = run(self, block, tokens, edit, class_only)
            noticed += [] if seen is None else [seen]
            class_tokens.append(tokens[:, 0])
            if tap is not None:
                tap(index, tokens)
        features = self.final(tokens[:, 0])
        logits = self._masked(self.head_logits(features))
        return Trace(logits, class_tokens, features, patches, noticed)

    def embedded(self, images: Tensor) -> Tensor | None:
        """Tokens (B, N, d) before the first block, to share; None: a norm adapts there."""
        first, _ = self.outer_norms()
        if any(p.requires_grad for norm in first for p in norm.parameters()):
            return None
        self._meet(images)
        with torch.no_grad():
            return self._embed(images)

    def _embed(self, images: Tensor) -> Tensor:
        return self.embed((images.to(self.dtype) - self.mean) / self.std)

    def through(
        self, block: Any, tokens: Tensor, edit: Edit | None, class_only: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Tokens (B, N, d) through ``block``, and what the edit noticed there."""
        if edit is None:
            return self.run_block(block, tokens, None, class_only), None
        noticed: list[Tensor | None] = []

        def opened(z: Tensor, qkv: Tensor) -> Tensor:
            changed, seen = edit(z, qkv)
            noticed.append(seen)
            return changed

        return self.run_block(block, tokens, opened, class_only), noticed[0]

    def _meet(self, images: Tensor) -> None:
        """Count a batch: blocks are compiled for the first shapes that come twice."""
        kind = (images.shape, torch.is_grad_enabled())
        self._met[kind] += 1
        places = MOST_SHAPES - sum(other[1] == kind[1] for other in self._compiled)
        if self.is_compiled and self._met[kind] > 1 and places > 0:
            self._compiled.add(kind)

    def _through(self, images: Tensor) -> Callable[..., tuple[Tensor, Tensor | None]]:
        """How blocks are run on this batch."""
        kind = (images.shape, torch.is_grad_enabled())
        is_ready = self.is_compiled and kind in self._compiled
        return compiled(Backbone.through) if is_ready else Backbone.through

    def _is_watched(self, block: nn.Module) -> bool:
        """Whether a hook inside the block may want every token."""
        kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        return any(getattr(m, kind) for m in block.modules() for kind in kinds)

    def classify(self, token: Tensor) -> Tensor:
        """Final norm and head as one classifier: a class token (B, d) -> logits (B, C)."""
        return self._masked(self.head_logits(self.final(token)))

    def class_weights(self) -> Tensor:
        """The head's weight rows of the classes in use: (C, d)."""
        weight = self.head_weight()
        return weight if self.class_index is None else weight[self.class_index]

    @torch.no_grad()
    def directions(self, count: int) -> Tensor:
        """Directions (count, d) of the class token that move the head's logits most, orthonormal.

        Of the whole head, whatever ``classes`` leaves out; fewer where the head has fewer classes.
        They are the same on every machine, up to rounding.
        """
        weight = self.head_weight().double().cpu()  # (C, d)
        for norm in self.outer_norms()[1]:
            scale = getattr(norm, "weight", None)
            if scale is not None and scale.shape == weight.shape[1:]:
                weight = weight * scale.double().cpu()
        _, vectors = torch.linalg.eigh(weight.T @ weight)  # (d, d), the largest last
        chosen = vectors.T.flip(0)[: min(count, *weight.shape)]
        largest = chosen.gather(1, chosen.abs().argmax(dim=1, keepdim=True))
        found: Tensor = (chosen * largest.sign()).to(self.device, torch.float32)
        return found

    def _masked(self, logits: Tensor) -> Tensor:
        """The class mask, applied here and nowhere else."""
        return logits if self.class_index is None else logits[:, self.class_index]

    def norms(self) -> list[nn.Module]:
        """Every norm layer with parameters, input side first."""
        first, last = self.outer_norms()
        return [*first, *(norm for i in range(self.depth) for norm in self.block_norms(i)), *last]

    def lower_norms(self, skip_top: int, skip_blocks: Sequence[int] = ()) -> list[nn.Parameter]:
        """Scale and shift of the norm layers below the top blocks, without the final norm."""
        return self.norm_parameters(skip_top=skip_top, skip_blocks=skip_blocks, outer=False)

    def norm_parameters(
        self, *, skip_top: int = 0, skip_blocks: Sequence[int] = (), outer: bool = True
    ) -> list[nn.Parameter]:
        """Scale and shift of the norm layers, selected by their place in the network.

        ``skip_top`` leaves out the last blocks, ``skip_blocks`` single ones by index. The norms
        before the first block always belong; ``outer`` says whether the final one does.
        """
        if skip_top < 0 or skip_top >= self.depth:
            raise NothingToAdaptError(
                f"skip_top={skip_top} leaves no block of a backbone with {self.depth} blocks to "
                f"adapt; pass a skip_top between 0 and {self.depth - 1}"
            )
        outside = [i for i in skip_blocks if not 0 <= i < self.depth]
        if outside:
            raise ConfigError(
                f"skip_blocks: expected indices from 0 to {self.depth - 1}, got {outside}"
            )
        first, last = self.outer_norms()
        kept = [i for i in range(self.depth - skip_top) if i not in set(skip_blocks)]
        modules = [*first, *(norm for i in kept for norm in self.block_norms(i))]
        modules += last if outer else []
        unique = dict.fromkeys(p for module in modules for p in module.parameters())
        found = list(unique)  # a norm shared by two blocks counts once
        if not kept:
            raise NothingToAdaptError(
                f"skip_top={skip_top} and skip_blocks={tuple(skip_blocks)} leave no block of "
                f"{self.depth} to adapt; skip fewer"
            )
        if not found:
            raise NothingToAdaptError(
                f"no norm layer with scale or shift found in the {len(kept)} selected blocks of "
                f"{type(self.model).__name__}; norm-based methods need LayerNorm (or RMSNorm) "
                "layers with learnable parameters"
            )
        return found


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except (RuntimeError, TypeError) as error:
        raise UnsupportedModelError(
            f"this {type(model).__name__} cannot be copied ({str(error).splitlines()[0][:80]}...). "
            "A weight that hooks compute from others does that: call torch.nn.utils."
            "remove_weight_norm, or take torch.nn.utils.parametrizations.weight_norm"
        ) from error


def _class_index(classes: Sequence[int] | None, total: int, device: torch.device) -> Tensor | None:
    if classes is None:
        return None
    try:
        index = [operator.index(c) for c in classes]
    except TypeError:
        index = []
    if len(index) < 2 or len(set(index)) != len(index) or min(index) < 0 or max(index) >= total:
        raise ConfigError(
            f"classes must be distinct indices between 0 and {total - 1}, at least two; got "
            f"{str(classes)[:60]}"
        )
    return torch.tensor(index, device=device)


def attention(qkv: Tensor, class_only: bool) -> Tensor:
    """Plain multi-head attention: qkv (B, N, 3, heads, d_head) -> (B, N or 1, heads * d_head)."""
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # each (B, heads, N, d_head)
    mixed = functional.scaled_dot_product_attention(q[:, :, :1] if class_only else q, k, v)
    return mixed.transpose(1, 2).flatten(2)  # (B, N or 1, heads * d_head)


def learnable(modules: Sequence[nn.Module | None]) -> list[nn.Module]:
    """The modules that exist and have parameters of their own."""
    return [m for m in modules if m is not None and next(_own(m), None) is not None]


def _own(module: nn.Module) -> Iterator[nn.Parameter]:
    return module.parameters(recurse=False)


def refuse_batch_norm(model: nn.Module) -> None:
    """Batch statistics would tie the samples of a batch together; no method here expects it."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise UnsupportedModelError(
                f"{type(model).__name__} has a BatchNorm layer ({name}); opentta adapts Vision "
                "Transformers whose norms act on each sample alone (LayerNorm, RMSNorm)"
            )


def linear_head(head: object, model: nn.Module) -> nn.Linear:
    """The head as a Linear layer, or a refusal that says what is missing."""
    if isinstance(head, nn.Linear):
        return head
    remedy = "opentta needs a classifier; build the model with num_classes > 0"
    if isinstance(head, nn.Sequential):
        place = next(name for name, module in model.named_modules() if module is head)
        linear = [i for i, layer in enumerate(head) if isinstance(layer, nn.Linear)]
        remedy = f"it has {len(linear)} Linear layers, and opentta needs one linear layer alone"
        if len(linear) == 1:  # beside dropout, which does nothing when a model serves
            remedy = f"put its Linear layer there, model.{place} = model.{place}[{linear[0]}]"
    raise UnsupportedModelError(
        f"the head of {type(model).__name__} is {type(head).__name__}, not nn.Linear: {remedy}"
    )
