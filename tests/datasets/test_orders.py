"""Orders are permutations that do what their name says and depend on the seed alone."""

import itertools

import numpy as np
import pytest

from opentta.datasets.orders import Draw, Order, arrange
from opentta.errors import ConfigError, UnknownNameError

LABELS = np.concatenate([np.repeat(np.arange(10), 20), np.full(60, -1)])
ORIGINS = np.concatenate([np.zeros(200, int), np.ones(40, int), np.full(20, 2)])
ORDERS = [
    Order(),
    Order(labels="dirichlet"),
    Order(labels="dirichlet", concentration=5.0, slots=4),
    Order(ood="bursts", burst=10),
    Order(labels="dirichlet", ood="bursts", burst=7),
]


def runs(values):
    return [(value, len(list(group))) for value, group in itertools.groupby(values)]


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_is_a_permutation_fixed_by_the_seed(order):
    first = arrange(LABELS, ORIGINS, order, Draw(0, "fog"))
    assert sorted(first) == list(range(260))
    assert np.array_equal(first, arrange(LABELS, ORIGINS, order, Draw(0, "fog")))
    assert not np.array_equal(first, arrange(LABELS, ORIGINS, order, Draw(1, "fog")))
    assert not np.array_equal(first, arrange(LABELS, ORIGINS, order, Draw(0, "snow")))


def test_the_draw_is_pinned():
    assert Draw(0, "fog", "textures").permutation(6).tolist() == [0, 1, 5, 2, 4, 3]
    assert Draw(2024, "snow", "places", 0).integers(15, 6).tolist() == [10, 14, 14, 14, 5, 2]


def test_a_shuffle_spreads_the_ood_samples_over_the_whole_stream():
    order = arrange(LABELS, ORIGINS, Order(), Draw(0))
    halves = (ORIGINS[order][:130] > 0).sum(), (ORIGINS[order][130:] > 0).sum()
    assert min(halves) > 15


def test_dirichlet_makes_classes_cluster_in_time():
    def mean_run(order):
        arranged = LABELS[arrange(LABELS[:200], ORIGINS[:200], order, Draw(0))]
        return 200 / len(runs(arranged))

    shuffled = mean_run(Order())
    weak = mean_run(Order(labels="dirichlet", concentration=10.0))
    strong = mean_run(Order(labels="dirichlet", concentration=0.05))
    assert shuffled < 1.5 < weak < strong


def test_bursts_are_unbroken_runs_of_one_set():
    origins = ORIGINS[arrange(LABELS, ORIGINS, Order(ood="bursts", burst=10), Draw(3))]
    lengths = [(origin, length) for origin, length in runs(origins) if origin]
    assert all(length % 10 == 0 for _, length in lengths)
    assert len(lengths) <= 6


def test_a_stream_of_ood_alone_or_of_id_alone_can_be_arranged():
    for origins in (np.zeros(5, int), np.ones(5, int)):
        for order in ORDERS:
            assert sorted(arrange(np.zeros(5, int), origins, order, Draw(0))) == [0, 1, 2, 3, 4]


def test_mistakes_are_named():
    with pytest.raises(UnknownNameError, match="did you mean 'dirichlet'"):
        Order(labels="dirichlett")
    with pytest.raises(UnknownNameError, match="bursts"):
        Order(ood="burst")
    with pytest.raises(ConfigError, match="concentration > 0"):
        Order(concentration=0.0)
