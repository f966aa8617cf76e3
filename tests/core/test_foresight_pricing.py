"""The worth of a GPU to each job in ``foresight``: curves and prices."""

import itertools
import math
import random

import pytest

from dljob.core.policies.common.hulls import Step
from dljob.core.policies.foresight.curves import Curve, make_curve, narrow
from dljob.core.policies.foresight.pricing import find_prices, fix_sizes
from dljob_lab.policies.common import pricing
from tests.bids import list_prices, make_bid, make_bids

ROOTS = {gpus: math.sqrt(gpus) for gpus in range(1, 601)}
FEW = {1: 1.0, 2: 1.8, 3: 2.4, 4: 2.8}


def curve_of(speeds: dict[int, float]) -> Curve:
    curve = make_curve("", speeds.items())
    assert curve is not None
    return curve


def test_gpu_counts_without_gain_are_no_options():
    curve = curve_of({1: 1.0, 2: 1.0, 3: 2.0, 4: 1.9})
    assert curve.options == ((1, 1.0), (3, 2.0))
    assert curve.top == 2.0
    assert set(curve.speeds) == {1, 2, 3, 4}


def test_hull_is_concave_and_above_all_speeds():
    chance = random.Random(7)
    for _ in range(50):
        speeds = {gpus: chance.uniform(0.1, 5.0) for gpus in chance.sample(range(1, 20), 6)}
        curve = curve_of(speeds)
        assert all(
            curve.hull[min(gpus, len(curve.hull) - 1)] >= speed - 1e-9
            for gpus, speed in speeds.items()
        )
        assert all(more <= fewer + 1e-9 for fewer, more in itertools.pairwise(curve.steps))
        assert curve.hull[-1] == pytest.approx(max(speeds.values()))


def size_at(worth: float, *, supply: int = 8, least: int = 1) -> int:
    curve = curve_of({gpus: ROOTS[gpus] for gpus in range(least, 9)})
    ((gpus, speed),) = narrow(curve, weight=1.0, worth=worth, supply=supply).options
    assert speed == ROOTS[gpus]
    return gpus


def test_fixed_size_falls_with_the_worth_of_a_gpu():
    assert size_at(0.0) == 8
    sizes = [size_at(worth / 50.0) for worth in range(51)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 1


def test_fixed_size_stays_within_the_supply_if_possible():
    assert size_at(0.0, supply=3) == 3
    assert size_at(0.0, supply=3, least=4) == 4


@pytest.mark.parametrize("supply", [4, 7, 64])
def test_cost_of_a_fixed_size_is_the_integral_of_its_worth(supply):
    """Two sizes cost the same at the speeds that this test works out by adding up small parts."""
    parts = 20_000
    first, second = 1, supply // 2
    taken = [
        math.fsum(
            gpus / parts * 0.1 * (supply + 1) / (supply + 1 - (n + 0.5) * gpus / parts)
            for n in range(parts)
        )
        for gpus in (first, second)
    ]
    even = (1.0 + taken[1]) / (1.0 + taken[0])
    for factor, best in ((0.999, first), (1.001, second)):
        curve = curve_of({first: 1.0, second: even * factor})
        (option,) = narrow(curve, weight=1.0, worth=0.1, supply=supply).options
        assert option[0] == best


def test_only_waiting_jobs_of_fixed_size_bid_for_one_number():
    waits = make_bid("waits", ROOTS, keeps_first=True)
    others = [make_bid("runs", ROOTS, holds=2, keeps_first=True), make_bid("saves", ROOTS)]
    before = [other.curves for other in others]
    assert fix_sizes([waits, *others], {"": 600}, worths={"": 0.1})
    assert len(waits.curve.options) == 1
    assert [other.curves for other in others] == before
    assert waits.alone == 1.0
    assert not fix_sizes(others, {"": 600}, worths={"": 0.1})


def test_prices_of_root_speeds_match_hesrpt():
    # With speeds k ** 0.5 the prices are the square roots of 5, 3 and 1, the first to end first.
    # Whole GPUs, 600 of them, leave less than 1 % of difference.
    bids = make_bids(3, ROOTS)
    find_prices(bids, {"": 600}, floors={})
    scaled = [price * math.sqrt(600) for price in list_prices(bids)]
    assert scaled == pytest.approx([2.2361, 1.7321, 1.0], rel=0.01)


def test_prices_match_the_continuous_form():
    chance = random.Random(3)
    for _ in range(50):
        # The lengths differ so much that no two neighbours exchange their places.
        bids = [
            make_bid(
                f"job{n}",
                {k: k ** chance.uniform(0.2, 0.9) for k in range(1, chance.randint(2, 9))},
                left=1e4**n,
                weight=chance.uniform(0.5, 3.0),
                order=n,
            )
            for n in range(5)
        ]
        gpus = chance.randint(1, 12)
        find_prices(bids, {"": gpus}, floors={})
        hulls = [[Step(1.0, gain) for gain in bid.curve.steps] for bid in bids]
        expected = pricing.find_prices(hulls, [bid.weight for bid in bids], gpus=gpus)
        assert list_prices(bids) == pytest.approx(expected)


def price_without_exchange(bids, capacity):
    """The prices of two jobs in the order that is given: the last is settled first."""
    first, last = bids
    # One after the other, as if the one that ends last were alone.
    find_prices([last], {"": capacity}, floors={})
    slots = [0.0] * capacity
    steps = last.curve.steps[:capacity]
    slots = sorted([last.price * step for step in steps] + slots[len(steps) :])
    sums = itertools.accumulate(slots)
    price = min(
        (first.weight + total) / speed
        for total, speed in zip(sums, first.curve.hull[1:], strict=False)
    )
    return price, last.price


def test_neighbours_swap_only_if_the_total_falls():
    chance = random.Random(3)
    exchanges = 0
    for _ in range(100):
        bids = [
            make_bid(
                f"job{n}",
                {gpus: gpus ** chance.uniform(0.2, 1.0) for gpus in (1, 2, 4, 8)},
                left=chance.uniform(500.0, 1000.0),
                order=n,
            )
            for n in range(2)
        ]
        ranked = sorted(bids, key=lambda bid: bid.left / bid.curve.pace)
        as_ranked = price_without_exchange(ranked, 8)
        exchanged = price_without_exchange(ranked[::-1], 8)[::-1]
        sums = [
            sum(price * bid.left for price, bid in zip(each, ranked, strict=True))
            for each in (as_ranked, exchanged)
        ]
        find_prices(bids, {"": 8}, floors={})
        expected = as_ranked if sums[0] <= sums[1] else exchanged
        assert list_prices(ranked) == pytest.approx(list(expected))
        exchanges += sums[1] < sums[0]
    assert 0 < exchanges < 100
