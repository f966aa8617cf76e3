"""
How the metric of a simulated job really moves, which only the world knows beforehand.

:mod:`dljob.sim.jobs.workloads` attaches one to a job; :mod:`dljob.sim.engine.world` lets the job report from it.
"""

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """
    A synthetic truth: an accuracy that rises as ``c - 1 / (b0 k + b1)`` over ``k`` iterations.

    It is Optimus's curve of a falling loss turned upside down; one that ``falls`` is Optimus's own,
    ``c + 1 / (b0 k + b1)``. A job reports the truth plus noise, which depends on the seed
    and the iteration alone, so that a second call returns the same.
    """

    b0: float
    b1: float
    c: float
    """The value that it approaches and never reaches."""
    sigma: float = 0.0
    """The standard deviation of the noise."""
    seed: int = 0
    falls: bool = False

    def truth_at(self, iteration: float) -> float:
        gap = 1.0 / (self.b0 * iteration + self.b1)
        return self.c + gap if self.falls else self.c - gap

    def accuracy_at(self, iteration: float) -> float:
        """Return the job's report at this iteration."""
        if self.sigma == 0.0:
            return self.truth_at(iteration)
        # A string, because Python seeds with those alike in every process.
        noise = random.Random(f"{self.seed}/{iteration!r}").gauss(0.0, self.sigma)
        return self.truth_at(iteration) + noise

    def iterations_to(self, value: float) -> float:
        """Return when the truth reaches ``value``; infinite when it never does."""
        gap = value - self.c if self.falls else self.c - value
        if gap <= 0.0:
            return math.inf
        return max(0.0, (1.0 / gap - self.b1) / self.b0)
