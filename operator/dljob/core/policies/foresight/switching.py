"""
Which running jobs go to another type of GPU, where they are faster.

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
from collections.abc import Iterator, Mapping, Sequence

from dljob.core.policies.common.multiple_choice import Option
from dljob.core.policies.foresight.bids import Bid
from dljob.core.policies.foresight.choosing import Item, choose
from dljob.core.policies.foresight.curves import Point

Visits = Mapping[str, Sequence[Item]]
"""The jobs that come to each type from another one, with the options that they have there."""

_STAYS: Option = (0, 0, 0.0)


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
        visitors = heapq.nlargest(capacity, visitors, key=_rank)
        own = [bid for bid in bids if bid.curve.gpu_type == kind]
        taken = choose(own, capacity, horizon=horizon, visitors=map(_may_stay, visitors))
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
        gain = bid.worth(speed, cost=bid.cost_of(gpus), horizon=horizon) - now
        if gain > 0:
            better.append((gpus, gpus, discount * gain))
    return Item(bid, tuple(better))


def _may_stay(item: Item) -> Item:
    return Item(item.bid, (_STAYS, *item.options))


def _rank(item: Item) -> tuple[float, int]:
    return max(worth / weight for _, weight, worth in item.options), -item.bid.state.order
