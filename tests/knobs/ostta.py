"""Settings under which each field of OSTTA matters on the tiny model."""

NOTHING_PASSES = {"tolerance": -2.0}  # asks for a gain in confidence that no sample can show
KNOBS = {
    "lr": ({}, 0.001, 0.01),
    "momentum": ({}, 0.9, 0.0),
    "marginal_weight": ({}, 0.2, 1.0),
    "tolerance": ({}, 1e-7, 0.5),
    "score": ({}, "entropy", "energy"),
    "official_quirks": ({"tolerance": -2.0}, False, True),
}
