"""Builds adapters of any method around the tiny model, the way the promises need them."""

import importlib

import torch
from material import tiny_vit

import opentta

NOT_ENTROPY = {"owttt"}  # scored by distance to prototypes


def knobs(method):
    """tests/knobs/<method>.py: KNOBS, LIVELY, NOTHING_PASSES."""
    return importlib.import_module(f"knobs.{method}")


def source_loader():
    generator = torch.Generator().manual_seed(9)
    return [torch.rand(8, 3, 32, 32, generator=generator) for _ in range(4)]


class Maker:
    """make(**fields) -> a fresh adapter; fields override the method's lively settings."""

    def __init__(self, method):
        self.method = method
        self.model = tiny_vit()
        self.lively = getattr(knobs(method), "LIVELY", {})
        self.nothing_passes = getattr(knobs(method), "NOTHING_PASSES", None)
        self.entropy_scored = method not in NOT_ENTROPY

    def __call__(self, **fields):
        return self.around(self.model, **fields)

    def around(self, model, **fields):
        adapter = opentta.adapt(model, self.method, **{**self.lively, **fields})
        if adapter.needs_source:
            adapter.fit_source(source_loader())
        return adapter
