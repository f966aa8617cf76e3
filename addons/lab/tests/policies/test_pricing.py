"""Hulls of speed curves and prices of GPUs, against closed forms and search."""

import itertools
import random

import numpy as np
import pytest

from dljob.core.policies.common.hulls import Step, make_steps
from dljob_lab.policies.common.pricing import fill, find_prices
from dljob_lab.policies.common.speed_curves import Curve, make_curve


def make_power_hull(p: float, most: float) -> tuple[Step, ...]:
    """A chain of short steps that is k**p to seven digits, from a billionth of the GPUs up."""
    grid = [0.0, *np.geomspace(most * 1e-9, most, 8_000)]
    return tuple(Step(b - a, (b**p - a**p) / (b - a)) for a, b in itertools.pairwise(grid))


def draw_concave(rng: random.Random, most: int) -> Curve:
    gains = sorted((rng.uniform(0.05, 1.0) for _ in range(rng.randint(1, most))), reverse=True)
    return make_curve(range(1, len(gains) + 1), list(itertools.accumulate(gains)))


def search_best(curves: list[Curve], prices: list[float], gpus: int) -> float:
    """The most that price x speed adds up to, over all ways to share the GPUs out."""
    choices = [(0, *curve.options) for curve in curves]
    return max(
        sum(p * c.speed(k) for p, c, k in zip(prices, curves, counts, strict=True))
        for counts in itertools.product(*choices)
        if sum(counts) <= gpus
    )


def test_hull_starts_at_zero_and_skips_lower_points():
    steps = make_steps([1, 2, 4], [1.0, 1.5, 3.2])
    assert [step.gpus for step in steps] == [1, 3]
    assert [step.gain for step in steps] == pytest.approx([1.0, 2.2 / 3])


def test_options_without_gain_are_dropped():
    curve = make_curve([1, 2, 4, 8], [1.0, 0.9, 2.0, 2.0])
    assert (curve.options, curve.speeds) == ((1, 4), (0.5, 1.0))
    assert (curve.least, curve.peak) == (1, 4)


def test_exponent_of_a_power_is_found():
    options = [1, 2, 4, 8]
    assert make_curve(options, [k**0.7 for k in options]).fit_exponent(8) == pytest.approx(0.7)
    assert make_curve([4], [1.0]).fit_exponent(8) is None


def test_prices_of_three_root_speeds_are_known():
    prices = find_prices([make_power_hull(0.5, 1.0)] * 3, [1.0] * 3, gpus=1.0)
    # The first to end has the highest price.
    assert prices == pytest.approx([5**0.5, 3**0.5, 1.0], rel=1e-6)


@pytest.mark.parametrize("p", [0.3, 0.5, 0.8])
def test_total_flow_matches_hesrpt(p: float):
    gpus, sizes = 64.0, [100.0, 40.0, 7.0, 3.0]  # Descending, as in the closed form.
    c = 1 / (1 - p)
    known = sum(
        size * (i**c - (i - 1) ** c) ** (1 / c) for i, size in enumerate(sizes, start=1)
    ) / (gpus**p)
    prices = find_prices([make_power_hull(p, gpus)] * 4, [1.0] * 4, gpus=gpus)
    total = sum(price * size for price, size in zip(prices, reversed(sizes), strict=True))
    assert total == pytest.approx(known, rel=1e-6)


def test_best_share_equals_the_sum_of_weights():
    rng = random.Random(1)
    for _ in range(40):
        curves = [draw_concave(rng, 5) for _ in range(rng.randint(1, 4))]
        weights = [rng.choice([0.5, 1.0, 3.0]) for _ in curves]
        gpus = rng.randint(1, 7)
        prices = find_prices([curve.steps for curve in curves], weights, gpus=gpus)
        for first in range(len(curves)):
            best = search_best(curves[first:], prices[first:], gpus)
            assert best == pytest.approx(sum(weights[first:]))


def test_filling_matches_search():
    rng = random.Random(3)
    for _ in range(60):
        curves = [draw_concave(rng, 5) for _ in range(rng.randint(1, 4))]
        prices = [rng.uniform(0.1, 5.0) for _ in curves]
        gpus = rng.randint(1, 9)
        counts = fill(curves, prices, gpus=gpus)
        reached = sum(p * c.speed(k) for p, c, k in zip(prices, curves, counts, strict=True))
        assert sum(counts) <= gpus
        assert reached == pytest.approx(search_best(curves, prices, gpus))


def test_step_that_does_not_fit_is_skipped():
    wide = make_curve([2, 3, 8], [2.0, 2.5, 8.0])  # One straight step of 8.
    narrow = make_curve([1], [1.0])
    assert fill([wide, narrow], [10.0, 1.0], gpus=4) == [3, 1]
