"""
How many GPUs each job shall have: the shares that are worth most together.

At given prices this is a knapsack in which each job takes one of its numbers of GPUs, or none. What
a job gets by a share is its price x speed, less what the change costs it. With up to some hundred
GPUs the best shares are found exactly, by dynamic programming over the number of GPUs. Beyond that,
one price of a GPU divides them: every job takes what is worth most to it after paying for its GPUs,
and only what is left over is divided exactly, among the jobs that are nearly indifferent.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
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


class Option(NamedTuple):
    """A share of a job: how many GPUs it takes from others, and what it is worth a second."""

    gpus: int
    weight: int
    worth: float


class Item(NamedTuple):
    """A job and its options; the first is to have nothing, unless it is to have something."""

    bid: Bid
    options: tuple[Option, ...]

    @property
    def best(self) -> Option:
        """The option that is worth most, of equals the smallest."""
        return max(self.options, key=lambda option: (option.worth, -option.weight))


Options = Sequence[Option]


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
    if sum(option.weight for option in best) > capacity:
        if len(items) * capacity <= EXACT_CELLS:
            best = _solve([item.options for item in items], capacity)
        else:
            best = _solve_large(items, capacity)
    return {item.bid: option.gpus for item, option in zip(items, best, strict=True) if option.gpus}


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
    held, curve = bid.held, bid.curve
    nothing = 0.0
    if held:
        # It has to save, and later to start again: a change too many, and half of one more.
        lost = bid.price * curve.speeds.get(held, 0.0) * bid.cost_of(bid.state.least)
        nothing = -lost / horizon
    options = [Option(0, 0, nothing)]
    for gpus, speed in curve.options:
        cost = 0.0 if gpus == held else bid.cost_of(gpus)
        worth = bid.worth(speed, cost=cost, horizon=horizon)
        options.append(Option(gpus, weigh(bid, gpus), worth))
    if held in curve.speeds and all(option.gpus != held for option in options):
        # Fewer GPUs would be as fast, but to change over costs something.
        kept = bid.worth(curve.speeds[held], cost=0.0, horizon=horizon)
        options.append(Option(held, weigh(bid, held), kept))
    return tuple(option for option in options if option.weight <= capacity)


def weigh(bid: Bid, gpus: int) -> int:
    """
    How many GPUs that others could have the job takes of its type.

    It goes on with broken ones, which no other job would get, and gives those up first.
    """
    if bid.switches:
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
        for _, weight, worth in (option for option in options if option.weight <= capacity):
            reached = before[: capacity + 1 - weight] + worth
            np.maximum(after[weight:], reached, out=after[weight:])
        rows.append(after)
    chosen: list[Option] = []
    left = int(np.argmax(rows[-1]))
    for options, before, after in zip(
        reversed(items), reversed(rows[:-1]), reversed(rows[1:]), strict=True
    ):
        taken = next(
            o
            for o in options
            if o.weight <= left and before[left - o.weight] + o.worth == after[left]
        )
        chosen.append(taken)
        left -= taken.weight
    chosen.reverse()
    return chosen


def _solve_large(items: Sequence[Item], capacity: int) -> list[Option]:
    """Let one price of a GPU divide them, and the left-over be divided exactly."""
    worths, weights = _tabulate(items)
    rows = np.arange(len(items))
    low, high = 0.0, float(np.max(worths[np.isfinite(worths)])) + 1.0
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        chosen = np.argmax(worths - middle * weights, axis=1)
        if int(weights[rows, chosen].sum()) > capacity:
            low = middle
        else:
            high = middle
    paid = worths - high * weights
    chosen = np.argmax(paid, axis=1)
    left = capacity - int(weights[rows, chosen].sum())
    best = [item.options[index] for item, index in zip(items, chosen, strict=True)]
    if left > 0:
        _divide_rest(items, best, left, paid, chosen)
    return best


def _divide_rest(
    items: Sequence[Item],
    best: list[Option],
    left: int,
    paid: NDArray[np.float64],
    chosen: NDArray[np.intp],
) -> None:
    """Solve again for the jobs that come nearest to choosing otherwise, with what they have."""
    rows = np.arange(len(items))
    regret = paid.copy()
    regret[rows, chosen] = -np.inf
    second = paid[rows, chosen] - regret.max(axis=1)
    core = sorted(int(row) for row in np.argsort(second, kind="stable")[:CORE])
    capacity = min(left, sum(items[row].options[-1].weight for row in core))
    capacity += sum(best[row].weight for row in core)
    for row, option in zip(
        core, _solve([items[row].options for row in core], capacity), strict=True
    ):
        best[row] = option


def _tabulate(items: Sequence[Item]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The worths and weights of all options, in rows of equal length."""
    width = max(len(item.options) for item in items)
    worths = np.full((len(items), width), -np.inf)
    weights = np.zeros((len(items), width), dtype=np.int64)
    for row, item in enumerate(items):
        count = len(item.options)
        worths[row, :count] = [option.worth for option in item.options]
        weights[row, :count] = [option.weight for option in item.options]
    return worths, weights


def split_by_type(bids: Sequence[Bid]) -> Mapping[str, list[Bid]]:
    """The bids by the type of GPU on which each job is or shall be."""
    groups: dict[str, list[Bid]] = {}
    for bid in bids:
        groups.setdefault(bid.curve.gpu_type, []).append(bid)
    return groups
