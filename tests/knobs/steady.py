"""Settings under which each field of steady matters on the tiny model.

Its filter always keeps the sample that is least like the past: there is no NOTHING_PASSES.
"""

UNGROUPED = {"group": 0, "guard": False}  # every batch is a step
LIVELY = {"lr": 1e-3, "largest_step": 1.0, "lambda1": 0.5, **UNGROUPED}
KNOBS = {
    "lr": ({}, 2.5e-4, 0.1),
    "lr_psi": ({}, None, 0.5),
    "lr_ladder": ({}, None, 0.1),
    "momentum": ({}, 0.9, 0.0),
    "ensemble": ({}, 0.99, 0.5),
    "weight_temperature": ({}, 1 / 3, 3.0),
    "average": ({}, 0.9, 0.1),
    "start": ({}, 2.0, 1.0),
    "largest_step": ({}, 1.0, 1e-5),
    "lambda1": ({}, 0.01, 1.0),
    "alpha": ({}, 0.3, 1.0),
    "ladder": ({}, "dense", "narrow"),
    "balance": ({}, 0.0, 1.0),
    "balance_slope": ({}, 6.0, 1.0),
    "balance_start": ({"balance": 5.0}, 0.15, 0.5),
    "balance_average": ({}, 0.95, 0.1),
    "score_balance": ({}, 1.0, 0.0),
    "temperature": ({}, 3.0, 1.0),
    "ood_quantile": ({}, 0.8, 0.5),
    "known_quantile": ({}, 0.5, 0.2),
    "known_weight": ({}, 1.0, 0.0),
    "window": ({}, 640, 9),
    "ladder_share": ({"window": 30}, "fixed", "agreement"),
    "familiar": ({}, "off", "rank"),
}
