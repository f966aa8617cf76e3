"""The multiple-choice knapsack, against search."""

import itertools
import random

import pytest

from dljob_lab.policies.common.knapsack import solve
from dljob_lab.policies.common.speed_curves import Curve, make_curve


def draw_curve(rng: random.Random) -> Curve:
    """A curve that rises as it likes, so that greed on its hull goes wrong."""
    options = sorted(rng.sample(range(1, 9), rng.randint(1, 4)))
    speeds = sorted(rng.uniform(0.1, 4.0) for _ in options)
    return make_curve(options, speeds)


def add_up(curves: list[Curve], prices: list[float], counts: list[int]) -> float:
    return sum(p * c.speed(n) for p, c, n in zip(prices, curves, counts, strict=True))


def search(curves: list[Curve], prices: list[float], gpus: int) -> float:
    choices = itertools.product(*((0, *curve.options) for curve in curves))
    return max(add_up(curves, prices, list(c)) for c in choices if sum(c) <= gpus)


def test_solution_matches_search():
    rng = random.Random(5)
    for _ in range(150):
        curves = [draw_curve(rng) for _ in range(rng.randint(1, 5))]
        prices = [rng.uniform(0.1, 5.0) for _ in curves]
        gpus = rng.randint(0, 16)
        counts = solve(curves, prices, gpus=gpus)
        assert sum(counts) <= gpus
        assert all(n in (0, *c.options) for n, c in zip(counts, curves, strict=True))
        assert add_up(curves, prices, counts) == pytest.approx(search(curves, prices, gpus))


def test_greedy_choice_is_not_optimal():
    # By worth a GPU the narrow one comes first, and then the wide one does not fit.
    curves, prices = [make_curve([2], [1.0]), make_curve([3], [1.0])], [2.1, 3.0]
    assert solve(curves, prices, gpus=3) == [0, 3]
    assert solve(curves, prices, gpus=3, most_cells=0) == [2, 0], "beyond the limit greed has to do"


def test_large_instances_are_solved():
    curves = [make_curve([8], [1.0])] * 1000
    assert sum(solve(curves, [1.0] * 1000, gpus=4001)) == 4000
    assert solve(curves[:3], [1.0] * 3, gpus=100) == [8, 8, 8]
    assert solve([], [], gpus=5) == []
