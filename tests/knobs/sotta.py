"""Settings under which each field of SoTTA matters on the tiny model."""

LIVELY = {"threshold": 0.1}
NOTHING_PASSES = {"threshold": 1.0}
KNOBS = {
    "lr": ({}, 0.005, 0.05),
    "optimizer": ({}, "adam", "sgd"),
    "momentum": ({}, 0.9, 0.5),
    "rho": ({}, 0.05, 0.5),
    "threshold": ({}, 0.1, 0.5),
    "capacity": ({}, 64, 8),
    "update_every": ({}, 0, 9),
    "class_mean": ({"optimizer": "sgd"}, False, True),
    "skip_top": ({}, 3, 1),
    "skip_blocks": ({}, (), (0,)),
    "final_norm": ({}, False, True),
}
