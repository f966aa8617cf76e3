"""
The jobs whose work a simulation saves: those whose checkpoint works, jobs without any, and jobs with a
broken one.

A trace may say it in a column ``checkpoint`` and a DLJob file in the annotation
``sim.dljob.io/checkpoint``; ``dljob simulate --no-checkpoint`` and ``--broken-checkpoint`` draw
jobs by lot. The checkpoints of all other jobs work.
"""

import random
from dataclasses import replace

from dljob.sim.jobs.checkpointing import Kind
from dljob.sim.jobs.workloads import TracedJob, Workload


def with_checkpoint(traced: TracedJob, kind: Kind) -> TracedJob:
    """Show a job with a checkpoint of this kind."""
    return replace(traced, saves=kind == Kind.GOOD, declares=kind != Kind.NONE)


def draw(workload: Workload, *, none: float, broken: float, seed: int) -> Workload:
    """Let such shares of the jobs have no checkpoint, or a broken one, by lot."""
    if not none and not broken:
        return workload
    return replace(
        workload,
        jobs=tuple(_draw_one(each, none, broken=broken, seed=seed) for each in workload.jobs),
    )


def _draw_one(traced: TracedJob, none: float, *, broken: float, seed: int) -> TracedJob:
    # By the job's name, so that a part of a trace has the same jobs without one as the whole.
    lot = random.Random(f"{seed}/checkpoint/{traced.job.id}").random()
    if lot < none:
        return with_checkpoint(traced, Kind.NONE)
    return with_checkpoint(traced, Kind.BROKEN) if lot < none + broken else traced
