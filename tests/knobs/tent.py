"""Settings under which each field of TENT matters on the tiny model."""

KNOBS = {
    "lr": ({}, 0.005, 0.05),
    "optimizer": ({}, "sgd", "adam"),
    "momentum": ({}, 0.9, 0.0),
}
