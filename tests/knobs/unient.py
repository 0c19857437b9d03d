"""Settings under which each field of UniEnt matters on the tiny model."""

NOTHING_PASSES = None  # every sample is ID or OOD
KNOBS = {
    "lr": ({}, 0.001, 0.01),
    "momentum": ({}, 0.9, 0.0),
    "ood_weight": ({}, 0.1, 1.0),
    "marginal_weight": ({}, 0.1, 1.0),
    "score": ({}, "entropy", "energy"),
}
