"""benchmarks/peers.py: what can be checked without the peers."""

import importlib.util
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch

import opentta
from opentta import assets

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def peers(monkeypatch):
    spec = importlib.util.spec_from_file_location("peers", ROOT / "benchmarks" / "peers.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "peers", module)
    spec.loader.exec_module(module)
    return module


def test_a_peer_that_is_not_installed_says_how_to_install_it(peers, monkeypatch, capsys):
    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(peers, "version", absent)
    monkeypatch.setattr(sys, "argv", ["peers.py"])
    with pytest.raises(SystemExit) as exit:
        peers.main()
    assert exit.value.code == 2
    out = capsys.readouterr().out
    assert "torch-ttt is not installed: pip install --no-deps torch-ttt einops" in out
    assert "pytorch-ood is not installed: pip install --no-deps pytorch-ood" in out


def test_a_peer_that_nobody_knows_is_refused(peers, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["peers.py", "ttab"])
    with pytest.raises(SystemExit):
        peers.main()
    assert "expected torch-ttt or pytorch-ood, got ttab" in capsys.readouterr().err


def test_both_get_the_same_pixels(peers):
    images, labels = peers.photographs("known", 3)
    unknown, negative = peers.photographs("near", 2)
    assert images.shape == (3, 3, 160, 160) and (labels >= 0).all()
    assert unknown.shape == (2, 3, 160, 160) and (negative < 0).all()
    with torch.inference_mode():
        theirs = assets.model()(peers.normalised(images))
    ours = opentta.adapt(assets.model(), "source")(images).logits
    torch.testing.assert_close(ours, theirs)


def test_weights_are_apart_by_what_was_changed(peers):
    adapter = opentta.adapt(assets.model(), "tent")
    model = assets.model()
    assert peers.apart(adapter, model) == 0
    with torch.no_grad():
        model.norm.bias[3] += 0.25
    assert peers.apart(adapter, model) == pytest.approx(0.25)


def test_every_contender_is_timed_in_every_round(peers):
    calls = []
    taken = peers.timed({name: lambda name=name: calls.append(name) for name in "abc"}, 4)
    assert {name: len(seconds) for name, seconds in taken.items()} == {"a": 4, "b": 4, "c": 4}
    assert sorted(calls) == sorted("abc" * 5)  # one round before those that count
