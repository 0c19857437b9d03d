"""Settings under which each field of SAR matters on the tiny model."""

LIVELY = {"margin": 0.7, "recover_below": 0.0}
NOTHING_PASSES = {"margin": 0.0}
KNOBS = {
    "lr": ({}, 0.01, 0.1),
    "momentum": ({}, 0.9, 0.0),
    "margin": ({}, 0.7, 0.4),
    "rho": ({}, 0.05, 0.5),
    "recover_below": ({}, 0.0, 2.0),
    "average": ({}, 0.9, 0.1),
    "skip_top": ({}, 3, 1),
    "skip_blocks": ({}, (), (0,)),
    "official_quirks": ({"recover_below": 2.0}, False, True),
}
