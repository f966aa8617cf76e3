"""
The search for the prices that prove the highest bound.

:mod:`dljob_lab.bounding.bounds` calls :func:`choose_edges` and :func:`ascend` with the times of a reference run.
Any prices prove something, so nothing here can make a bound wrong, only low.

The first prices follow the reference run: for jobs that are all present and scale as k^p, the
optimal price of a GPU is p n / M with n active jobs on M GPUs, so the search begins at the best
multiple of n / M. Then each round raises prices where the jobs would take more GPUs than there
are, and lowers them where they would take fewer. The step is a share of the price, because prices
differ by orders of magnitude between a crowded hour and the tail of a trace, and it adapts: longer
while rounds prove more and more, shorter when one proves less.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dljob_lab.bounding.dual import Dual, Floats

Watch = Callable[[int, int], None]
"""Called with (rounds done, rounds in all), for a progress bar."""

SCALES = tuple(0.05 * 1.35**step for step in range(12))
"""The multiples of n / M that are tried first, from 0.05 to 1.36."""

FIRST_STEP, LONGEST_STEP = 0.5, 0.75
"""By what share of a price a round changes it where the jobs take twice the GPUs that there are."""

LONGER, SHORTER = 1.1, 0.75
"""The factors of the step after a round that proved more than the one before, or less."""

MOST_LOST = 0.05
"""When a round proves less than the best by more than this share, the search goes back to the best prices."""

WIDEST_SPREAD = 0.05
NARROWING = 0.93
"""
How much jobs are taken to spread over completion times in the first round, and the factor by which
this shrinks in each further one. Wide, jobs that are alike do not all rush into one bin; narrow, prices that are
already good become better.
"""

MOMENTUM = 0.8
"""How much of the last round's direction is kept, because demand jumps back and forth."""

MOST_EXCESS = 2.0
"""The most that demand counts for, above the GPUs of the cluster and in units of them."""

LEAST_SHARE = 0.02
"""A price below this share of the highest moves in steps of this share, or 0 would stay 0."""

BY_EVENTS, BY_ACTIVE = 0.3, 0.4
"""
By what bins are spaced: events of the reference run, and its job-seconds; the rest is by time.

Events alone leave long stretches with few of them in one bin although prices move there as well;
on the traces that were tried, 400 bins spaced like this prove more than 1,600 by events alone.
"""

TAIL_SHARE = 0.05
"""How far the bins reach beyond the end of the reference run, as a share of its length."""

TAIL_BINS = 5


class Times(NamedTuple):
    """When the jobs of the reference run came and went, each sorted."""

    submitted: Floats
    completed: Floats

    def active_at(self, times: Floats) -> Floats:
        """Return how many jobs there were at each of these times."""
        came = np.searchsorted(self.submitted, times, side="right")
        went = np.searchsorted(self.completed, times, side="right")
        return (came - went).astype(float)


@dataclass(frozen=True, slots=True)
class Ascent:
    """The best prices that were found, and how the search went."""

    prices: Floats
    values: tuple[float, ...]
    """The best sum of completion times proven after each round."""


def choose_edges(times: Times, earliest_end: float, *, bins: int) -> Floats:
    """
    Choose the edges of about ``bins`` bins, from the first submission to beyond the last end.

    ``earliest_end`` is a time by which no schedule can have ended; the bins reach beyond it.
    """
    events = np.sort(np.concatenate([times.submitted, times.completed]))
    at = np.unique(events)
    end = max(float(at[-1]), earliest_end)
    tail = np.linspace(end, end + TAIL_SHARE * (end - at[0]) + 1.0, TAIL_BINS + 1)
    if len(at) == 1:
        return np.unique(np.concatenate([at, tail]))
    counts = np.searchsorted(events, at, side="right") / len(events)
    lengths = np.diff(at)
    active = np.concatenate([[0.0], np.cumsum(times.active_at(at[:-1]) * lengths)])
    shares = (at - at[0]) / (at[-1] - at[0])
    weight = BY_EVENTS * counts + (1.0 - BY_EVENTS - BY_ACTIVE) * shares
    weight += BY_ACTIVE * active / max(active[-1], 1e-300)
    edges = np.interp(np.linspace(weight[0], weight[-1], bins + 1), weight, at)
    return np.unique(np.concatenate([edges, tail]))


def start_prices(dual: Dual, times: Times) -> Floats:
    """The best multiple of the active jobs for each GPU; faster types cost more by their speed."""
    market = dual.market
    middles = (market.edges[1:] + market.edges[:-1]) / 2.0
    active = times.active_at(middles) / max(market.capacity.sum(), 1.0)
    shape = active[:, None] * dual.type_values[None, :]
    return max((scale * shape for scale in SCALES), key=lambda each: dual.prove(each).total_s)


def ascend(dual: Dual, prices: Floats, *, rounds: int, watch: Watch | None = None) -> Ascent:
    """Improve the prices for ``rounds`` rounds and keep the best."""
    best, step = _Point(prices, -np.inf, prices), FIRST_STEP
    values: list[float] = []
    point, drift = best, np.zeros_like(prices)
    for done in range(rounds):
        last = point
        point = _look(dual, prices, spread=WIDEST_SPREAD * NARROWING**done)
        best = max(best, point, key=lambda each: each.value)
        values.append(best.value)
        step *= LONGER if point.value > last.value else SHORTER
        step = min(step, LONGEST_STEP)
        if point.value < best.value - MOST_LOST * abs(best.value):
            point, step = best, step / 2.0
            drift = np.zeros_like(prices)
        drift = MOMENTUM * drift + (1.0 - MOMENTUM) * point.excess
        unit = np.maximum(point.prices, LEAST_SHARE * point.prices.max(axis=0))
        prices = np.maximum(0.0, point.prices + step * unit * drift)
        if watch is not None:
            watch(done + 1, rounds)
    return Ascent(best.prices, tuple(values))


class _Point(NamedTuple):
    """Prices, what they prove, and how much more GPUs the jobs would take than there are."""

    prices: Floats
    value: float
    excess: Floats


def _look(dual: Dual, prices: Floats, *, spread: float) -> _Point:
    proof = dual.prove(prices, spread=spread)
    excess = np.clip(proof.used / dual.market.capacity - 1.0, -1.0, MOST_EXCESS)
    return _Point(prices, proof.total_s, excess)
