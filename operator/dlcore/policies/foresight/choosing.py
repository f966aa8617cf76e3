"""
How many GPUs each job shall have: the shares that are worth most together.

At given prices this is a knapsack in which each job takes one of its numbers of GPUs, or none. What
a job gets by a share is its price x speed, less what the change costs it. With up to some hundred
GPUs the best shares are found exactly, by dynamic programming over the number of GPUs. Beyond that,
one price of a GPU divides them: every job takes what is worth most to it after paying for its GPUs,
and only what is left over is divided exactly, among the jobs that are nearly indifferent.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlcore.policies.foresight.bids import Bid
from dlcore.policies.foresight.curves import Curve

EXACT_CELLS = 60_000
"""Up to so many jobs x GPUs the knapsack is solved exactly; that takes about 10 ms."""

CORE = 48
"""So many jobs share what is left over in a large cluster."""

HALVINGS = 50
"""How exactly the price of a GPU is found there."""


Option = tuple[int, int, float]
"""
A share of a job: its GPUs, how many of them it takes from others, and its worth a second.

It is a plain tuple, because Python's search for garbage drops plain tuples of numbers and visits named ones.
A decision about 10,000 jobs makes 50,000 options, and the search was a quarter of its time.
"""


class Item(NamedTuple):
    """A job and its options; the first is to have nothing, unless it is to have something."""

    bid: Bid
    options: tuple[Option, ...]

    @property
    def best(self) -> Option:
        """The option that is worth most, of equals the smallest."""
        # Thousands of jobs are asked, and a key for max() would take twice as long.
        best = self.options[0]
        _, least, most = best
        for option in self.options:
            _, weight, worth = option
            if worth > most or (worth == most and weight < least):
                best, least, most = option, weight, worth
        return best


Options = Sequence[Option]
Floats = NDArray[np.float64]


def choose_by_type(
    bids: Sequence[Bid],
    capacities: Mapping[str, int],
    *,
    horizon: float,
    visits: Mapping[str, Sequence[Item]] = MappingProxyType({}),
) -> dict[Bid, int]:
    """
    Choose for each type of GPU, among the jobs on it and those that come from another type.

    The curve of a bid says on which type it is.
    """
    chosen: dict[Bid, int] = {}
    for kind, group in split_by_type(bids).items():
        visitors = visits.get(kind, ())
        come = {item.bid for item in visitors}
        own = [bid for bid in group if bid not in come] if come else group
        chosen |= choose(own, capacities.get(kind, 0), horizon=horizon, visitors=visitors)
    return chosen


def choose_rest(
    bids: Sequence[Bid],
    capacities: Mapping[str, int],
    chosen: Mapping[Bid, int],
    *,
    horizon: float,
) -> dict[Bid, int]:
    """Give what is left of a type to jobs that wait for another one; their curves are of it then."""
    left = dict(capacities)
    for bid, gpus in chosen.items():
        kind = bid.curve.gpu_type
        left[kind] = left.get(kind, 0) - weigh(bid, gpus)
    more: dict[Bid, int] = {}
    for kind, gpus in left.items():
        if gpus <= 0:
            continue
        before: dict[Bid, Curve] = {}
        for bid in bids:
            curve = bid.curve_on(kind)
            if curve is not None and not (bid.held or bid in chosen or bid in more):
                before[bid], bid.curve = bid.curve, curve
        more |= choose(list(before), gpus, horizon=horizon)
        for bid, curve in before.items():
            if bid not in more:
                bid.curve = curve
    return more


def choose(
    bids: Sequence[Bid], capacity: int, *, horizon: float, visitors: Iterable[Item] = ()
) -> dict[Bid, int]:
    """
    Choose how many GPUs each of these jobs shall have, all of one type; others get none.

    ``visitors`` are jobs on another type, with what they could have on this one.
    """
    items = [_make_item(bid, capacity, horizon=horizon) for bid in _shortlist(bids, capacity)]
    items += visitors
    best = [item.best for item in items]
    if _count(best) > capacity:
        if len(items) * capacity <= EXACT_CELLS:
            best = _solve([item.options for item in items], capacity)
        else:
            best = _solve_large(items, capacity)
    return {item.bid: gpus for item, (gpus, _, _) in zip(items, best, strict=True) if gpus}


def _count(options: Iterable[Option]) -> int:
    """How many GPUs these shares take from others."""
    return sum(weight for _, weight, _ in options)


def _shortlist(bids: Sequence[Bid], capacity: int) -> list[Bid]:
    """The jobs that run, and those that wait to which a first GPU is worth most."""
    running = [bid for bid in bids if bid.held]
    waiting = [bid for bid in bids if not bid.held]
    if len(waiting) > capacity:
        key = [(-bid.price * bid.curve.hull[1], bid.state.order) for bid in waiting]
        nearest = heapq.nsmallest(capacity, range(len(waiting)), key=key.__getitem__)
        waiting = [waiting[index] for index in sorted(nearest)]
    return running + waiting


def _make_item(bid: Bid, capacity: int, *, horizon: float) -> Item:
    return Item(bid, list_options(bid, capacity, horizon=horizon))


def list_options(bid: Bid, capacity: int, *, horizon: float) -> tuple[Option, ...]:
    """List what a job can have of so many GPUs, with the worth after the cost of the change."""
    basis = (bid.price, horizon)
    if bid.listed_on is not bid.curve or bid.listed_at != basis:
        # With several types of GPU they are asked for up to three times in one decision.
        bid.listed_on, bid.listed_at = bid.curve, basis
        bid.listed = tuple(_iter_options(bid, horizon))
    options = bid.listed
    (_, before, _), (_, last, _) = options[-2:]
    if max(before, last) <= capacity:
        return options
    # The second number is the weight.
    return tuple([option for option in options if option[1] <= capacity])


def _iter_options(bid: Bid, horizon: float) -> Iterator[Option]:
    """All options of a job, from nothing upwards; at last what it holds, if no other is that."""
    held, curve = bid.held, bid.curve
    nothing = 0.0
    if held:
        # It has to save, and later to start again: a change too many, and half of one more.
        lost = bid.price * curve.speeds.get(held, 0.0) * bid.cost_of(bid.state.least)
        nothing = -lost / horizon
    yield 0, 0, nothing
    is_listed = False
    for gpus, speed in curve.options:
        cost = 0.0 if gpus == held else bid.cost_of(gpus)
        is_listed = is_listed or gpus == held
        yield gpus, weigh(bid, gpus), bid.worth(speed, cost=cost, horizon=horizon)
    if held in curve.speeds and not is_listed:
        # Fewer GPUs would be as fast, but to change over costs something.
        kept = bid.worth(curve.speeds[held], cost=0.0, horizon=horizon)
        yield held, weigh(bid, held), kept


def weigh(bid: Bid, gpus: int) -> int:
    """
    How many GPUs that others could have the job takes of its type.

    It goes on with broken ones, which no other job would get, and gives those up first.
    """
    if bid.usable == bid.held or bid.switches:
        return gpus
    if gpus <= bid.held:
        return min(gpus, bid.usable)
    return gpus - (bid.held - bid.usable)


def _solve(items: Sequence[Options], capacity: int) -> list[Option]:
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


def _solve_large(items: Sequence[Item], capacity: int) -> list[Option]:
    """Let one price of a GPU divide them, and the left-over be divided exactly."""
    worths, weights = _tabulate(items)
    low, high = 0.0, float(np.max(worths[np.isfinite(worths)])) + 1.0
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        if _sum_chosen(worths - middle * weights, weights) > capacity:
            low = middle
        else:
            high = middle
    paid = worths - high * weights
    chosen = np.argmax(paid, axis=0)
    best = [item.options[index] for item, index in zip(items, chosen, strict=True)]
    left = capacity - _count(best)
    if left > 0:
        _divide_rest(items, best, left, paid, chosen)
    return best


def _sum_chosen(paid: Floats, weights: Floats) -> float:
    """
    How many GPUs the jobs take that choose what is worth most to each after paying, of equals the first.

    Column by column, because that is several times as fast as ``argmax`` over short rows.
    """
    most, taken = paid[0].copy(), weights[0].copy()
    for worth, weight in zip(paid[1:], weights[1:], strict=True):
        np.copyto(taken, weight, where=worth > most)
        np.maximum(most, worth, out=most)
    return float(taken.sum())


def _divide_rest(
    items: Sequence[Item], best: list[Option], left: int, paid: Floats, chosen: NDArray[np.intp]
) -> None:
    """Solve again for the jobs that come nearest to choosing otherwise, with what they have."""
    places = np.arange(len(items))
    regret = paid.copy()
    regret[chosen, places] = -np.inf
    second = paid[chosen, places] - regret.max(axis=0)
    core = sorted(int(place) for place in np.argsort(second, kind="stable")[:CORE])
    capacity = min(left, _count(items[place].options[-1] for place in core))
    capacity += _count(best[place] for place in core)
    for place, option in zip(
        core, _solve([items[place].options for place in core], capacity), strict=True
    ):
        best[place] = option


def _tabulate(items: Sequence[Item]) -> tuple[Floats, Floats]:
    """The worths and weights of all options: a column for each job, a row for each place in a list."""
    counts = np.array([len(item.options) for item in items])
    is_there = np.arange(counts.max()) < counts[:, np.newaxis]
    worths = np.full(is_there.shape, -np.inf)
    weights = np.zeros(is_there.shape)
    worths[is_there] = [worth for item in items for _, _, worth in item.options]
    weights[is_there] = [weight for item in items for _, weight, _ in item.options]
    return np.ascontiguousarray(worths.T), np.ascontiguousarray(weights.T)


def split_by_type(bids: Sequence[Bid]) -> Mapping[str, list[Bid]]:
    """The bids by the type of GPU on which each job is or shall be."""
    groups: dict[str, list[Bid]] = {}
    for bid in bids:
        groups.setdefault(bid.curve.gpu_type, []).append(bid)
    return groups
