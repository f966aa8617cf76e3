"""
Foretells the jobs of a live system: the scores, and when each job would end.

Printed by ``dljob simulate --live``. All times count from now.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from dlcontrol.reporting.formatting import NOTHING, duration
from dlcore.model import JobId
from dlctl.output import printing, texts
from dlctl.output.forms import to_json
from dlsim.jobs.workloads import TracedJob, Workload
from dlsim.results.records import Happening, Record
from dlsim.simulating import Outcome

GIVES = frozenset({Happening.GRANTED, Happening.ADDING, Happening.REMOVING, Happening.MOVING})
TAKES = frozenset({Happening.STOPPED, Happening.LOST})


class Future(NamedTuple):
    """The future of a job under a policy."""

    gpus: int
    """How many GPUs its first decision leaves or gives the job."""
    ends_in_s: float | None
    """``None``: it would never end."""


def foretell(workload: Workload, record: Record) -> dict[JobId, Future]:
    """Read the future of each job from the record of a run."""
    gpus = {traced.job.id: _count_gpus_now(traced) for traced in workload.jobs}
    for entry in record.log:
        # The first decision is that of the first instant.
        if entry.time == 0.0 and entry.what in GIVES | TAKES:
            gpus[entry.job] = entry.gpus if entry.what in GIVES else 0
    ends = {job.job: job.completed_at for job in record.jobs}
    return {job: Future(gpus[job], ends.get(job)) for job in gpus}


def _count_gpus_now(traced: TracedJob) -> int:
    standing = traced.standing
    return standing.placement.gpus if standing is not None and standing.placement else 0


def show(workload: Workload, outcomes: Sequence[Outcome], form: str) -> str:
    """Show scores and futures in one of the formats of :mod:`dlctl.output.printing`."""
    scores = [outcome.score for outcome in outcomes]
    if form == "csv":
        return printing.show_scores(scores, form)
    futures = [foretell(workload, outcome.record) for outcome in outcomes]
    if form == "json":
        told = zip(scores, futures, strict=True)
        return to_json([{**asdict(score), "ends": _document(each)} for score, each in told])
    return (
        printing.show_scores(scores, form) + "\n" + _tabulate(workload, outcomes, futures=futures)
    )


def _document(futures: Mapping[JobId, Future]) -> list[dict[str, Any]]:
    return [
        {"job": job, "gpus": future.gpus, "ends_in_s": future.ends_in_s}
        for job, future in futures.items()
    ]


def _tabulate(
    workload: Workload, outcomes: Sequence[Outcome], *, futures: Sequence[Mapping[JobId, Future]]
) -> str:
    """One row a job: its GPUs now, and for each policy the GPUs of its first decision and the end."""
    header = ("JOB", "GPUS", *(outcome.score.policy.upper() for outcome in outcomes))
    rows = [
        (
            str(traced.job.id),
            str(_count_gpus_now(traced)),
            *(_tell(each[traced.job.id]) for each in futures),
        )
        for traced in workload.jobs
    ]
    return texts.tabulate(header, rows)


def _tell(future: Future) -> str:
    end = NOTHING if future.ends_in_s is None else f"ends in {duration(future.ends_in_s)}"
    return f"{future.gpus} GPUs, {end}" if future.gpus else f"waits, {end}"
