"""Every field of every method's config changes what the method does, or it is dead."""

import dataclasses

import pytest
from makers import Maker, knobs

import opentta
from opentta import registry
from opentta.testing import batches, equal_runs, run, same, weights

FIELDS = [
    (name, field.name)
    for name in opentta.methods()
    for field in dataclasses.fields(registry.method(name).Config)
]


@pytest.mark.parametrize("method, field", FIELDS, ids=lambda v: v)
def test_field_is_alive(method, field):
    entries = knobs(method).KNOBS
    assert field in entries, f"tests/knobs/{method}.py has no entry for {field}"
    settings, one, other = entries[field]
    make = Maker(method)
    stream = batches(6)
    first, second = make(**settings, **{field: one}), make(**settings, **{field: other})
    start_differs = not same(weights(first), weights(second))
    runs = equal_runs(run(first, stream), run(second, stream))
    assert start_differs or not runs or not same(weights(first), weights(second)), (
        f"{method}.{field}: {one!r} and {other!r} do the same under {settings}"
    )


@pytest.mark.parametrize("method", opentta.methods())
def test_no_entry_without_a_field(method):
    fields = {f.name for f in dataclasses.fields(registry.method(method).Config)}
    assert set(knobs(method).KNOBS) == fields
