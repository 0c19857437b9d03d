"""Settings under which each field of STAMP matters on the tiny model."""

LIVELY = {"margin": 0.9, "views": 3, "capacity": 16}
NOTHING_PASSES = {"margin": 0.0}
KNOBS = {
    "lr": ({}, 0.05, 0.01),
    "rho": ({}, 0.05, 0.5),
    "margin": ({}, 0.9, 0.4),
    "capacity": ({}, 16, 4),
    "views": ({}, 3, 1),
    "padding": ({"flip": 0.0}, 4, 0),
    "flip": ({"padding": 0}, 0.5, 0.0),
    "consistency": ({"lr": 0.5, "rho": 1.0}, False, True),
    "schedule": ({"horizon": 2}, "anneal", "periodic"),
    "horizon": ({}, 750, 2),
    "floor": ({"horizon": 2}, 0.0, 0.5),
    "skip_top": ({}, 3, 1),
    "skip_blocks": ({}, (), (0,)),
}
