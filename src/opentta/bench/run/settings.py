"""What must be the same in every process that computes a cell: threads, seeds, arithmetic."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from opentta.bench.plan.cells import Cell
from opentta.errors import ConfigError


@contextmanager
def settings(cell: Cell) -> Iterator[None]:
    """Threads, seeds, the arithmetic asked for and, on a GPU, kernels that repeat their results.

    All but the seeds are put back afterwards.
    """
    threads = torch.get_num_threads()
    with (
        threadpool_limits(cell.threads),
        _repeatable(cell.device == "cuda", tf32=cell.precision == "tf32"),
    ):
        torch.set_num_threads(cell.threads)  # numpy and scikit-learn have pools of their own
        random.seed(cell.seed)
        np.random.seed(cell.seed % 2**32)  # noqa: NPY002  # a user's method may draw from it
        torch.manual_seed(cell.seed)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def device_of(cell: Cell) -> torch.device:
    """The device that the cell asks for, or an error where there is none."""
    if cell.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "expected a GPU, as the cell asks for cuda, but torch finds none here; "
            "run it with --device cpu, or on another machine"
        )
    return torch.device(cell.device)


@contextmanager
def _repeatable(on: bool, *, tf32: bool = False) -> Iterator[None]:
    """Left to themselves, gradients of attention and of convolutions differ from run to run.

    It costs 1 to 2 % of a step. An operation that has no repeatable form raises, by torch's rule.
    """
    if not on:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # some versions insist on it
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    flags = cudnn.allow_tf32, cudnn.benchmark, matmul.allow_tf32
    before = torch.are_deterministic_algorithms_enabled()
    lenient = torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn.allow_tf32, cudnn.benchmark, matmul.allow_tf32 = tf32, False, tf32
    torch.use_deterministic_algorithms(True)
    filling: Any = torch.utils.deterministic  # what it has is not declared
    filled = filling.fill_uninitialized_memory
    filling.fill_uninitialized_memory = False  # a tenth of a small model's step, read by nobody
    try:
        yield
    finally:
        filling.fill_uninitialized_memory = filled
        cudnn.allow_tf32, cudnn.benchmark, matmul.allow_tf32 = flags
        torch.use_deterministic_algorithms(before, warn_only=lenient)
