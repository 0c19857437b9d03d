"""Where an adapter lies, and what is asked of a device."""

import torch

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


def refuse_gpu_options(execution: Execution, device: torch.device) -> None:
    """Options that mean nothing where the model lies."""
    refused = {"precision": device.type == "cpu", "graph": device.type != "cuda"}
    plain = Execution()
    for name, here in refused.items():
        value = getattr(execution, name)
        if here and value != getattr(plain, name):
            raise ConfigError(
                f"{name}={value!r} is for a GPU, but the model lies on {device}; "
                "leave it out, or move the model first with model.to('cuda')"
            )
