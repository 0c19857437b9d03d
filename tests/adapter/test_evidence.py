"""Evidence from labels: exact values, bets that are fair at 1/2, alarms that are rarely false."""

from bisect import bisect_left
from dataclasses import asdict
from fractions import Fraction
from math import comb, exp, log

import numpy as np
import pytest

from opentta.adapter.evidence import Evidence, log_evidence

COUNTS = [(k, m) for k in range(0, 40, 3) for m in range(0, 40, 3)]
LARGE = [(2000, 0), (0, 2000), (1500, 1400), (1400, 1500), (5000, 5000), (300, 3000), (20000, 100)]


def exact(k, m):
    """E(k, m): (1 - p)^(m + 1) is expanded, each power of p integrated."""
    powers = ((k + 2 + j, (-1) ** j * comb(m + 1, j)) for j in range(m + 2))
    integral = sum(Fraction(c, n) * (1 - Fraction(1, 2**n)) for n, c in powers)
    return 2 ** (k + m) * 12 * integral


def needed(length, alpha):
    """After 1 ... ``length`` disagreements: how often the source must have been right (length,)."""
    return np.array(
        [
            bisect_left(range(n + 1), -log(alpha), key=lambda k, n=n: log_evidence(k, n - k))
            for n in range(1, length + 1)
        ]
    )


def test_nothing_is_known_at_the_start():
    assert Evidence().worse == Evidence().better == 1


def test_values_are_those_of_the_integral():
    values = np.exp(log_evidence(*np.transpose(COUNTS)))
    np.testing.assert_allclose(values, [float(exact(k, m)) for k, m in COUNTS], rtol=1e-13)


@pytest.mark.parametrize(("k", "m"), [(300, 250), (250, 300), (0, 1200), (900, 0), (700, 1500)])
def test_values_of_many_labels_are_those_of_the_integral(k, m):
    value = exact(k, m)
    shift = value.numerator.bit_length() - value.denominator.bit_length()
    expected = log(value / Fraction(2) ** shift) + shift * log(2)
    assert float(log_evidence(k, m)) == pytest.approx(expected, rel=1e-12, abs=1e-11)


def test_a_coin_neither_gains_nor_loses():
    k, m = np.transpose(COUNTS)
    now, source, adapted = (np.exp(log_evidence(k + i, m + j)) for i, j in [(0, 0), (1, 0), (0, 1)])
    bet = (1.5 / now + k - m) / (k + m + 4)
    assert (bet >= 0).all() and (bet < 1).all()
    np.testing.assert_allclose((source + adapted) / 2, now, rtol=1e-12)
    np.testing.assert_allclose(source, (1 + bet) * now, rtol=1e-12)
    np.testing.assert_allclose(adapted, (1 - bet) * now, rtol=1e-12)


@pytest.mark.parametrize(("k", "m"), LARGE)
def test_many_labels_stay_finite_and_fair(k, m):
    now, source, adapted = log_evidence([k, k + 1, k], [m, m, m + 1])
    assert np.isfinite([now, source, adapted]).all()
    assert (exp(source - now) + exp(adapted - now)) / 2 == pytest.approx(1, rel=1e-9)
    evidence = Evidence(k, m)
    assert 0 < evidence.worse < float("inf") and 0 < evidence.better < float("inf")


def test_the_other_side_is_the_same_test():
    assert Evidence(7, 3).better == Evidence(3, 7).worse


@pytest.mark.parametrize("alpha", [0.05, 0.01])
@pytest.mark.parametrize("chance", [0.5, 0.45])
def test_the_chance_of_a_false_alarm_is_at_most_alpha(chance, alpha):
    """Exact: the distribution of the count, less what has alarmed."""
    quiet = np.ones(1)
    for least in needed(1000, alpha):
        quiet = np.append((1 - chance) * quiet, 0) + np.append(0, chance * quiet)
        quiet[least:] = 0
    assert 0 < 1 - quiet.sum() <= alpha


@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_models_that_are_equally_good_rarely_alarm(alpha):
    """The boundary of the null, looked at after every label."""
    streams, length = 2000, 2000
    rng = np.random.default_rng(0)
    source_only = (rng.random((streams, length)) < 0.5).cumsum(axis=1)
    share = (source_only >= needed(length, alpha)).any(axis=1).mean()
    assert share <= alpha + 2 * (alpha * (1 - alpha) / streams) ** 0.5


def test_a_loss_is_noticed():
    """Ten points: 20 % source only, 10 % adapted only, 70 % both or neither."""
    alarms = []
    for seed in range(100):
        draw = np.random.default_rng(seed).random(1000)
        both = draw < 0.5
        alarms.append(Evidence().walk(both | (draw > 0.8), both | (draw < 0.6), alpha=0.05))
    found = [alarm for alarm in alarms if alarm is not None]
    assert len(found) > 95 and np.median(found) < 250


def test_only_disagreement_counts():
    evidence = Evidence()
    assert evidence.walk([True, False] * 500, [True, False] * 500, alpha=0.9) is None
    assert evidence == Evidence(0, 0)


def test_an_alarm_in_the_middle_is_found_and_everything_counted():
    source, adapted = [True] * 10 + [False] * 40, [False] * 10 + [True] * 40
    evidence = Evidence()
    assert evidence.walk(source, adapted, alpha=0.05) == 7
    assert evidence == Evidence(10, 40) and evidence.worse < 1


def test_labels_may_come_in_parts_and_counts_be_stored_between():
    rng = np.random.default_rng(0)
    source, adapted = rng.random(500) < 0.6, rng.random(500) < 0.4
    whole, parts = Evidence(), Evidence()
    first = whole.walk(source, adapted, alpha=0.01)
    found = []
    for start in range(0, 500, 7):
        parts = Evidence(**asdict(parts))
        part = slice(start, start + 7)
        alarm = parts.walk(source[part], adapted[part], alpha=0.01)
        found += [] if alarm is None else [start + alarm]
    assert parts == whole and found[0] == first
    assert all(type(count) is int for count in asdict(parts).values())


def test_no_labels_no_alarm():
    evidence = Evidence(1, 2)
    assert evidence.walk([], [], alpha=0.05) is None and evidence == Evidence(1, 2)
