"""The worth of a GPU to each job, by ``foresight``: curves and prices."""

import itertools
import math
import random

import pytest

from dlcore.policies.common import pricing
from dlcore.policies.common.hulls import Step
from dlcore.policies.foresight.curves import Curve, make_curve, narrow
from dlcore.policies.foresight.pricing import EXCHANGED, find_prices, fix_sizes
from tests.bids import list_prices, make_bid, make_bids

ROOTS = {gpus: math.sqrt(gpus) for gpus in range(1, 601)}
FEW = {1: 1.0, 2: 1.8, 3: 2.4, 4: 2.8}


def curve_of(speeds: dict[int, float]) -> Curve:
    curve = make_curve("", speeds.items())
    assert curve is not None
    return curve


# --- curves


def test_a_job_that_trains_on_no_number_of_gpus_has_no_curve():
    assert make_curve("", [(1, 0.0), (2, 0.0)]) is None


def test_numbers_of_gpus_that_make_a_job_no_faster_are_no_options():
    curve = curve_of({1: 1.0, 2: 1.0, 3: 2.0, 4: 1.9})
    assert curve.options == ((1, 1.0), (3, 2.0))
    assert curve.top == 2.0
    assert set(curve.speeds) == {1, 2, 3, 4}


def test_a_hull_is_concave_and_nowhere_below_the_speeds():
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


def test_a_job_that_needs_several_gpus_at_once_gains_evenly_up_to_there():
    assert curve_of({4: 2.0}).hull == pytest.approx((0.0, 0.5, 1.0, 1.5, 2.0))


# --- jobs that keep what they start with


def size_at(worth: float, *, supply: int = 8, least: int = 1) -> int:
    curve = curve_of({gpus: ROOTS[gpus] for gpus in range(least, 9)})
    ((gpus, speed),) = narrow(curve, weight=1.0, worth=worth, supply=supply).options
    assert speed == ROOTS[gpus]
    return gpus


def test_a_job_that_keeps_its_gpus_for_life_takes_fewer_the_more_they_are_worth_to_others():
    assert size_at(0.0) == 8
    sizes = [size_at(worth / 50.0) for worth in range(51)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 1


def test_it_takes_fewer_where_fewer_are_left_to_others():
    assert size_at(0.1, supply=8) < size_at(0.1, supply=800)


def test_it_does_not_wait_for_gpus_that_others_keep_unless_it_has_to():
    assert size_at(0.0, supply=3) == 3
    assert size_at(0.0, supply=3, least=4) == 4


@pytest.mark.parametrize("supply", [4, 7, 64])
def test_what_it_takes_is_the_integral_of_a_worth_that_rises_as_fewer_are_left(supply):
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


def test_only_jobs_that_wait_and_keep_what_they_start_with_bid_for_one_number():
    waits = make_bid("waits", ROOTS, keeps_first=True)
    others = [
        make_bid("runs", ROOTS, holds=2, keeps_first=True),
        make_bid("saves", ROOTS),
    ]
    before = [other.curves for other in others]
    assert fix_sizes([waits, *others], {"": 600}, worths={"": 0.1})
    assert len(waits.curve.options) == 1
    assert [other.curves for other in others] == before
    assert waits.alone == 1.0
    assert not fix_sizes(others, {"": 600}, worths={"": 0.1})


def test_gpus_that_others_keep_are_no_longer_to_be_had():
    waits = make_bid("waits", FEW, keeps_first=True)
    keeps = make_bid("keeps", {3: 2.4}, holds=3, keeps_first=True, unsaved_from=0.0)
    assert fix_sizes([waits, keeps], {"": 4}, worths={"": 0.0})
    assert [gpus for gpus, _ in waits.curve.options] == [1]


def test_on_each_type_it_is_the_number_that_is_right_there():
    bid = make_bid(types={"V100": ROOTS, "T4": ROOTS}, keeps_first=True)
    assert fix_sizes([bid], {"V100": 600, "T4": 600}, worths={"V100": 10.0, "T4": 0.0})
    assert [curve.options[0][0] for curve in bid.curves] == [1, 600]


# --- prices


def test_the_price_of_a_job_alone_is_an_hour_for_each_hour_at_its_top_speed():
    bid = make_bid(speeds=FEW)
    find_prices([bid], {"": 4}, floors={})
    assert bid.price == pytest.approx(1.0 / 2.8)


def test_three_jobs_with_the_speed_of_a_square_root_get_the_prices_of_hesrpt():
    # With speeds k ** 0.5 the prices are the square roots of 5, 3 and 1, the first to end first.
    # Whole GPUs, 600 of them, leave less than 1 % of difference.
    bids = make_bids(3, ROOTS)
    find_prices(bids, {"": 600}, floors={})
    scaled = [price * math.sqrt(600) for price in list_prices(bids)]
    assert scaled == pytest.approx([2.2361, 1.7321, 1.0], rel=0.01)


def test_at_the_best_prices_a_second_is_worth_as_much_as_there_are_jobs():
    # The greatest sum of price x speed, by one price of a GPU: shares go with the square of prices.
    bids = make_bids(5, ROOTS)
    find_prices(bids, {"": 600}, floors={})
    worth = math.sqrt(600 * sum(price**2 for price in list_prices(bids)))
    assert worth == pytest.approx(5.0, rel=0.01)


def test_prices_are_those_of_the_form_for_parts_of_gpus_where_the_order_is_certain():
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
        expected = pricing.find_prices(hulls, [bid.weight for bid in bids], gpus)
        assert list_prices(bids) == pytest.approx(expected)


def test_a_job_that_ends_sooner_has_a_higher_price():
    bids = [make_bid(f"{left}", FEW, left=left, order=n) for n, left in enumerate((900, 100, 300))]
    find_prices(bids, {"": 4}, floors={})
    long, short, middle = list_prices(bids)
    assert short > middle > long


def test_a_floor_raises_prices_and_the_worth_of_the_least_used_gpu():
    bids = make_bids(3, FEW)
    level = find_prices(bids, {"": 4}, floors={})
    before = list_prices(bids)
    level_with_floor = find_prices(bids, {"": 4}, floors={"": 0.5})
    assert all(now > then for now, then in zip(list_prices(bids), before, strict=True))
    assert level_with_floor[""] >= 0.5
    assert level[""] > 0.0


def test_a_floor_alone_is_paid_for_each_gpu_that_is_worth_it():
    bid = make_bid(speeds={1: 1.0, 2: 1.1})
    find_prices([bid], {"": 2}, floors={"": 1.0})
    # One GPU: (1 + 1) / 1.0. Both: (1 + 1 + 1) / 1.1, which is more.
    assert bid.price == pytest.approx(2.0)


def test_a_job_that_counts_more_has_a_higher_price():
    light, heavy = make_bid("light", FEW), make_bid("heavy", FEW, weight=3.0, order=1)
    find_prices([light, heavy], {"": 4}, floors={})
    assert heavy.price > 2.0 * light.price


def test_gpus_that_no_job_uses_are_worth_nothing():
    assert find_prices([make_bid(speeds=FEW)], {"": 6}, floors={}) == {"": 0.0}


def test_without_jobs_a_gpu_is_worth_its_floor():
    assert find_prices([], {"": 6}, floors={"": 0.25}) == {"": 0.25}


def test_a_type_of_which_nothing_is_divided_still_has_a_price():
    bid = make_bid(speeds=FEW, holds=4)
    find_prices([bid], {"": 0}, floors={})
    assert bid.price > 0.0


# --- neighbours that exchange their places


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


def test_neighbours_exchange_only_if_the_sum_of_price_and_work_falls():
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


def test_beyond_the_front_of_the_line_each_job_still_has_a_price():
    bids = make_bids(EXCHANGED + 20, FEW)
    find_prices(bids, {"": 4}, floors={})
    prices = list_prices(bids)
    assert prices == sorted(prices, reverse=True)
    assert prices[-1] == pytest.approx(1.0 / 2.8)


# --- several types


def test_a_job_is_priced_on_the_type_on_which_it_is_cheapest():
    bid = make_bid(types={"slow": {1: 1.0}, "fast": {1: 2.0}})
    find_prices([bid], {"slow": 1, "fast": 1}, floors={})
    assert bid.curve.gpu_type == "fast"
    assert bid.price == pytest.approx(0.5)


def test_a_job_turns_to_the_slower_type_where_the_faster_one_is_worth_more_to_others():
    bid = make_bid(types={"slow": {1: 1.0}, "fast": {1: 2.0}})
    find_prices([bid], {"slow": 1, "fast": 1}, floors={"fast": 3.0})
    assert bid.curve.gpu_type == "slow"
    assert bid.price == pytest.approx(1.0)


def test_a_job_that_runs_is_priced_on_the_type_that_it_has():
    bid = make_bid(types={"slow": {1: 1.0}, "fast": {1: 2.0}}, holds=1, gpu_type="slow")
    find_prices([bid], {"slow": 1, "fast": 1}, floors={})
    assert bid.curve.gpu_type == "slow"
    assert bid.price == pytest.approx(1.0)


def test_two_jobs_spread_over_two_types_that_are_alike():
    types = {"a": {1: 1.0, 2: 1.1}, "b": {1: 1.0, 2: 1.1}}
    bids = [make_bid(f"job{n}", types=types, order=n) for n in range(2)]
    find_prices(bids, {"a": 2, "b": 2}, floors={})
    assert {bid.curve.gpu_type for bid in bids} == {"a", "b"}


# --- lengths that are not known


def test_the_price_of_a_job_of_several_lengths_is_the_mean_of_their_prices():
    other = make_bid("other", FEW, left=500.0, order=1)
    lengths = [100.0, 2000.0]
    prices = []
    for left in lengths:
        known = make_bid("known", FEW, left=left)
        find_prices([known, other], {"": 4}, floors={})
        prices.append((known.price, other.price))
    unknown = make_bid("unknown", FEW, left=700.0)
    unknown.lefts = lengths
    find_prices([unknown, other], {"": 4}, floors={})
    means = [sum(each) / 2 for each in zip(*prices, strict=True)]
    assert [unknown.price, other.price] == pytest.approx(means)
    assert (unknown.left, other.left) == (700.0, 500.0)


def test_jobs_that_are_equally_uncertain_have_prices_that_differ_less_than_if_one_ended_first():
    certain = make_bids(2, FEW)
    find_prices(certain, {"": 4}, floors={})
    uncertain = make_bids(2, FEW)
    uncertain[0].lefts, uncertain[1].lefts = [100.0, 1000.0], [1000.0, 100.0]
    find_prices(uncertain, {"": 4}, floors={})
    assert uncertain[0].price == pytest.approx(uncertain[1].price)
    assert certain[0].price > 1.1 * certain[1].price
