"""The method keeps every promise of the library, and its own."""

import pytest

import opentta
from opentta.errors import ConfigError
from opentta.testing import batches, check_method, tiny_vit


def test_it_is_found_by_its_entry_point() -> None:
    assert "calm" in opentta.methods()


def test_it_keeps_every_promise() -> None:
    assert "reset_restores_the_start" in check_method("calm", fields={"lr": 0.01})


def test_a_doubtful_stream_moves_the_model_less() -> None:
    adapter = opentta.adapt(tiny_vit(), "calm", lr=0.01)
    trust = [float(adapter(images).details["trust"]) for images in batches(5)]
    assert trust == sorted(trust, reverse=True) and trust[-1] < 0.9


def test_a_rate_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigError, match="lr"):
        opentta.adapt(tiny_vit(), "calm", lr=-1.0)
