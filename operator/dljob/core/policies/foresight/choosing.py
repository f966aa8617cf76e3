"""
How many GPUs each job shall have: the shares that are worth most together.

At given prices this is a knapsack in which each job takes one of its numbers of GPUs, or none. The worth of
a share to a job is its price x speed, less the cost of the change. With up to some hundred
GPUs the best shares are found exactly, by dynamic programming over the number of GPUs. Beyond that,
one price of a GPU divides them: every job takes what is worth most to it after paying for its GPUs,
and only the remaining GPUs are divided exactly, among the jobs that are nearly indifferent.

Running jobs go to another type where they are faster (:func:`switch_types`).
On its own type a job is chosen among all jobs there (:mod:`.choosing`). Then each type is divided once
more, between these jobs and visitors: running jobs of other types that would be faster on this one. A
visit is worth what it adds to staying, after the cost of the change.

That is reckoned at the price that a job would have if it could be on any type. Its price on its own
type would be too high: where GPUs are slow an iteration is dear, so the jobs of a slow type would
drive others from the fast one. The GPUs that a visitor leaves do not count: with them jobs changed places some
nine times as often, for a mean completion time 4 % higher (Gavel's ``continuous_96`` on its three types).

A job changes its type only where it becomes faster than it is. So none leaves its type to make room for
others, and the reason of the change is its own.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from dljob.core.policies.common.multiple_choice import (
    Option,
    count_gpus,
    solve_by_price,
    solve_exactly,
)
from dljob.core.policies.foresight.bids import Bid
from dljob.core.policies.foresight.curves import Curve, Point

Visits = Mapping[str, Sequence["Item"]]
"""The jobs that come to each type from another one, with the options that they have there."""

_STAYS: Option = (0, 0, 0.0)

EXACT_CELLS = 60_000
"""Up to this many jobs x GPUs the knapsack is solved exactly; that takes about 10 ms."""


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


def choose_by_type(
    bids: Sequence[Bid],
    capacities: Mapping[str, int],
    *,
    horizon: float,
    visits: Visits = MappingProxyType({}),
) -> dict[Bid, int]:
    """
    Choose for each type of GPU, among the jobs on it and those that come from another type.

    The curve of a bid says on which type it is.
    """
    chosen: dict[Bid, int] = {}
    groups: dict[str, list[Bid]] = {}
    for bid in bids:
        groups.setdefault(bid.curve.gpu_type, []).append(bid)
    for kind, group in groups.items():
        visitors = visits.get(kind, ())
        come = {item.bid for item in visitors}
        own = [bid for bid in group if bid not in come] if come else group
        chosen |= choose(own, capacities.get(kind, 0), horizon=horizon, visitors=visitors)
    return chosen


def choose_rest(
    bids: Sequence[Bid], capacities: Mapping[str, int], *, chosen: Mapping[Bid, int], horizon: float
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

    ``visitors`` are jobs on another type, with their options on this one.
    """
    items = [
        Item(bid, list_options(bid, capacity, horizon=horizon))
        for bid in _shortlist(bids, capacity)
    ]
    items += visitors
    best = [item.best for item in items]
    if count_gpus(best) > capacity:
        if len(items) * capacity <= EXACT_CELLS:
            best = solve_exactly([item.options for item in items], capacity)
        else:
            best = solve_by_price([item.options for item in items], capacity)
    return {item.bid: gpus for item, (gpus, _, _) in zip(items, best, strict=True) if gpus}


def _shortlist(bids: Sequence[Bid], capacity: int) -> list[Bid]:
    """The jobs that run, and those that wait to which a first GPU is worth most."""
    running = [bid for bid in bids if bid.held]
    waiting = [bid for bid in bids if not bid.held]
    if len(waiting) > capacity:
        key = [(-bid.price * bid.curve.hull[1], bid.state.order) for bid in waiting]
        nearest = heapq.nsmallest(capacity, range(len(waiting)), key=key.__getitem__)
        waiting = [waiting[index] for index in sorted(nearest)]
    return running + waiting


def list_options(bid: Bid, capacity: int, *, horizon: float) -> tuple[Option, ...]:
    """List the options of a job among ``capacity`` GPUs, with their worths after the cost of the change."""
    basis = (bid.price, min(horizon, bid.horizon))
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
    held, curve, price = bid.held, bid.curve, bid.price
    # Most jobs hold no broken GPU, so each option weighs its number, and a call for each is saved.
    is_simple = bid.usable == held or bid.switches
    nothing = start = 0.0
    if held:
        # It has to save, and later to start again: a change too many, and half of one more.
        now, cost = price * curve.speeds.get(held, 0.0), bid.restart_cost_of(bid.state.least)
        # A start under way soon shows how fast the job is. Until then its GPUs are as well used as by any other job of which
        # as little is known, and a change would lose all that the start has taken.
        start = now if bid.starts_unknown else 0.0
        nothing = -max(start, now * cost / min(horizon, bid.horizon))
    yield 0, 0, nothing
    is_listed = False
    for gpus, speed in curve.options:
        weight = gpus if is_simple else weigh(bid, gpus)
        if gpus == held:
            is_listed = True
            yield gpus, weight, bid.worth(speed, cost=0.0, horizon=horizon)
        elif bid.part == 0.0:
            yield gpus, weight, price * speed
        else:
            worth = bid.worth(speed, cost=bid.cost_of(gpus), horizon=horizon)
            yield gpus, weight, worth - start
    if held in curve.speeds and not is_listed:
        # Fewer GPUs would be as fast, but to change over costs something.
        kept = bid.worth(curve.speeds[held], cost=0.0, horizon=horizon)
        yield held, weigh(bid, held), kept


def weigh(bid: Bid, gpus: int) -> int:
    """
    Return how many GPUs that others could have the job takes of its type.

    It goes on with broken ones, which no other job would get, and gives those up first.
    """
    if bid.usable == bid.held or bid.switches:
        return gpus
    if gpus <= bid.held:
        return min(gpus, bid.usable)
    return gpus - (bid.held - bid.usable)


# --- other types of GPU -------------------------------------------------------------------


def switch_types(
    bids: Sequence[Bid], capacities: Mapping[str, int], *, chosen: Mapping[Bid, int], horizon: float
) -> Visits:
    """
    Let running jobs change their types where that pays: their curves are those of the new ones.

    ``chosen`` is what each has if none does.
    """
    visits: dict[str, Sequence[Item]] = {}
    for kind, capacity in capacities.items():
        visitors = list(
            _iter_visitors(bids, kind, capacity=capacity, chosen=chosen, horizon=horizon)
        )
        if not visitors:
            continue
        visitors = heapq.nlargest(capacity, visitors, key=_rank_visitor)
        own = [bid for bid in bids if bid.curve.gpu_type == kind]
        may_stay = (Item(item.bid, (_STAYS, *item.options)) for item in visitors)
        taken = choose(own, capacity, horizon=horizon, visitors=may_stay)
        come = [item for item in visitors if item.bid in taken]
        for item in come:
            item.bid.switch(kind)
        if come:
            # They are to have something there, because others are given what they had.
            visits[kind] = come
    return visits


def _iter_visitors(
    bids: Sequence[Bid], kind: str, *, capacity: int, chosen: Mapping[Bid, int], horizon: float
) -> Iterator[Item]:
    """The running jobs of other types that would be better off on this one."""
    for bid in bids:
        if not bid.held or len(bid.curves) == 1 or bid.curve.gpu_type == kind or bid.switches:
            continue
        if bid.starts_unknown:
            continue
        curve, now = bid.curve_on(kind), bid.speed_now
        if curve is not None and curve.top > now:
            options = [each for each in curve.options if each[1] > now and each[0] <= capacity]
            item = _make_visit(bid, options, stays=chosen.get(bid, 0), horizon=horizon)
            if item.options:
                yield item


def _make_visit(bid: Bid, options: Sequence[Point], *, stays: int, horizon: float) -> Item:
    """The options of a job on another type, with the gain of each over keeping ``stays`` GPUs."""
    cost = bid.cost_of(stays) if 0 < stays != bid.held else 0.0
    now = bid.worth(bid.curve.speeds.get(stays, 0.0), cost=cost, horizon=horizon)
    discount = bid.cheapest / bid.price if bid.price > 0.0 else 0.0
    better: list[Option] = []
    for gpus, speed in options:
        gain = bid.worth(speed, cost=bid.restart_cost_of(gpus), horizon=horizon) - now
        if gain > 0:
            better.append((gpus, gpus, discount * gain))
    return Item(bid, tuple(better))


def _rank_visitor(item: Item) -> tuple[float, int]:
    return max(worth / weight for _, weight, worth in item.options), -item.bid.state.order
