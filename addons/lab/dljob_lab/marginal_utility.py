"""
Coach's marginal utility: how fast a job trains with a number of workers, by a parabola fitted to a
few.

Lövenvald (Umeå University, 2021), section 4.2. It exists next to our own prediction
(:mod:`dljob.core.predicting.speed_curves`, :mod:`dljob.core.predicting.relating`), for comparison: ``dljob
simulate --predictor marginal-utility`` lets policies believe it, and ``benchmarks/prediction.py
--speeds`` holds both against measured speeds.

The thesis fits ``s = -b1 (w - b2)^2 - b3 (p - b4)^2 + b5`` by least squares to the epochs a second
that were seen with w workers and p parameter servers; the next pod is a worker if one more adds
more to s than a server does, and none is added where neither adds anything. Where it leaves room,
this is what its author's program does (github.com/Frans-Lukas/DLScheduler,
``leastSquaresFunc.py``): no coefficient is below zero, and the search begins with all of them at 1.
Speeds are divided by the largest one first, so that the outcome does not depend on the unit of
time.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dljob.core.predicting.speed_curves import points_by_type
from dljob.core.profiles import Profile, Speed
from dljob_lab.roles import Split, list_next
from dljob_wire.messages import Shape

FLOOR = 1e-3
"""
A parabola falls below zero far from its top, and a speed does not: this share of the largest one
seen is believed there, so that such a number of GPUs is never chosen and can still be compared.
"""


class Sample(NamedTuple):
    """One observed speed of a job."""

    workers: int
    servers: int
    per_s: float


class Utility(NamedTuple):
    """The fitted function: five coefficients, in the order of the thesis."""

    bend_by_workers: float
    best_workers: float
    bend_by_servers: float
    best_servers: float
    most: float
    unit: float
    """The speed that counts as 1."""

    def speed(self, workers: int, servers: int) -> float:
        """Iterations or epochs a second, never below a small share of the observed speed."""
        return self.unit * max(FLOOR, self._value(workers, servers))

    def _value(self, workers: int, servers: int) -> float:
        by_workers = self.bend_by_workers * (workers - self.best_workers) ** 2
        by_servers = self.bend_by_servers * (servers - self.best_servers) ** 2
        return self.most - by_workers - by_servers

    def gain(self, old: Split, new: Split) -> float:
        """By how much the speed rises with the new numbers; below zero where it falls."""
        return self.unit * (self._value(*new) - self._value(*old))


def fit(samples: Iterable[Sample]) -> Utility:
    """Fit the function to at least one sample."""
    return _fit(tuple(samples))


@lru_cache(maxsize=4096)
def _fit(samples: tuple[Sample, ...]) -> Utility:
    # Not at the top: the solver takes as long to import as all the rest of the brain.
    from scipy.optimize import least_squares  # noqa: PLC0415

    workers = np.array([sample.workers for sample in samples], dtype=float)
    servers = np.array([sample.servers for sample in samples], dtype=float)
    speeds = np.array([sample.per_s for sample in samples])
    unit = float(speeds.max())

    def miss(b: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> object:
        parabola = -b[0] * (workers - b[1]) ** 2 - b[2] * (servers - b[3]) ** 2 + b[4]
        return parabola - speeds / unit

    found = least_squares(miss, np.ones(5), bounds=(0.0, np.inf))
    bend_by_workers, best_workers, bend_by_servers, best_servers, most = map(float, found.x)
    return Utility(bend_by_workers, best_workers, bend_by_servers, best_servers, most, unit)


def choose(utility: Utility, splits: Collection[Split]) -> Split:
    """Return where the function leads from the smallest choice: the larger gain first, a worker at equal ones."""
    now = min(splits)
    while steps := list_next(now, splits):
        best = max(steps, key=lambda step: utility.gain(now, step))
        if utility.gain(now, best) <= 0.0:
            break
        now = best
    return now


def believe(profile: Profile, shapes: Iterable[Shape], *, split: Callable[[int], Split]) -> Profile:
    """
    The profile of a job that holds only the fitted speed in each of these shapes.

    The function knows neither nodes nor types of GPU. It is fitted to the measurements of a type,
    or to all where a type was not measured. ``split`` says what a number of GPUs is to the job.
    """
    samples = sample(profile, split=split)
    if not samples:
        return profile
    utilities = {kind: fit(each) for kind, each in samples.items()}
    usual = fit([sample for each in samples.values() for sample in each])
    speeds = {
        shape: Speed(utilities.get(shape.gpu_type, usual).speed(*split(shape.gpus)))
        for shape in shapes
    }
    return replace(profile, speeds=speeds)


def sample(profile: Profile, *, split: Callable[[int], Split]) -> Mapping[str, list[Sample]]:
    """Return the measured speeds of each type of GPU, by workers and servers."""
    return {
        kind: [Sample(*split(point.gpus), point.speed) for point in points]
        for kind, points in points_by_type(profile).items()
    }
