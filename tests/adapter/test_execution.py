"""Options that say how to run, not what to compute."""

import pytest
import torch

import opentta
from opentta.errors import ConfigError


def test_options_are_no_config_fields(model):
    adapter = opentta.adapt(model, "tent", strict=True, lr=0.1)
    assert adapter.execution.strict and adapter.config.lr == 0.1
    assert not hasattr(adapter.config, "strict")


@pytest.mark.parametrize(
    "option, message",
    [
        ({"precision": "int4"}, "one of 'full'"),
        ({"view_chunk": 0.5}, "int"),
        ({"view_chunk": 0}, "at least 1"),
    ],
)
def test_options_are_checked(model, option, message):
    with pytest.raises(ConfigError, match=f"execution.*{message}"):
        opentta.adapt(model, "tent", **option)


def test_bfloat16_is_refused_on_a_cpu(model):
    with pytest.raises(ConfigError, match="is for a GPU"):
        opentta.adapt(model, "tent", precision="bfloat16")


def test_the_adapter_keeps_the_models_type(model, images):
    adapter = opentta.adapt(model.double(), "ladder_affine")
    assert adapter(images).logits.dtype == torch.float64
    assert all(p.dtype == torch.float64 for p in adapter.params)
