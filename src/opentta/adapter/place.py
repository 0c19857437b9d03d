"""Where an adapter lies, and what is asked of a device."""

import faulthandler
import os
import signal
import time
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.nn import functional

from opentta.config import Execution
from opentta.errors import ConfigError


def device_of(device: torch.device | str | int | None, dtype: torch.dtype | None) -> torch.device:
    """The device that ``adapter.to`` was given; a type instead, or beside it, is refused."""
    if dtype is not None or isinstance(device, torch.dtype):
        wanted = dtype or device
        raise ConfigError(
            f"an adapter keeps its model's type, got {wanted}: what it learned is of that type. "
            f"Build another one, opentta.adapt(model.to({wanted}), ...)"
        )
    try:
        target = torch.device(device)  # type: ignore[arg-type]
    except (RuntimeError, TypeError):
        target = torch.device("meta")
    if target.type == "meta":  # holds no values
        raise ConfigError(f"expected a device such as 'cpu' or 'cuda:0', got {device!r}")
    return target


def refuse_options(execution: Execution, device: torch.device) -> None:
    """Options that mean nothing where the model lies, or would only be slow there."""
    if execution.graph and device.type != "cuda":
        raise ConfigError(
            f"graph=True is for a GPU, but the model lies on {device}; "
            "leave it out, or move the model first with model.to('cuda')"
        )
    if execution.precision == "bfloat16" and device.type == "cpu" and not multiplies_bfloat16():
        raise ConfigError(
            "precision='bfloat16' is for a GPU, or for a CPU with units for it (AMX or AVX-512 "
            "BF16), and this CPU has none: it would be slow; leave it out"
        )


@cache
def multiplies_bfloat16() -> bool:
    """Whether this CPU multiplies in bfloat16 itself; True where torch cannot say.

    Some CPUs under a hypervisor report units that end the process when they are used, so a child
    process tries them first.

    Example:
        >>> multiplies_bfloat16() in (True, False)
        True
    """
    told = getattr(torch.cpu, "get_capabilities", None)  # not in older torch
    capabilities: dict[str, Any] = told() if told else {}
    if capabilities.get("architecture") != "x86_64":
        return True
    reported = any(capabilities.get(name, False) for name in ("amx_bf16", "avx512_bf16"))
    return reported and (not hasattr(os, "fork") or _child_survives(_multiply))


def _multiply() -> None:
    torch.set_num_threads(1)  # a forked process has no threads to share work with
    x = torch.ones(64, 64, dtype=torch.bfloat16)
    functional.scaled_dot_product_attention(x[None], x[None], functional.linear(x, x)[None])


def _child_survives(work: Callable[[], None], seconds: float = 20.0) -> bool:
    """Whether a forked copy of this process does ``work`` and ends; it is killed if it hangs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's, of threads that a fork leaves behind
        child = os.fork()
    if child == 0:
        faulthandler.disable()  # a crash here is an answer, not news
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    end = time.monotonic() + seconds
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            ended = os.waitpid(child, 0)
            break
        time.sleep(0.005)
    return ended[1] == 0
