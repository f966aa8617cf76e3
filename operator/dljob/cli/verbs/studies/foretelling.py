"""
Foretells the jobs of a live system: the scores, and when each job would end.

Printed by ``dljob simulate --live``. All times count from now.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from dljob.cli.output import texts
from dljob.cli.output.forms import to_json
from dljob.cli.verbs.studies import figures
from dljob.control.reporting.formatting import NOTHING, duration
from dljob.core.model import JobId
from dljob.sim.jobs.workloads import TracedJob, Workload
from dljob.sim.results.records import Happening, Record
from dljob.sim.simulating import Outcome

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


def show(workload: Workload, outcomes: Sequence[Outcome], *, form: str) -> str:
    """Show scores and futures in one of the formats of :mod:`dljob.cli.output.printing`."""
    scores = [outcome.score for outcome in outcomes]
    futures = [foretell(workload, outcome.record) for outcome in outcomes]
    if form == "json":
        both = zip(scores, futures, strict=True)
        return to_json([{**asdict(score), "ends": _document(each)} for score, each in both])
    text = figures.show(scores, form)
    if form == "csv":
        return text
    # A row for each job: its GPUs now, and under each policy the GPUs of its first decision and its end.
    header = ("JOB", "GPUS", *(outcome.score.policy.upper() for outcome in outcomes))
    rows = [
        (
            str(traced.job.id),
            str(_count_gpus_now(traced)),
            *(_write(each[traced.job.id]) for each in futures),
        )
        for traced in workload.jobs
    ]
    return f"{text}\n{texts.tabulate(header, rows)}"


def _document(futures: Mapping[JobId, Future]) -> list[dict[str, Any]]:
    return [
        {"job": job, "gpus": future.gpus, "ends_in_s": future.ends_in_s}
        for job, future in futures.items()
    ]


def _write(future: Future) -> str:
    end = NOTHING if future.ends_in_s is None else f"ends in {duration(future.ends_in_s)}"
    return f"{future.gpus} GPUs, {end}" if future.gpus else f"waits, {end}"
