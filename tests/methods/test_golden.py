"""A tiny seeded stream through every method, pinned: a change of results is never silent.

When a change is meant, raise the method's ``version`` and write the numbers anew:
``PYTHONPATH=tests python tests/methods/test_golden.py NAME``.
"""

import json
import sys
from pathlib import Path

import pytest
from makers import Maker

import opentta
from opentta.testing import batches

GOLDEN = Path(__file__).parent / "golden" / "methods.json"
BATCHES = 5


def numbers(method):
    """Logits and scores of the last batch, and how far the parameters went."""
    make = Maker(method)
    adapter, start = make(), make()
    for images in batches(BATCHES):
        out = adapter(images)
    moved = [
        (p - q).double().norm().item() for p, q in zip(adapter.params, start.params, strict=True)
    ]
    return {
        "version": adapter.version,
        "logits": [round(v, 6) for v in out.logits[:2].flatten().tolist()],
        "ood_score": [round(v, 6) for v in out.ood_score.tolist()],
        "moved": round(sum(m * m for m in moved) ** 0.5, 6),
    }


@pytest.mark.parametrize("method", opentta.methods())
def test_numbers_are_the_pinned_ones(method):
    golden = json.loads(GOLDEN.read_text())
    assert method in golden, "write them as the docstring above says"
    found, pinned = numbers(method), golden[method]
    assert found["version"] == pinned["version"]
    assert found["logits"] == pytest.approx(pinned["logits"], rel=1e-3, abs=2e-4)
    assert found["ood_score"] == pytest.approx(pinned["ood_score"], rel=1e-3, abs=2e-4)
    assert found["moved"] == pytest.approx(pinned["moved"], rel=1e-3, abs=1e-5)


if __name__ == "__main__":  # the methods that are named, or all
    table = json.loads(GOLDEN.read_text())
    table |= {method: numbers(method) for method in sys.argv[1:] or opentta.methods()}
    GOLDEN.write_text(json.dumps(table, indent=1) + "\n")
