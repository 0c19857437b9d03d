"""Settings under which each field of deyo matters on the tiny model."""

LIVELY = {"lr": 0.01, "margin": 0.9, "drop": 0.0}
NOTHING_PASSES = {"drop": 1.0}
KNOBS = {
    "lr": ({}, 0.01, 0.001),
    "momentum": ({}, 0.9, 0.0),
    "margin": ({}, 0.9, 0.5),
    "drop": ({}, 0.0, 0.3),
    "weight_margin": ({}, 0.4, 0.1),
    "patches": ({}, 4, 2),
    "skip_top": ({}, 3, 1),
    "skip_blocks": ({}, (), (0,)),
}
