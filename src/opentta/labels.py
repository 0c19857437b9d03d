"""The labels that stand for no class. Needs no torch."""

UNKNOWN = -1
"""Label of a sample whose class the source model was never trained on (out-of-distribution)."""
UNLABELLED = -2
"""Label of a sample that counts as known, but whose class nobody has said."""
