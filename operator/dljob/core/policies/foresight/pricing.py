"""
The worth of a GPU to each job: prices at which the sum of all completion times is least.

While the set of jobs stays the same, one unit of work of a job has a constant worth: its *price*. The
best shares at any moment are those that maximise the sum of price x speed, and at the best prices
that sum is just the number of present jobs, because each second costs each of them a second.
So prices follow backwards from the job that ends last: with the prices of those behind it known, the
price of a job is the least at which the maximum grows by its weight.

For whole GPUs that maximum is greedy. Each GPU of the cluster is a *slot* that holds the worth of its
best use. A job that takes k GPUs takes the k slots of least worth, so that its price is

    min over k of (weight + worth of the k least slots) / speed on k GPUs

and it then puts its own worth into these slots. One sorted list of slots for each type of GPU is all
that is kept, so a price takes a few steps, however many jobs there are.

SmartFill (arXiv 2509.01811) has the argument. Two things are added. Slots do not begin empty but with a
part of the price at which GPUs changed hands lately, which is what the jobs that are yet to arrive
will want them for. And near the front of the line neighbours change places where the sum of price x
work falls by it, because no formula knows the order in which jobs end.

:mod:`dljob_lab.policies.common.pricing` finds the same prices where neither is added, of parts of GPUs as well: it keeps
the GPUs of equal worth together in a heap. Here each GPU has its own slot in a sorted list, because several
quotes are asked for, on several types and in both orders of two neighbours, before one is taken.
"""

import math
from bisect import insort
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dljob.core.policies.foresight.bids import Bid
from dljob.core.policies.foresight.curves import Curve, narrow

EXCHANGED = 128
"""The number of jobs at the front of the line of which neighbours may change places."""

Slots = list[float]
"""Worth per second of the best use of each GPU of a type, in ascending order."""


class Quote(NamedTuple):
    """The lowest price at which a job pays for displaced work, and its number of GPUs."""

    price: float
    gpus: int
    curve: Curve


def find_prices(
    bids: Sequence[Bid], capacities: Mapping[str, int], *, floors: Mapping[str, float]
) -> dict[str, float]:
    """
    Set the price and the curve of every bid; return what the least used GPU of each type is worth.

    ``floors`` says what every slot of a type is worth at first. Where lengths are unknown, prices are
    the means over the lengths that are supposed.
    """
    samples = max((len(bid.lefts) for bid in bids), default=0)
    if not samples:
        return _price_once(bids, capacities, floors=floors)
    expected = [bid.left for bid in bids]
    prices = [(0.0, 0.0)] * len(bids)
    levels = dict.fromkeys(capacities, 0.0)
    for sample in range(samples):
        for bid in bids:
            if bid.lefts:
                bid.left = bid.lefts[sample]
        for kind, level in _price_once(bids, capacities, floors=floors).items():
            levels[kind] += level / samples
        prices = [
            (price + bid.price / samples, cheapest + bid.cheapest / samples)
            for (price, cheapest), bid in zip(prices, bids, strict=True)
        ]
    for bid, (price, cheapest), left in zip(bids, prices, expected, strict=True):
        bid.price, bid.cheapest, bid.left = price, cheapest, left
    return levels


def fix_sizes(
    bids: Sequence[Bid], capacities: Mapping[str, int], *, worths: Mapping[str, float]
) -> bool:
    """
    Let jobs that wait and will keep what they start with bid for one number of GPUs; say whether there are any.

    ``worths`` says how much a GPU of each type is worth to others. No other job gets the GPUs that such
    jobs hold already.
    """
    waiting = [bid for bid in bids if bid.state.keeps_first and not bid.held]
    if not waiting:
        return False
    supply = dict(capacities)
    for bid in bids:
        if bid.held and bid.state.unsaved_from is not None and not bid.state.is_live:
            supply[bid.curve.gpu_type] -= bid.usable
    for bid in waiting:
        bid.curves = tuple(
            narrow(
                curve,
                weight=bid.weight,
                worth=worths.get(curve.gpu_type, 0.0),
                supply=supply[curve.gpu_type],
            )
            for curve in bid.curves
        )
        bid.curve = bid.curves[0]
    return True


def _price_once(
    bids: Sequence[Bid], capacities: Mapping[str, int], *, floors: Mapping[str, float]
) -> dict[str, float]:
    slots: dict[str, Slots] = {
        # A type without GPUs to assign still has a price, for the jobs that continue on it.
        kind: [floors.get(kind, 0.0)] * max(1, gpus)
        for kind, gpus in capacities.items()
    }
    line = sorted(bids, key=_rank)
    for bid in reversed(line[EXCHANGED:]):
        _settle(slots, bid, quote=_quote(slots, bid))
    _settle_exchanging(slots, line[:EXCHANGED])
    return {kind: worths[0] for kind, worths in slots.items()}


def _rank(bid: Bid) -> tuple[float, int]:
    """Return the sort key of the expected order of job ends."""
    fastest = max(curve.pace for curve in bid.curves)
    return bid.left / (fastest * bid.weight), bid.state.order


def _settle_exchanging(slots: Mapping[str, Slots], line: Sequence[Bid]) -> None:
    """Settle jobs from the last to the first; each may let the one before it end after it."""
    if not line:
        return
    last = line[-1]
    for before in reversed(line[:-1]):
        as_ranked = _sum_of_two(slots, last, before=before)
        exchanged = _sum_of_two(slots, before, before=last)
        settled, last = (last, before) if as_ranked <= exchanged else (before, last)
        _settle(slots, settled, quote=_quote(slots, settled))
    _settle(slots, last, quote=_quote(slots, last))


def _sum_of_two(slots: Mapping[str, Slots], last: Bid, *, before: Bid) -> float:
    """The sum of price x work of two jobs, if the first of them ends last."""
    quote = _quote(slots, last)
    kind = quote.curve.gpu_type
    filled = slots[kind][:]
    _fill(filled, quote)
    later = _quote({**slots, kind: filled}, before)
    return quote.price * last.left + later.price * before.left


def _quote(slots: Mapping[str, Slots], bid: Bid) -> Quote:
    if bid.held or len(bid.curves) == 1:
        # A job that runs stays on its type: the price on a better one would undervalue it there.
        return _quote_on(slots[bid.curve.gpu_type], bid.curve, weight=bid.weight)
    quotes = [_quote_on(slots[curve.gpu_type], curve, weight=bid.weight) for curve in bid.curves]
    return min(quotes, key=lambda quote: quote.price)


def _quote_on(worths: Slots, curve: Curve, *, weight: float) -> Quote:
    """Take the slots of least worth one by one while the price falls."""
    best, gpus, total = math.inf, 0, weight
    for slot, speed in zip(worths, curve.hull[1:], strict=False):
        total += slot
        price = total / speed
        if price >= best:
            break
        best = price
        gpus += 1
    return Quote(best, gpus, curve)


def _settle(slots: Mapping[str, Slots], bid: Bid, *, quote: Quote) -> None:
    bid.price = bid.cheapest = quote.price
    if not bid.held:
        bid.curve = quote.curve
    else:
        for curve in bid.curves:
            if curve is not bid.curve:
                other = _quote_on(slots[curve.gpu_type], curve, weight=bid.weight)
                bid.cheapest = min(bid.cheapest, other.price)
    _fill(slots[quote.curve.gpu_type], quote)


def _fill(worths: Slots, quote: Quote) -> None:
    """Put the worth of a job's GPUs into the slots that it takes."""
    del worths[: quote.gpus]
    for step in quote.curve.steps[: quote.gpus]:
        insort(worths, quote.price * step)
