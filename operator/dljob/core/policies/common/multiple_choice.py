"""
The multiple-choice knapsack over given options: one option of each job, the greatest sum of worths, a limit of GPUs.

:func:`solve_exactly` is a dynamic programme over the number of GPUs. :func:`solve_by_price` is for many jobs on
large clusters: one price of a GPU divides them, and only the remaining GPUs are divided exactly, among the
jobs that are nearly indifferent. Pure functions of numbers.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

CORE = 48
"""The number of jobs that share the left-over GPUs of a large cluster."""

HALVINGS = 50
"""How exactly the price of a GPU is found there."""

DECIDED_AFTER = (8, 16)
"""After how many halvings those jobs are set apart which choose alike at any price that is left."""

MARGIN = 1e-9
"""By what share of the greatest worth an option must lead for rounding not to matter."""

Option = tuple[int, int, float]
"""
A share of a job: its GPUs, how many of them it takes from others, and its worth.

It is a plain tuple, because Python's search for garbage drops plain tuples of numbers and visits named ones.
A decision about 10,000 jobs makes 50,000 options, and the search was a quarter of its time.
"""

Options = Sequence[Option]
Floats = NDArray[np.float64]


def count_gpus(options: Iterable[Option]) -> int:
    """Return how many GPUs these shares take from others."""
    return sum(weight for _, weight, _ in options)


def solve_exactly(items: Sequence[Options], capacity: int) -> list[Option]:
    """Solve the knapsack exactly."""
    rows = [np.zeros(capacity + 1)]
    for options in items:
        before = rows[-1]
        after = np.full(capacity + 1, -np.inf)
        for _, weight, worth in options:
            if weight > capacity:
                continue
            reached = before[: capacity + 1 - weight] + worth
            np.maximum(after[weight:], reached, out=after[weight:])
        rows.append(after)
    chosen: list[Option] = []
    left = int(np.argmax(rows[-1]))
    for options, before, after in zip(
        reversed(items), reversed(rows[:-1]), reversed(rows[1:]), strict=True
    ):
        gpus, weight, worth = next(
            (gpus, weight, worth)
            for gpus, weight, worth in options
            if weight <= left and before[left - weight] + worth == after[left]
        )
        chosen.append((gpus, weight, worth))
        left -= weight
    chosen.reverse()
    return chosen


def solve_by_price(items: Sequence[Options], capacity: int) -> list[Option]:
    """Let one price of a GPU divide them, and the left-over be divided exactly."""
    worths, weights = tabulate(items)
    high = find_price(worths, weights, capacity=capacity)
    paid = worths - high * weights
    chosen = np.argmax(paid, axis=0)
    best = [options[index] for options, index in zip(items, chosen, strict=True)]
    left = capacity - count_gpus(best)
    if left > 0:
        _divide_rest(items, best, left=left, paid=paid, chosen=chosen)
    return best


def find_price(worths: Floats, weights: Floats, *, capacity: float) -> float:
    """The least price of a GPU at which the jobs take no more than there are, by halving."""
    low, high = 0.0, float(np.max(worths[np.isfinite(worths)])) + 1.0
    margin = MARGIN * high
    for halving in range(HALVINGS):
        if halving in DECIDED_AFTER:
            # Each step reads all options of the jobs that are left, and by then few jobs are undecided.
            is_open, taken = _find_open(worths, weights, prices=(low, high), margin=margin)
            worths, weights, capacity = worths[:, is_open], weights[:, is_open], capacity - taken
        middle = 0.5 * (low + high)
        if _sum_chosen(worths - middle * weights, weights) > capacity:
            low = middle
        else:
            high = middle
    return high


def _find_open(
    worths: Floats, weights: Floats, *, prices: tuple[float, float], margin: float
) -> tuple[NDArray[np.bool_], float]:
    """
    Return which jobs may choose differently between two prices, and what the others take together.

    By how much one option leads another is linear in the price. So an option that leads by the margin at both
    prices leads between them.
    """
    places = np.arange(worths.shape[1])
    is_open = np.zeros(len(places), dtype=bool)
    first = np.argmax(worths - prices[0] * weights, axis=0)
    for price in prices:
        paid = worths - price * weights
        lead = paid[first, places]
        paid[first, places] = -np.inf
        is_open |= paid.max(axis=0) > lead - margin
    return is_open, float(weights[first, places][~is_open].sum())


def _sum_chosen(paid: Floats, weights: Floats) -> float:
    """
    Return how many GPUs the jobs take that choose what is worth most to each after paying, of equals the first.

    Column by column, because that is several times as fast as ``argmax`` over short rows.
    """
    most, taken = paid[0].copy(), weights[0].copy()
    for worth, weight in zip(paid[1:], weights[1:], strict=True):
        np.copyto(taken, weight, where=worth > most)
        np.maximum(most, worth, out=most)
    return float(taken.sum())


def _divide_rest(
    items: Sequence[Options],
    best: list[Option],
    *,
    left: int,
    paid: Floats,
    chosen: NDArray[np.intp],
) -> None:
    """Solve again for the jobs that come nearest to choosing otherwise, with their present GPUs."""
    places = np.arange(len(items))
    regret = paid.copy()
    regret[chosen, places] = -np.inf
    second = paid[chosen, places] - regret.max(axis=0)
    core = sorted(int(place) for place in np.argsort(second, kind="stable")[:CORE])
    capacity = min(left, count_gpus(items[place][-1] for place in core))
    capacity += count_gpus(best[place] for place in core)
    for place, option in zip(
        core, solve_exactly([items[place] for place in core], capacity), strict=True
    ):
        best[place] = option


def tabulate(items: Sequence[Options]) -> tuple[Floats, Floats]:
    """The worths and weights of all options: a column for each job, a row for each place in a list."""
    counts = np.array([len(options) for options in items])
    is_there = np.arange(counts.max()) < counts[:, np.newaxis]
    worths = np.full(is_there.shape, -np.inf)
    weights = np.zeros(is_there.shape)
    worths[is_there] = [worth for options in items for _, _, worth in options]
    weights[is_there] = [weight for options in items for _, weight, _ in options]
    return np.ascontiguousarray(worths.T), np.ascontiguousarray(weights.T)
