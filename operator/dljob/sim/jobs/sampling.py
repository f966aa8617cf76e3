"""
A part of a long trace, and a trace that loads its cluster as much as is wanted.

Called by ``dljob simulate`` and ``dljob compare`` between reading a workload and playing it. Real
traces last for months and load a cluster by the chance of its size. :func:`cut` takes a window of
consecutive jobs out of one, and :func:`set_load` stretches or squeezes its submission times.

The **offered load** is the GPU time that the jobs ask for over the GPU time that there is while
they are submitted: the sum of duration times requested GPUs, over the GPUs of the cluster times
the time from the first submission to the last. The duration is that on the requested GPUs, packed,
of the cluster's first type (or the fastest that a job accepts, if it does not accept that one); of
a trace with models it follows from the measured speeds. Jobs that can never fit are dropped by the
world and are in no load.
"""

import random
from dataclasses import dataclass, replace

from dljob.core.model import Cluster, JobState, Mechanism
from dljob.core.placement import largest
from dljob.core.predicting.predictor import Predictor
from dljob.core.profiles import Costs
from dljob.sim.errors import BadInput
from dljob.sim.jobs.workloads import TracedJob, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The changes of a trace before it is played; the default leaves it as it is."""

    window: int | None = None
    """How many consecutive jobs are played; ``None``: all."""
    load: float | None = None
    """The offered load; ``None``: as it comes."""
    seed: int = 0
    """By which the place of the window is drawn."""


def sample(workload: Workload, cluster: Cluster, *, wanted: Sample) -> Workload:
    """Cut the window, then set its load."""
    if wanted.window is not None:
        workload = cut(workload, wanted.window, seed=wanted.seed)
    if wanted.load is not None:
        workload = set_load(workload, cluster, load=wanted.load)
    return workload


def cut(workload: Workload, count: int, *, seed: int) -> Workload:
    """
    Take a window of consecutive jobs, from a place that depends on the seed and the trace's name.

    A trace that has no more jobs than that stays whole. The first submission of a window is at 0.
    """
    spare = len(workload.jobs) - count
    if spare <= 0:
        return workload
    # A string, because Python seeds with those alike in every process.
    first = random.Random(f"{seed}/window/{workload.name}").randint(0, spare)
    jobs = workload.jobs[first : first + count]
    begin = jobs[0].job.submitted_at
    note = f"a window of {count:,} of {len(workload.jobs):,} jobs, from job {jobs[0].job.id} on"
    return replace(
        workload,
        jobs=tuple(_submit_at(each, each.job.submitted_at - begin) for each in jobs),
        notes=(*workload.notes, note),
    )


def set_load(workload: Workload, cluster: Cluster, *, load: float) -> Workload:
    """Multiply the distances between submissions so that the offered load is the wanted one."""
    present = measure_load(workload, cluster)
    if present is None:
        raise BadInput(
            workload.name,
            "its jobs are submitted all at once, or have nothing to do: it has no load to be set",
            remedy="leave --load out, or take a trace whose jobs come one after the other",
        )
    factor = present / load
    begin = workload.jobs[0].job.submitted_at
    jobs = tuple(
        _submit_at(each, begin + (each.job.submitted_at - begin) * factor) for each in workload.jobs
    )
    note = f"an offered load of {present:.3g} was set to {load:g}"
    return replace(workload, jobs=jobs, notes=(*workload.notes, note))


def measure_load(workload: Workload, cluster: Cluster) -> float | None:
    """Measure the offered load; ``None`` where no time passes or nothing is asked for."""
    kept = [traced for traced in workload.jobs if _fits(traced, cluster)]
    if not kept:
        return None
    # Jobs are in order of submission.
    span = kept[-1].job.submitted_at - kept[0].job.submitted_at
    predictor = Predictor(
        profiles=workload.truths, costs=Costs(), mechanism=Mechanism.IN_PLACE, cluster=cluster
    )
    asked = sum(_gpu_time(traced, cluster, predictor=predictor) for traced in kept)
    return asked / (cluster.total * span) if span > 0 and asked > 0 else None


def _fits(traced: TracedJob, cluster: Cluster) -> bool:
    state = JobState(job=traced.job, order=0)
    return traced.job.gpus.requested <= largest.largest_possible(state, cluster)


def _gpu_time(traced: TracedJob, cluster: Cluster, *, predictor: Predictor) -> float:
    demand = traced.job.gpus
    # A trace is about the first type of its cluster (see dljob.sim.jobs.curves.Ground.reference).
    kind = cluster.nodes[0].gpu_type
    if demand.types and kind not in demand.types:
        kind = predictor.best_type(traced.job, demand.requested)
    speed = predictor.speed(traced.job, predictor.shape(demand.requested, kind))
    return demand.requested * traced.iterations / speed if speed > 0 else 0.0


def _submit_at(traced: TracedJob, when: float) -> TracedJob:
    return replace(traced, job=replace(traced.job, submitted_at=when))
