"""Settings under which each field of EATA matters on the tiny model."""

LIVELY = {"margin": 0.7, "redundancy": 0.9}
NOTHING_PASSES = {"margin": 0.0}
KNOBS = {
    "lr": ({}, 5e-4, 0.05),
    "momentum": ({}, 0.9, 0.0),
    "margin": ({}, 0.7, 0.4),
    "redundancy": ({}, 0.9, 0.3),
    "average": ({}, 0.9, 0.1),
    "fisher_weight": ({}, 100.0, 2000.0),
}
