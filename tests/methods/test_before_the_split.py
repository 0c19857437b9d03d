"""ladder_affine steps as it did when it was one method with steady.

The stored values are of the code before the split, on a float64 model, whose rounding is far below
the tolerance on any machine. On the machine that stored them the float32 runs agreed bit for bit.
"""

import json
from pathlib import Path

import pytest
import torch

import opentta
from opentta.testing import tiny_vit

STORED = json.loads((Path(__file__).parent / "golden" / "before_the_split.json").read_text())


@pytest.mark.parametrize("case", STORED)
def test_eight_batches_are_those_of_before(case):
    expected = STORED[case]
    method = case.split(":")[0]
    adapter = opentta.adapt(tiny_vit().double(), method, seed=3, **expected["fields"])
    generator = torch.Generator().manual_seed(5)
    for _ in range(8):
        images = torch.rand(6, 3, 32, 32, generator=generator, dtype=torch.float64)
        out = adapter(images)
    params = torch.cat([p.detach().flatten() for p in adapter.params])
    found = {
        "logits": out.logits[0].tolist(),
        "ood_score": out.ood_score.tolist(),
        "alphas": out.details["ood_score_by_alpha"][0].tolist(),
        "sum": params.sum().item(),
        "norm": params.norm().item(),
    }
    for name, value in found.items():
        assert value == pytest.approx(expected[name], rel=1e-9, abs=1e-12), name
