"""Settings under which each field of RoTTA matters on the tiny model."""

LIVELY = {"capacity": 16, "update_every": 8}
KNOBS = {
    "lr": ({}, 1e-3, 1e-2),
    "momentum": ({}, 0.9, 0.5),
    "capacity": ({}, 16, 8),
    "update_every": ({}, 8, 5),
    "age_weight": ({"capacity": 4}, 1.0, 20.0),
    "uncertainty_weight": ({"capacity": 4}, 1.0, 20.0),
    "teacher_keep": ({}, 0.999, 0.9),
}
