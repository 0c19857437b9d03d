"""How many labels it takes to notice that the adapted model is worse than the source.

    python benchmarks/label_power.py

Simulated streams of labelled images, drawn at random: on a share of them only the source is right,
on another only the adapted model. Prints after how many labels the alarm of `adapter.evidence`
comes (median / 90th percentile), the same for other densities of the probability p that is averaged
over, the same after a time in which the adapted model was as good or better, and the share of
streams with an alarm where both models are equally good. docs/decisions/labels.md reads it.
"""

import argparse
from collections.abc import Callable
from math import log

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, betaln, logsumexp

from opentta.adapter.evidence import log_evidence

LOSSES = [  # percent of the labels: only the source right, only the adapted model right
    *[(12, 2), (15, 5), (20, 10), (30, 20)],
    *[(6, 1), (10, 5), (15, 10), (25, 20)],
]
ALPHAS = (0.05, 0.01)
LENGTH = 3000  # disagreements in a stream

Wealth = Callable[[int, int], float]  # log of it, by the counts k and m
Outcomes = npt.NDArray[np.bool_]  # (streams, n): the source was the one that was right
Counts = npt.NDArray[np.int64]


def beta(shape: float) -> Wealth:
    """The density of p is proportional to (p (1 - p))^(shape - 1) on [1/2, 1]."""

    def wealth(k: int, m: int) -> float:
        a, b = k + shape, m + shape
        whole = betaln(a, b) - betaln(shape, shape) + (k + m + 1) * log(2)
        return float(whole + np.log(betainc(b, a, 0.5)))

    return wealth


def bets(*sizes: float) -> Wealth:
    """The mean of a few bets that are never changed."""
    up, down = np.log1p(sizes), np.log1p(np.negative(sizes))
    return lambda k, m: float(logsumexp(k * up + m * down) - log(len(sizes)))


def library(k: int, m: int) -> float:
    """The library's own, beta(2)."""
    return float(log_evidence(k, m))


def needed(wealth: Wealth, alpha: float) -> Counts:
    """How often the source must have been right in 1 ... LENGTH disagreements for an alarm."""
    counts, k = [], 0
    for n in range(1, LENGTH + 1):
        while k <= n and wealth(k, n - k) < -log(alpha):  # what was too few stays too few
            k += 1
        counts.append(k)
    return np.array(counts)


def alarms(source: Outcomes, least: Counts) -> Counts:
    """The disagreement at which each stream alarms, from 1; 0 where none does."""
    passed = source.cumsum(axis=1) >= least[: source.shape[1]]
    first: Counts = np.where(passed.any(axis=1), passed.argmax(axis=1) + 1, 0)
    return first


def false_alarms(least: Counts) -> float:
    """The exact chance of an alarm within LENGTH tosses of a fair coin."""
    alive = np.ones(1)  # chance of each count, without an alarm so far
    for count in least:
        alive = (np.append(alive, 0) + np.append(0, alive)) / 2
        alive[count:] = 0
    return float(1 - alive.sum())


def labels(source: Outcomes, least: Counts, rate: float, before: int = 0) -> str:
    """Labels after the first ``before`` disagreements: median / 90th percentile."""
    first = alarms(source, least)
    waits = np.maximum(first - before, 1)
    agreed = np.random.default_rng(1).negative_binomial(waits, rate)
    shown = np.where(first > 0, waits + agreed, np.inf)
    middle, most = np.quantile(shown, [0.5, 0.9], method="inverted_cdf")
    return f"{middle:,.0f} / {most:,.0f}"


def table(title: str, columns: list[str], rows: dict[str, list[str]]) -> None:
    """One table in Markdown."""
    print(f"\n{title}\n\n| | {' | '.join(columns)} |\n|---{'|---' * len(columns)}|")
    for name, cells in rows.items():
        print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--streams", type=int, default=2000)
    streams = parser.parse_args().streams
    rng = np.random.default_rng(0)

    def coins(chance: float, count: int = LENGTH) -> Outcomes:
        return rng.random((streams, count)) < chance

    densities = {
        "uniform": beta(1),
        "p (1 - p)": library,
        "its square": beta(3),
        "4th power": beta(5),
        "bets .1 .2 .4 .8": bets(0.1, 0.2, 0.4, 0.8),
    }
    least = {a: {name: needed(way, a) for name, way in densities.items()} for a in ALPHAS}
    mine = {a: ways["p (1 - p)"] for a, ways in least.items()}
    names = [f"alpha {a}" for a in ALPHAS]
    found: dict[str, list[str]] = {}
    compared: dict[float, dict[str, list[str]]] = {a: {} for a in ALPHAS}
    for k, m in LOSSES:
        name, rate, source = f"{k - m} points: {k} % / {m} %", (k + m) / 100, coins(k / (k + m))
        found[name] = [labels(source, mine[a], rate) for a in ALPHAS]
        for a in ALPHAS:
            best = needed(bets((k - m) / (k + m)), a)  # of those who know the rates
            compared[a][name] = [labels(source, n, rate) for n in [*least[a].values(), best]]
    table("Labels until the alarm", names, found)
    for a, rows in compared.items():
        table(f"By the density of p, alpha {a}", [*densities, "the best bet"], rows)

    rows = {}
    for k, m in [(0, 0), (100, 100), (50, 100), (100, 200)]:
        past = np.tile(np.repeat([False, True], [m, k]), (streams, 1))  # in an order without alarm
        source = np.hstack([past, coins(2 / 3, LENGTH - k - m)])
        rows[f"{k} / {m}"] = [labels(source, mine[a], 0.3, before=k + m) for a in ALPHAS]
    table("10 points: 20 % / 10 %, after a past of source only / adapted only", names, rows)

    equal = {
        "at random": coins(0.5),
        "of images that come five times in a row": np.repeat(coins(0.5, LENGTH // 5), 5, axis=1),
        "where the adapted model is unsure, 60 : 40 there": coins(0.6),
    }
    rows = {"at random, exact": [f"{100 * false_alarms(mine[a]):.1f} %" for a in ALPHAS]}
    rows |= {
        name: [f"{100 * (alarms(source, mine[a]) > 0).mean():.1f} %" for a in ALPHAS]
        for name, source in equal.items()
    }
    table(f"Models equally good: alarms within {LENGTH:,} disagreements", names, rows)


if __name__ == "__main__":
    main()
