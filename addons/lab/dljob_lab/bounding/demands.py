"""
The least needs of each job of a workload, in numbers that :mod:`dljob_lab.bounding.dual` can price.

:mod:`dljob_lab.bounding.bounds` calls :func:`read_demands` once for each workload and setting. Everything here
errs on the side of the job: each number is never slower, later or dearer than the best that any policy can
give to the job in :class:`dljob.sim.engine.world.World`, because a bound may only err in that direction.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from dljob.core.model import Cluster, GpuDemand, JobId, JobState, Mechanism
from dljob.core.placement import largest
from dljob.core.predicting.predictor import Predictor
from dljob.sim.engine.settings import Setting
from dljob.sim.errors import BadInput
from dljob.sim.jobs.workloads import TracedJob, Workload
from dljob_lab.bounding.batches import find_progress
from dljob_wire.messages import Shape


class Option(NamedTuple):
    """A way to run a job: a number of GPUs out of these types, and the best speed that they give."""

    types: tuple[str, ...]
    """One type, or the types that are mixed in the job, which has at least one GPU of each."""
    gpus: int
    speed: float
    """
    Iterations of the own batch per second, on the nodes where these GPUs are
    fastest and with the batch that makes most progress.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A job as the bound sees it."""

    job: JobId
    submitted_at: float
    starts_after_s: float
    """How long after its submission its first step is at the earliest."""
    iterations: float
    options: tuple[Option, ...]
    starting_gpu_s: float
    """GPU seconds that it holds before its first step, while its process starts."""

    @property
    def alone_s(self) -> float:
        """Its completion time on an empty cluster."""
        return self.starts_after_s + self.iterations / max(each.speed for each in self.options)


@dataclass(frozen=True, slots=True)
class Demands:
    """All jobs that can complete, and the GPUs of the cluster."""

    jobs: tuple[Demand, ...]
    dropped: int
    """Jobs that ask for more GPUs than the cluster has; the world drops them as well."""
    never: int
    """Jobs that the world keeps and no policy can run: suspended, or on none of its options."""
    gpus: dict[str, int]
    """How many GPUs of each type there are."""


def read_demands(workload: Workload, setting: Setting) -> Demands:
    """Read what each job needs, and leave out those that the world drops or that cannot run."""
    return _Reader(workload, setting).read()


class _Reader:
    """Reads one workload. Jobs of one type with equal options share what is read of their speeds."""

    def __init__(self, workload: Workload, setting: Setting) -> None:
        self._workload = workload
        self._setting = setting
        self._cluster = Cluster(setting.nodes)
        self._gpus = {kind: count for kind, count in self._cluster.totals.items() if count}
        self._truth = Predictor(
            profiles=workload.truths,
            costs=setting.costs,
            mechanism=setting.mechanism,
            cluster=self._cluster,
        )
        self._known: dict[tuple[object, ...], tuple[Option, ...]] = {}

    def read(self) -> Demands:
        jobs: list[Demand] = []
        dropped = never = 0
        for order, traced in enumerate(self._workload.jobs):
            job = traced.job
            state = JobState(job=job, order=order)
            if job.gpus.requested > largest.largest_possible(state, self._cluster):
                dropped += 1
                continue
            options = () if job.suspend else self._options(traced)
            if options:
                jobs.append(self._demand(traced, options))
            else:
                never += 1
        return Demands(tuple(jobs), dropped, never, self._gpus)

    def _demand(self, traced: TracedJob, options: tuple[Option, ...]) -> Demand:
        job = traced.job
        costs = self._truth.costs_of(job)
        least = min(option.gpus for option in options)
        recreates = self._setting.mechanism is Mechanism.RECREATE
        # A gang may be granted GPU by GPU, and its first pod is created for the first of them.
        pods_s, process_s = costs.pod_start(1), costs.process_start(least)
        return Demand(
            job=job.id,
            submitted_at=job.submitted_at,
            starts_after_s=pods_s + process_s,
            iterations=max(0.0, traced.iterations),
            options=options,
            # Pods that are created again hold their GPUs while they start; in place, the victims
            # still train on them.
            starting_gpu_s=least * process_s + (pods_s if recreates else 0.0),
        )

    def _options(self, traced: TracedJob) -> tuple[Option, ...]:
        job = traced.job
        key: tuple[object, ...] = (job.type, job.gpus)
        if job.batch.elastic:
            key = (*key, job.training.batch_size, job.batch, traced.noise)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = tuple(self._find_options(traced))
        return known

    def _find_options(self, traced: TracedJob) -> Iterator[Option]:
        job = traced.job
        fits = knows = False
        for types in self._groups(job.gpus):
            for gpus in job.gpus.options:
                shapes = tuple(self._shapes(job.gpus, gpus, types=types))
                speeds = (find_progress(traced, shape, truth=self._truth) for shape in shapes)
                speed = max(speeds, default=0.0)
                fits = fits or bool(shapes)
                if speed > 0.0:
                    knows = True
                    yield Option(types, gpus, speed)
        if fits and not knows:
            raise BadInput(
                self._workload.name,
                f"nothing is known of the speed of job {job.id}",
                remedy="give it with --speeds",
            )

    def _groups(self, demand: GpuDemand) -> Iterator[tuple[str, ...]]:
        """The types that may work in the job, one alone or several together."""
        there = list(self._gpus)
        types = [kind for kind in there if kind in demand.types] if demand.types else there
        most = len(types) if demand.mixed else min(1, len(types))
        for size in range(1, most + 1):
            yield from combinations(types, size)

    def _shapes(self, demand: GpuDemand, gpus: int, *, types: tuple[str, ...]) -> Iterator[Shape]:
        """Every shape of ``gpus`` GPUs that the empty cluster could give, one GPU a type at least."""
        sizes = sorted((n for kind in types for n in self._cluster.sizes[kind] if n), reverse=True)
        if gpus > sum(sizes) or gpus < len(types):
            return
        left, fewest = gpus, 0
        while left > 0:
            left -= sizes[fewest]
            fewest += 1
        most = min(gpus, len(sizes), demand.max_nodes or math.inf)
        for nodes in range(max(fewest, len(types)), int(most) + 1):
            yield Shape(gpus, nodes, "+".join(types))
