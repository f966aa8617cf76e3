"""
The GPU time of a record by namespace, user, job, model or type of GPU.

The parts of all rows add up to the time of all GPUs: a GPU is held by a job, idle, or out of service at each moment.

Pure.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from dljob.core.placement.limits import namespace_of
from dljob.core.recording.record import Decided, Record, Submitted
from dljob.core.recording.usage import Held, Holder, Usage, Waste, sum_usage


class By(StrEnum):
    """The grouping of the rows of a report."""

    NAMESPACE = "namespace"
    USER = "user"
    JOB = "job"
    MODEL = "model"
    TYPE = "type"


@dataclass(slots=True, kw_only=True)
class Row:
    """GPU-seconds of a group of jobs, or of one type of GPU."""

    name: str
    jobs: set[str] = field(default_factory=set)
    held: Held = Held()
    idle_while_waiting: float = 0.0
    """GPUs were idle while a job of the group had waited longer than all other jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Where the time of all GPUs went."""

    by: By
    begin: float
    until: float
    rows: list[Row]
    """The largest first."""
    idle: float
    """No job waited for GPUs."""
    out_of_service: float
    causes: Mapping[str, float]
    """Idle GPU-seconds while jobs waited, by the cause for which the longest wait went on."""
    held_by_others: float = 0.0
    """Jobs that the reader may not see had the GPU."""
    pauses: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """The seconds without training of each change of a job that trained, by how it was made: live, restarted."""

    @property
    def held(self) -> Held:
        return sum((row.held for row in self.rows), start=Held())

    @property
    def idle_while_waiting(self) -> float:
        return sum(self.causes.values())

    @property
    def total(self) -> float:
        jobs = self.held.total + self.held_by_others
        return jobs + self.idle_while_waiting + self.idle + self.out_of_service


def make_report(record: Record, by: By, *, usage: Usage | None = None) -> Report:
    """Divide the time of all GPUs between ``since`` and ``until``; sums up the usage if it is not given."""
    usage = usage or sum_usage(record)
    causes: dict[str, float] = {}
    for waste, seconds in usage.wasted.items():
        causes[waste.cause] = causes.get(waste.cause, 0.0) + seconds
    return Report(
        by=by,
        begin=record.begin,
        until=record.header.until,
        rows=_list_rows(usage, _namer(record, by)),
        idle=sum(usage.idle.values()),
        out_of_service=sum(usage.out_of_service.values()),
        held_by_others=sum(usage.foreign.values()),
        causes=dict(sorted(causes.items(), key=lambda item: -item[1])),
        pauses=_list_pauses(record),
    )


def _list_pauses(record: Record) -> Mapping[str, Sequence[float]]:
    pauses: dict[str, list[float]] = {}
    for line in record.lines:
        if isinstance(line, Decided) and line.how and line.cost_seconds is not None:
            pauses.setdefault(line.how, []).append(line.cost_seconds)
    return dict(sorted(pauses.items()))


FORMULAS = ("=", "+", "-", "@")


def list_parts(report: Report) -> list[Mapping[str, Any]]:
    """List all parts, one in a row, for a spreadsheet: the last column adds up to the time of all GPUs."""
    rows: list[tuple[str, str, float]] = []
    for row in report.rows:
        # A spreadsheet takes such a cell for a formula, and users choose the name.
        name = f"'{row.name}" if row.name.startswith(FORMULAS) else row.name
        rows += [
            (name, "trained", row.held.trained),
            (name, "lost to changes", row.held.changing),
            (name, "lost to failures", row.held.failing),
            (name, "idle while a job waits", row.idle_while_waiting),
        ]
    rows += [("", "idle", report.idle), ("", "out of service", report.out_of_service)]
    if report.held_by_others:
        rows.append(("", "held by other jobs", report.held_by_others))
    return [
        {report.by.value: name, "what": what, "gpu_seconds": round(seconds, 3)}
        for name, what, seconds in rows
    ]


def make_document(report: Report) -> dict[str, Any]:
    """Return the report as a document, in GPU-seconds."""
    return {
        "by": report.by.value,
        "since": report.begin,
        "until": report.until,
        "gpuSeconds": report.total,
        "rows": [
            {
                report.by.value: row.name,
                "jobs": len(row.jobs),
                **_held_document(row.held),
                "idleWhileWaiting": row.idle_while_waiting,
            }
            for row in report.rows
        ],
        **_held_document(report.held),
        "idleWhileWaiting": report.idle_while_waiting,
        "idleWhileWaitingBy": dict(report.causes),
        "idle": report.idle,
        "outOfService": report.out_of_service,
        "heldByOthers": report.held_by_others,
        "changes": {
            how: {"count": len(pauses), "pauseSeconds": sum(pauses)}
            for how, pauses in report.pauses.items()
        },
    }


def _held_document(held: Held) -> Mapping[str, float]:
    return {
        "held": held.total,
        "trained": held.trained,
        "lostToChanges": held.changing,
        "lostToFailures": held.failing,
    }


def _list_rows(usage: Usage, name_of: Callable[[Holder | Waste], str]) -> list[Row]:
    rows: dict[str, Row] = {}
    for holder, held in usage.held.items():
        row = rows.setdefault(name_of(holder), Row(name=name_of(holder)))
        row.jobs.add(holder.job)
        row.held += held
    for waste, seconds in usage.wasted.items():
        row = rows.setdefault(name_of(waste), Row(name=name_of(waste)))
        row.idle_while_waiting += seconds
    return sorted(rows.values(), key=lambda row: (-row.held.total, row.name))


def _namer(record: Record, by: By) -> Callable[[Holder | Waste], str]:
    """Return the function that names the group of a job on GPUs of a type."""
    submitted = {line.job: line for line in record.lines if isinstance(line, Submitted)}
    none = Submitted(at=0.0, job="")
    namers: Mapping[By, Callable[[Holder | Waste], str]] = {
        By.NAMESPACE: lambda part: namespace_of(part.job),
        # On a server that users share, each user has a namespace of the user's name.
        By.USER: lambda part: submitted.get(part.job, none).user or namespace_of(part.job),
        By.JOB: lambda part: part.job,
        By.MODEL: lambda part: submitted.get(part.job, none).model,
        By.TYPE: lambda part: part.gpu_type,
    }
    return namers[by]
