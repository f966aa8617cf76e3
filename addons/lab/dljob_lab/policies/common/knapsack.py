"""
The shares of jobs with given curves and prices that add up to the most on a number of GPUs.

:func:`dljob_lab.policies.common.pricing.fill` finds them greedily, and here they are found exactly: bounds exclude most options,
and :mod:`.multiple_choice` decides between the rest. Pure functions of numbers; policies call :func:`solve` with
curves whose "speed" may be anything that grows with the GPUs, and the value that each reaches at its peak.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dljob.core.policies.common.multiple_choice import Floats, Option, solve_exactly
from dljob_lab.policies.common.pricing import fill
from dljob_lab.policies.common.speed_curves import Curve

MOST_CELLS = 100_000_000
"""The most additions of the dynamic programme, which take about a fifth of a second."""

_SLACK = 1e-12
"""By what share of the bound two sums may differ and count as equal, because they are rounded."""

Whole = NDArray[np.int64]


class _Options(NamedTuple):
    """All options of all jobs in a row, no GPUs being the first of each job."""

    job: Whole
    gpus: Whole
    value: Floats


def solve(
    curves: Sequence[Curve], prices: Sequence[float], *, gpus: int, most_cells: int = MOST_CELLS
) -> list[int]:
    """
    Choose how many GPUs each job has, so that price x speed adds up to the most.

    The linear relaxation bounds the sum from above and greed reaches one close below. An option that
    loses more against the bound than that gap is excluded, exactly; dynamic programming decides
    between the few that are left. That is exact as long as it takes at most ``most_cells``
    additions; beyond, the greedy shares are kept, which are less than one step of one job from the
    bound.
    """
    if gpus <= 0 or not curves:
        return [0] * len(curves)
    if len(curves) == 1 and prices[0] > 0.0:
        # Auctions of one job are most of them where leases end one by one.
        return [max(curves[0].options_to(gpus), default=0)]
    counts = fill(curves, prices, gpus=gpus)
    options = _list_options(curves, prices)
    rate = _find_rate(curves, prices, gpus=gpus)
    if rate <= 0.0:
        return counts  # All are at their peaks.
    reached = sum(p * c.speed(n) for p, c, n in zip(prices, curves, counts, strict=True))
    kept = _reduce(options, len(curves), rate=rate, gpus=gpus, reached=reached)
    if kept is None:
        return counts
    core, base = _Core(kept, len(curves)), gpus
    base -= core.fewest
    if base < 0 or core.count_cells(base) > most_cells:
        return counts
    chosen, value = core.search(base)
    return chosen if value > reached else counts


def _list_options(curves: Sequence[Curve], prices: Sequence[float]) -> _Options:
    lengths = [len(curve.options) + 1 for curve in curves]
    job = np.repeat(np.arange(len(curves)), lengths)
    gpus = np.array([n for curve in curves for n in (0, *curve.options)], dtype=np.int64)
    speed = np.array([s for curve in curves for s in (0.0, *curve.speeds)])
    return _Options(job, gpus, speed * np.asarray(prices, dtype=float)[job])


def _find_rate(curves: Sequence[Curve], prices: Sequence[float], *, gpus: int) -> float:
    """The worth of one more GPU in the relaxation, where steps of the hulls may be cut."""
    steps = [
        (price * step.gain, step.gpus)
        for price, curve in zip(prices, curves, strict=True)
        for step in curve.steps
    ]
    if not steps:
        return 0.0
    worth, width = np.array(steps).T
    order = np.argsort(-worth, kind="stable")
    full = np.searchsorted(np.cumsum(width[order]), gpus, side="right")
    return float(worth[order[full]]) if full < len(order) else 0.0


def _reduce(
    options: _Options, jobs: int, *, rate: float, gpus: int, reached: float
) -> _Options | None:
    """Leave out options that cannot be part of a better solution; ``None`` if none can."""
    gain = options.value - rate * options.gpus
    starts = np.searchsorted(options.job, np.arange(jobs))
    best = np.maximum.reduceat(gain, starts)
    bound = float(best.sum()) + rate * gpus
    may = bound - (best[options.job] - gain) > reached + _SLACK * abs(bound)
    if np.bincount(options.job[may], minlength=jobs).min() == 0:
        return None
    return _Options(options.job[may], options.gpus[may], options.value[may])


class _Core:
    """The options between which nothing is decided yet."""

    def __init__(self, kept: _Options, jobs: int) -> None:
        starts = np.searchsorted(kept.job, np.arange(jobs))
        self.kept = kept
        self.counts = kept.gpus[starts].tolist()
        self.value = float(kept.value[starts].sum())
        self.fewest = int(kept.gpus[starts].sum())
        """How many GPUs the smallest options take that are left."""
        more = kept.gpus - kept.gpus[starts][kept.job]
        gain = kept.value - kept.value[starts][kept.job]
        self.unit = int(np.gcd.reduce(more)) or 1
        self.choices: dict[int, list[Option]] = {}
        for job, gpus, value in zip(kept.job.tolist(), more.tolist(), gain.tolist(), strict=True):
            if gpus > 0:
                options = self.choices.setdefault(job, [(0, 0, 0.0)])
                options.append((gpus, gpus // self.unit, value))

    def count_cells(self, gpus: int) -> int:
        """Return how many additions a search makes."""
        return (gpus // self.unit + 1) * sum(len(each) - 1 for each in self.choices.values())

    def search(self, gpus: int) -> tuple[list[int], float]:
        """Decide by dynamic programming over the GPUs that are left; return counts and the sum."""
        chosen = solve_exactly(list(self.choices.values()), gpus // self.unit)
        counts = list(self.counts)
        for job, (more, _, _) in zip(self.choices, chosen, strict=True):
            counts[job] += more
        return counts, self.value + sum(value for _, _, value in chosen)
