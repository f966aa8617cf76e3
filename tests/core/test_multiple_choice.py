"""The multiple-choice knapsack: exact, against search, and by one price of a GPU."""

import itertools
import random
from collections.abc import Sequence

import pytest

from dljob.core.policies.common.multiple_choice import (
    HALVINGS,
    Option,
    Options,
    find_price,
    solve_by_price,
    solve_exactly,
    tabulate,
)


def make_options(chance: random.Random, most: int) -> tuple[Option, ...]:
    """Options of one job with a nearly concave worth."""
    counts = sorted(chance.sample(range(1, most + 1), chance.randint(1, min(4, most))))
    price, power = chance.uniform(0.1, 3.0), chance.uniform(0.3, 1.0)
    worths = [price * gpus**power * chance.uniform(0.8, 1.0) for gpus in counts]
    return ((0, 0, 0.0), *((gpus, gpus, worth) for gpus, worth in zip(counts, worths, strict=True)))


def weigh(options: Sequence[Option]) -> int:
    return sum(weight for _, weight, _ in options)


def sum_worths(options: Sequence[Option]) -> float:
    return sum(worth for _, _, worth in options)


def test_exact_solution_matches_search():
    chance = random.Random(11)
    for _ in range(200):
        items = [make_options(chance, 6) for _ in range(chance.randint(1, 5))]
        capacity = chance.randint(1, 12)
        best = max(
            sum_worths(each) for each in itertools.product(*items) if weigh(each) <= capacity
        )
        chosen = solve_exactly(items, capacity)
        assert all(option in options for option, options in zip(chosen, items, strict=True))
        assert weigh(chosen) <= capacity
        assert sum_worths(chosen) == pytest.approx(best)


def test_price_solution_is_feasible_and_near_optimal():
    chance = random.Random(12)
    shares = []
    for _ in range(40):
        options = [make_options(chance, 16) for _ in range(chance.randint(60, 100))]
        capacity = chance.randint(20, 300)
        chosen = solve_by_price(options, capacity)
        assert weigh(chosen) <= capacity
        shares.append(sum_worths(chosen) / sum_worths(solve_exactly(options, capacity)))
    assert min(shares) > 0.995
    assert max(shares) <= 1.0 + 1e-9


def test_price_solution_is_exact_for_few_jobs():
    chance = random.Random(13)
    for _ in range(20):
        options = [make_options(chance, 8) for _ in range(20)]
        capacity = chance.randint(5, 60)
        chosen = solve_by_price(options, capacity)
        assert sum_worths(chosen) == pytest.approx(sum_worths(solve_exactly(options, capacity)))


def halve_with_all(items: Sequence[Options], capacity: int) -> float:
    """Find the same price with every job at each step, in plain numbers."""
    low, high = 0.0, max(worth for options in items for _, _, worth in options) + 1.0
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        # Of options that are worth the same after paying, the first is taken.
        best = [max(options, key=lambda each: each[2] - middle * each[1]) for options in items]
        low, high = (middle, high) if weigh(best) > capacity else (low, middle)
    return high


def test_price_matches_plain_bisection():
    chance = random.Random(14)
    found: set[float] = set()
    for number in range(60):
        items = [make_options(chance, 16) for _ in range(chance.randint(1, 80))]
        if number % 3 == 0:
            # Jobs that are alike are indifferent at one price all at once.
            items = items[: len(items) // 4 + 1] * 4
        if number % 5 == 0:
            items = [tuple((g, w, round(v)) for g, w, v in options) for options in items]
        capacity = chance.randint(1, 8 * len(items))
        price = find_price(*tabulate(items), capacity=capacity)
        assert price == halve_with_all(items, capacity)
        found.add(price)
    assert len(found) > 30


def test_full_cluster_needs_only_the_price():
    options = [((0, 0, 0.0), (2, 2, 4.0 + n)) for n in range(4)]
    chosen = solve_by_price(options, 4)
    assert [gpus for gpus, _, _ in chosen] == [0, 0, 2, 2]
