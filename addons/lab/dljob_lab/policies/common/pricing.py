"""
The price of a unit of each job's speed, and how many GPUs each job gets at such prices.

After "SmartFill" (arXiv 2509.01811): for jobs that are all present, that never lose any speed from
more GPUs and of which each GPU more adds less, the schedule with the least total weighted flow
time gives every job a price that stays the same until it ends. At every moment GPUs go where
price x gain in speed is greatest. Pure functions of numbers; policies call them with the hulls of
:mod:`dljob.core.policies.common.hulls`.
"""

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dljob.core.model import JobId
from dljob.core.policies.common.hulls import Step
from dljob_lab.policies.common.speed_curves import Curve

Slots = list[tuple[float, float]]
"""A heap of (what a GPU is worth where it is, how many GPUs are worth that)."""


def find_prices(
    hulls: Sequence[Sequence[Step]], weights: Sequence[float], *, gpus: float
) -> list[float]:
    """
    Find the constant prices of jobs that end in the given order, for ``gpus`` GPUs.

    Backwards, from the last to end: while the jobs i, i+1, … are active, the most that price x
    speed can add up to over all shares equals the sum of their weights. The jobs after i reach
    theirs with all GPUs; with k fewer they lose what their k worst GPUs add. So the price of job i
    is the least over k of (its weight + what those k GPUs add where they are) / its speed on k.
    Only the value of each GPU has to be remembered on the way, those of one value together.

    The sum of price x remaining work is the total weighted flow time, exactly. GPUs may be parts
    of GPUs: with steps fine enough the prices are those of a smooth curve. Without GPUs no price
    is high enough.
    """
    slots: Slots = [(0.0, gpus)] if gpus > 0 else []
    prices = [
        _enter(slots, hull, weight=weight)
        for hull, weight in zip(reversed(hulls), reversed(weights), strict=True)
    ]
    return prices[::-1]


def _enter(slots: Slots, hull: Sequence[Step], *, weight: float) -> float:
    """Find the price of a job, and let it take its GPUs from where they are worth least."""
    # cost / speed falls as long as the next GPU costs less than the ratio x what it adds, and it
    # rises from there on, because costs rise and gains fall.
    cost, speed, ratio = weight, 0.0, math.inf
    taken: list[tuple[float, float]] = []
    for gpus, gain in hull:
        left = gpus
        while left > 0 and slots and slots[0][0] < ratio * gain:
            value, there = slots[0]
            here = min(left, there)
            if here == there:
                heapq.heappop(slots)
            else:
                heapq.heapreplace(slots, (value, there - here))
            cost += value * here
            speed += gain * here
            ratio = cost / speed
            left -= here
        taken.append((gain, gpus - left))
        if left > 0:
            break
    for gain, count in taken:
        if count > 0:
            heapq.heappush(slots, (ratio * gain, count))
    return ratio


def fill(curves: Sequence[Curve], prices: Sequence[float], *, gpus: int) -> list[int]:
    """
    Share GPUs out by price x gain in speed, and return how many each job gets.

    Steps of the hulls are taken in the order of the worth of their GPUs, equals in the order of
    the jobs. On hulls whose steps are one GPU each that is the best solution. Where a step is
    wider than the rest, its job is passed; GPUs that are left in the end go, in the same order, to
    options that are no corners of a hull.
    """
    counts = [0] * len(curves)
    order = _rank_steps(curves, prices)
    done = [0] * len(curves)
    passed: dict[int, None] = {}
    for job in order:
        if gpus == 0:
            return counts
        # A job that was passed is out, because its later steps build on the one that did not fit.
        if job in passed:
            continue
        width = int(curves[job].steps[done[job]].gpus)
        if width > gpus:
            passed[job] = None
            continue
        done[job] += 1
        counts[job] += width
        gpus -= width
    for job in passed:
        between = (o for o in curves[job].options if counts[job] < o <= counts[job] + gpus)
        larger = max(between, default=counts[job])
        gpus -= larger - counts[job]
        counts[job] = larger
    return counts


class Priced(NamedTuple):
    """A job at its price, with the GPUs that it was given."""

    curve: Curve
    price: float
    given: int

    @property
    def worth(self) -> float:
        """The worth to it of the last GPU that it was given, or of the first one where it has none."""
        reached = 0.0
        for gpus, gain in self.curve.steps:
            reached += gpus
            if reached >= self.given:
                return self.price * gain
        return 0.0


class Worths(Mapping[JobId, float]):
    """The worth of a GPU to each job; computed on demand, because callers ask about few of thousands."""

    def __init__(self, priced: Mapping[JobId, Priced]) -> None:
        self._priced = priced

    def __getitem__(self, job: JobId) -> float:
        return self._priced[job].worth

    def __iter__(self) -> Iterator[JobId]:
        return iter(self._priced)

    def __len__(self) -> int:
        return len(self._priced)


def _rank_steps(curves: Sequence[Curve], prices: Sequence[float]) -> list[int]:
    """The jobs whose step is next, once for each step of each."""
    lengths = [len(curve.steps) for curve in curves]
    jobs = np.repeat(np.arange(len(curves)), lengths)
    gains = np.array([step.gain for curve in curves for step in curve.steps])
    worth = gains * np.repeat(np.asarray(prices, dtype=float), lengths)
    ranked: list[int] = jobs[np.argsort(-worth, kind="stable")].tolist()
    return ranked
