"""
The memory of ONES from one decision to the next, and the limits on batch sizes (section 3.3.2).

:class:`Memory` is the policy's state. :meth:`Memory.to_plain` makes a value of it that JSON can
hold, so that the store can keep it and a restart changes nothing.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dljob.core.model import JobId, JobState
from dljob_lab.policies.elastic.ones.progress import (
    MOST_SAMPLES,
    PRIOR,
    Features,
    Line,
    Reported,
    Sample,
    fit,
)

FORM = 2
"""Raised when the plain value changes its meaning; another one is not read."""

MOST_LOGGED = 8
"""The number of moments of each job's training that are kept for the regression."""

Gene = tuple[JobId, str, int]
"""A job, a type of GPU, and how many of it the job has."""


@dataclass(frozen=True, slots=True)
class Trainee:
    """The memory about a job that has had GPUs."""

    limit: int
    """The batch limit R, as the number of GPUs that take it."""
    mark: float
    """The iterations done at the last update of the schedule, or at its start after it."""
    since: float | None
    """Since when it has GPUs."""
    ran_seconds: float = 0.0
    """How long it had GPUs before that."""
    reported: Reported = Reported()
    """Its last report, which still holds while it waits."""
    logged: tuple[Features, ...] = ()
    """The knowledge about it at some moments."""
    latest: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 1.0)
    """When it was last looked at: iterations done, speed, total, and iterations in an epoch."""
    seen_at: float = 0.0

    def ran_at(self, now: float) -> float:
        """For how long it has trained by now: ``T_processed``."""
        return self.ran_seconds + (now - self.since if self.since is not None else 0.0)

    def samples(self, now: float) -> Iterable[Sample]:
        """The samples from its training, once it has ended."""
        done, speed, total, epoch = self.latest
        final = min(max(total, done), done + speed * (now - self.seen_at)) / epoch
        for features in self.logged:
            if 0.0 < features.processed < final:
                yield Sample(features, features.processed / final)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The state of the policy."""

    decisions: int = 0
    first_at: float = 0.0
    """When the policy first saw a job."""
    first_order: int = -1
    """The last job to have arrived by then."""
    newest_order: int = -1
    """The last job to have arrived before the last update."""
    updated_at: float = 0.0
    trainees: Mapping[JobId, Trainee] = field(default_factory=dict)
    population: tuple[tuple[Gene, ...], ...] = ()
    samples: tuple[Sample, ...] = ()
    line: Line = PRIOR

    def arrival_rate(self, now: float, newest: int) -> float:
        """Jobs a second since the policy first looked: lambda."""
        arrived = newest - self.first_order
        return arrived / (now - self.first_at) if arrived and now > self.first_at else 0.0

    def forget_ended(self, living: Iterable[JobId], now: float) -> "Memory":
        """
        Learn from the jobs that are gone, and forget them.

        A policy cannot distinguish a job that converged from one that was cancelled. The paper keeps
        both in its history as well.
        """
        ended = self.trainees.keys() - set(living)
        if not ended:
            return self
        kept = {job: each for job, each in self.trainees.items() if job not in ended}
        # In the order in which the jobs were first started, not in that of a set.
        names = [job for job in self.trainees if job in ended]
        new = [sample for job in names for sample in self.trainees[job].samples(now)]
        samples = (*self.samples, *new)
        # Every n-th is left out, so that all times of the history keep their part.
        while len(samples) > MOST_SAMPLES:
            samples = samples[::2]
        line = fit(samples) if new else self.line
        return replace(self, trainees=kept, samples=samples, line=line)

    def to_plain(self) -> dict[str, Any]:
        """Make a value of dicts, lists, texts and numbers."""
        return {
            "form": FORM,
            "decisions": self.decisions,
            "first": [self.first_at, self.first_order],
            "newest": self.newest_order,
            "updated": self.updated_at,
            "trainees": {job: _plain(each) for job, each in self.trainees.items()},
            "population": [[list(gene) for gene in genome] for genome in self.population],
            "samples": [[list(features), progress] for features, progress in self.samples],
            "line": list(self.line.weights),
        }

    @classmethod
    def from_plain(cls, plain: object) -> "Memory":
        """Read what :meth:`to_plain` made; anything else is no memory at all."""
        if not isinstance(plain, Mapping) or plain.get("form") != FORM:
            return cls()
        return cls(
            decisions=plain["decisions"],
            first_at=plain["first"][0],
            first_order=plain["first"][1],
            newest_order=plain["newest"],
            updated_at=plain["updated"],
            trainees={JobId(job): _trainee(each) for job, each in plain["trainees"].items()},
            population=tuple(
                tuple((JobId(job), kind, gpus) for job, kind, gpus in genome)
                for genome in plain["population"]
            ),
            samples=tuple(
                Sample(Features(*features), progress) for features, progress in plain["samples"]
            ),
            line=Line(tuple(plain["line"])),
        )


def _plain(trainee: Trainee) -> list[Any]:
    return [
        trainee.limit,
        trainee.mark,
        trainee.since,
        trainee.ran_seconds,
        list(trainee.reported),
        [list(each) for each in trainee.logged],
        list(trainee.latest),
        trainee.seen_at,
    ]


def _trainee(plain: list[Any]) -> Trainee:
    limit, mark, since, ran, reported, logged, latest, seen_at = plain
    moments = tuple(Features(*each) for each in logged)
    return Trainee(limit, mark, since, ran, Reported(*reported), moments, tuple(latest), seen_at)


# --- the four limits ----------------------------------------------------------------------

MOST_DOUBLINGS = 20
"""Every limit is reached by then; without a bound the whole number would grow for ever."""


def start_limit(state: JobState) -> int:
    """*Start*: a job begins with the batch of its fewest GPUs."""
    return state.least


def resume_limit(limit: int, *, least: int) -> int:
    """*Resume*: a preempted job may have what it had, and half of it each time it is passed over."""
    return max(least, limit // 2)


def grow_limit(limit: int, epochs: int, *, most: int) -> int:
    """*Scale up*: the limit doubles after each epoch."""
    return min(most, limit << min(epochs, MOST_DOUBLINGS))


def shrink_limit(
    limit: int, epochs: int, *, most: int, ran_seconds: float, penalty: float, least: int
) -> int:
    """
    *Scale down*: what a job may have that has trained longer than jobs take to arrive.

    ``ceil(2 R / ceil(sigma T + 1))``: the factor 2 is the doubling of one epoch, so the rule takes the place of
    :func:`grow_limit` and does not follow it. R is the limit that the job would have without the penalty: applied
    to its own result again and again, the rule would bring every job down to nothing.
    """
    lateness = penalty * ran_seconds
    if lateness <= 1.0:
        return grow_limit(limit, epochs, most=most)
    penalized = math.ceil((limit << min(epochs, MOST_DOUBLINGS)) / math.ceil(lateness + 1.0))
    return max(least, min(most, penalized))
