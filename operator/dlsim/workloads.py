"""
A workload: jobs with the truth about them that no policy is told.

:func:`read` makes one of a trace or of job files; :mod:`dlsim.world` plays it. ``dljob simulate``
and ``dljob reproduce`` call both.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dlcore.model import Job
from dlcore.profiles import JobType, Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """
    The synthetic truth of an accuracy that rises: ``c - 1 / (b0 k + b1)`` after ``k`` iterations.

    It is Optimus's curve of a falling loss turned upside down. What a job reports is the truth
    plus noise, which depends on the seed and the iteration alone: whoever asks twice hears the same.
    """

    b0: float
    b1: float
    c: float
    sigma: float = 0.0
    seed: int = 0

    def truth_at(self, iteration: float) -> float:
        """The accuracy without noise."""
        return self.c - 1.0 / (self.b0 * iteration + self.b1)

    def accuracy_at(self, iteration: float) -> float:
        """What the job reports at this iteration."""
        if self.sigma == 0.0:
            return self.truth_at(iteration)
        # A string, because Python seeds with those alike in every process.
        noise = random.Random(f"{self.seed}/{iteration!r}").gauss(0.0, self.sigma)
        return self.truth_at(iteration) + noise

    def iterations_to(self, value: float) -> float:
        """When the truth reaches ``value``; infinite when it never does."""
        if value >= self.c:
            return float("inf")
        return max(0.0, (1.0 / (self.c - value) - self.b1) / self.b0)


@dataclass(frozen=True, slots=True)
class TracedJob:
    """A job, and how long it really trains."""

    job: Job
    iterations: float
    """The true number that it needs."""
    learning: Learning | None = None
    """How its metric rises, for a job that is done when a target is reached."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs in order of submission; those of one instant keep the order of their file."""

    name: str
    jobs: tuple[TracedJob, ...]
    truths: Mapping[JobType, Profile]
    """The true speeds, which a policy need not know."""
    known: Mapping[JobType, Profile]
    """What policies may look at."""


def read(
    path: Path,
    *,
    rigid: bool,
    speeds: Mapping[JobType, Profile] | None,
    seed: int,
    gpu_types: tuple[str, ...],
    largest: int,
) -> Workload:
    """Read a trace or DLJob files; a job larger than ``largest`` GPUs is kept, and dropped by the world."""
    raise NotImplementedError
