"""Settings under which each field of CoTTA matters on the tiny model."""

LIVELY = {"lr": 1e-3, "augment_below": 1.0, "views": 2}  # every batch takes the way over views
KNOBS = {
    "lr": ({}, 1e-3, 1e-2),
    "optimizer": ({}, "adam", "sgd"),
    "momentum": ({}, 0.9, 0.5),
    "nesterov": ({"optimizer": "sgd"}, True, False),
    "teacher_keep": ({}, 0.999, 0.9),
    "restore": ({}, 0.0005, 0.1),
    "augment_below": ({}, 0.0, 1.0),
    "views": ({}, 2, 3),
    "symmetric": ({}, True, False),
}
