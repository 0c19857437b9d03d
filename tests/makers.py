"""Makers of adapters with the settings that each method needs to be tested."""

import importlib

from opentta import testing

SKIP = {"owttt": ("the_score_rises_with_uncertainty",)}  # scored by distance to prototypes


def knobs(method):
    """tests/knobs/<method>.py: KNOBS, LIVELY, NOTHING_PASSES."""
    return importlib.import_module(f"knobs.{method}")


def Maker(method):
    """make(**fields) -> a fresh adapter; fields override the method's lively settings."""
    own = knobs(method)
    return testing.Maker(method, getattr(own, "LIVELY", {}), getattr(own, "NOTHING_PASSES", None))
