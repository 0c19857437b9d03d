"""Settings under which each field of roid matters on the tiny model.

Its filter always keeps the sample that is least like the past: there is no NOTHING_PASSES.
"""

LIVELY = {"lr": 1e-4}
KNOBS = {
    "lr": ({}, 1e-4, 1e-5),
    "momentum": ({}, 0.9, 0.0),
    "nesterov": ({}, True, False),
    "ensemble": ({}, 0.99, 0.9),
    "average": ({}, 0.9, 0.5),
    "temperature": ({}, 1 / 3, 1.0),
    "weighting": ({}, True, False),
    "consistency": ({}, True, False),
    "prior_correction": ({}, True, False),
}
