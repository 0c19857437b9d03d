"""Source has nothing to set."""

KNOBS: dict = {}
