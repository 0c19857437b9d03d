"""Settings under which each field of OWTTT matters on the tiny model."""

LIVELY = {"lr": 1e-3}
NOTHING_PASSES = None  # every sample is seen or unseen
KNOBS = {
    "lr": ({}, 1e-3, 1e-4),
    "momentum": ({}, 0.9, 0.0),
    "temperature": ({}, 0.1, 0.5),
    "ce_scale": ({}, 1.0, 5.0),
    "alignment_scale": ({}, 1.0, 0.1),
    "align_on": ({}, "seen", "all"),
    "window": ({}, 1280, 8),
    "queue": ({}, 512, 6),
    "max_prototypes": ({}, 100, 2),
    "unsplit": ({"queue": 1}, "seen", "unseen"),  # one score cannot be split
    "missing": ({}, "head", "zero"),
    "predict_from": ({}, "after", "before"),
}
