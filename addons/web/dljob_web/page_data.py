"""
The data of the page: a record as the views draw it.

Times are in seconds since the begin, because a browser shows them so and short numbers keep a file small.
Spans of time are a flat list of numbers by GPU or by job, in the order of time, in which the page finds by
binary search the part that it draws. Names and sentences have no character that a reader cannot see.
"""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypeVar

from dljob.core.model import GpuRef, NodeName, Placement
from dljob.core.placement.limits import namespace_of
from dljob.core.recording.record import (
    Clock,
    Decided,
    Ended,
    Expected,
    Happened,
    Line,
    Progress,
    Record,
    Submitted,
)
from dljob.core.recording.report import By, Report, list_parts, make_report
from dljob.core.recording.sums import Span
from dljob.core.recording.usage import (
    Held,
    Interval,
    Timelines,
    merge,
    read_timelines,
    sum_usage,
)
from dljob_wire.problems import printable

NO_DECISION = -1
"""Marks a span without a decision, such as a new attempt after a crash."""

Point = TypeVar("Point")

MOST_SPEEDS = 400
"""The most points in a curve of a job; a screen shows no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One GPU over time."""

    number: int
    gpu_type: str
    known: float
    """The time at which the record first names the GPU."""
    spans: list[float]
    """Four numbers each: begin, end, number of the job, number of the job's decision."""
    outages: list[float]
    """Begin and end."""
    reasons: list[str]
    """The reason for each outage."""
    others: list[float]
    """Begin and end of times in which a job that the viewer may not see has the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The GPUs of a node."""

    name: str
    lanes: list[Lane]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A decision about a job, or something else that happened to it."""

    at: float
    name: str
    sentence: str
    for_job: str = ""
    old: int = 0
    """GPUs before, and after."""
    new: int = 0
    where: str = ""
    expected: Expected | None = None
    cost: float | None = None
    how: str = ""
    """live or restarted, if that is known."""
    is_decision: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job, with its history."""

    name: str
    namespace: str
    model: str
    priority: int
    options: tuple[int, ...]
    submitted: float | None
    ended: float | None
    outcome: str
    message: str
    trained: float
    """GPU-seconds without those of changes."""
    changing: float
    failing: float
    gpus: int
    """The most GPUs at one time."""
    changes: int
    history: list[Entry]
    pauses: list[float]
    """Begin and end of times with GPUs and without training."""
    speeds: list[float]
    """Time, completed share (-1: unknown), and iterations per second."""
    metrics: list[float]
    """Time, and the metric of its target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Where GPU time went, in GPU-seconds."""

    trained: float
    changing: float
    failing: float
    idle: float
    idle_while_waiting: float
    out_of_service: float
    held_by_others: float
    namespaces: list[tuple[str, float, float, float, float]]
    """Name, trained, lost to changes, lost to failures, idle while a job of it had waited longest."""
    causes: list[tuple[str, float]]
    """Why jobs waited while GPUs were idle."""
    csv: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PageData:
    """All that the page shows."""

    title: str
    source: str
    policy: str
    missing: tuple[str, ...]
    epoch: float | None
    """The begin as seconds since 1970; ``None``: times are those of a simulation."""
    length: float
    nodes: list[Node]
    jobs: list[Job]
    waiting: list[float]
    """Begin and end of times in which at least one job waited."""
    sums: Sums

    def document(self) -> dict[str, Any]:
        return asdict(self)


def make_page_data(record: Record) -> PageData:
    """Compute the data of the page from a record."""
    header = record.header
    origin = _Origin(record.begin)
    timelines = read_timelines(record)
    usage = sum_usage(record, timelines)
    book = _Book(record, origin, timelines, held=usage.jobs)
    return PageData(
        title=printable(header.title),
        source=header.source.value,
        policy=printable(header.policy),
        missing=tuple(map(printable, header.missing)),
        epoch=origin.at if header.clock is Clock.EPOCH else None,
        length=max(0.0, origin.since(header.until)),
        nodes=_list_nodes(origin, book, timelines),
        jobs=book.list_jobs(),
        waiting=origin.flat(merge((each.begin, each.end) for each in timelines.waits)),
        sums=_sums(make_report(record, By.NAMESPACE, usage=usage)),
    )


class _Origin(NamedTuple):
    """The zero of times."""

    at: float

    def since(self, at: float) -> float:
        # Milliseconds are far less than a pixel, and their digits would be most of the file.
        return round(at - self.at, 3)

    def flat(self, intervals: Iterable[Interval]) -> list[float]:
        return [self.since(at) for each in intervals for at in each]


@dataclass(slots=True)
class _Facts:
    """The lines of one job."""

    submitted: Submitted | None = None
    ended: Ended | None = None
    history: list[Entry] = field(default_factory=list)
    decisions: dict[int, int] = field(default_factory=dict)
    """The index in the history of a decision, by generation."""
    speeds: list[tuple[float, float, float]] = field(default_factory=list)
    metrics: list[tuple[float, float]] = field(default_factory=list)
    gpus: int = 0


class _Book:
    def __init__(
        self,
        record: Record,
        origin: _Origin,
        timelines: Timelines,
        *,
        held: Mapping[str, Held],
    ) -> None:
        self._origin = origin
        self._pauses = timelines.pauses
        self._facts: dict[str, _Facts] = {}
        self._held = held
        for line in record.lines:
            self._take(line)
        for span in timelines.spans:
            facts = self._of(span.job)
            facts.gpus = max(facts.gpus, span.placement.gpus)
        self._numbers = {job: number for number, job in enumerate(self._facts)}

    def number(self, job: str) -> int:
        return self._numbers[job]

    def decision(self, span: Span) -> int:
        """Return the index in the job's history of the decision that gave these GPUs."""
        return self._facts[span.job].decisions.get(span.generation, NO_DECISION)

    def list_jobs(self) -> list[Job]:
        return [self._job(name, facts) for name, facts in self._facts.items()]

    def _of(self, job: str) -> _Facts:
        return self._facts.setdefault(job, _Facts())

    def _take(self, line: Line) -> None:
        match line:
            case Submitted():
                self._of(line.job).submitted = line
            case Decided():
                facts = self._of(line.job)
                if line.step != "wait":
                    facts.decisions[line.generation] = len(facts.history)
                facts.history.append(self._entry(line))
            case Happened():
                self._of(line.job).history.append(
                    Entry(
                        at=self._origin.since(line.at),
                        name=printable(line.name),
                        sentence=printable(line.message),
                    )
                )
            case Progress():
                facts = self._of(line.job)
                facts.speeds.append(self._speed(line))
                if line.metric is not None:
                    facts.metrics.append((self._origin.since(line.at), float(f"{line.metric:.6g}")))
            case Ended():
                self._of(line.job).ended = line
            case _:
                pass

    def _entry(self, line: Decided) -> Entry:
        return Entry(
            at=self._origin.since(line.at),
            name=printable(line.step),
            sentence=printable(line.sentence),
            for_job=printable(line.for_job or ""),
            old=_gpus(line.old),
            new=_gpus(line.new),
            where=printable(str(line.new)) if line.new is not None else "",
            expected=line.expected,
            cost=line.cost_seconds,
            how=printable(line.how),
            is_decision=True,
        )

    def _speed(self, line: Progress) -> tuple[float, float, float]:
        total = line.iterations_total
        done = min(1.0, line.iteration / total) if total else -1.0
        return self._origin.since(line.at), round(done, 4), round(line.iterations_per_second, 4)

    def _job(self, name: str, facts: _Facts) -> Job:
        submitted, ended = facts.submitted, facts.ended
        held = self._held.get(name, Held())
        return Job(
            name=printable(name),
            namespace=printable(namespace_of(name)),
            model=printable(submitted.model) if submitted else "",
            priority=submitted.priority if submitted else 0,
            options=submitted.options if submitted else (),
            submitted=self._origin.since(submitted.at) if submitted else None,
            ended=self._origin.since(ended.at) if ended else None,
            outcome=printable(ended.outcome) if ended else "",
            message=printable(ended.message) if ended else "",
            trained=held.trained,
            changing=held.changing,
            failing=held.failing,
            gpus=facts.gpus,
            changes=sum(each.is_decision and each.old > 0 for each in facts.history),
            history=facts.history,
            pauses=self._origin.flat(self._pauses.get(name, ())),
            speeds=[number for point in _thin(facts.speeds) for number in point],
            metrics=[number for point in _thin(facts.metrics) for number in point],
        )


def _gpus(placement: Placement | None) -> int:
    return placement.gpus if placement is not None else 0


def _thin(points: Sequence[Point]) -> Sequence[Point]:
    """Drop points evenly, and keep the last one."""
    step = -(-len(points) // MOST_SPEEDS)
    return points[::-step][::-1] if step > 1 else points


def _list_nodes(origin: _Origin, book: _Book, timelines: Timelines) -> list[Node]:
    """List the GPUs by node, both in the order of their names and numbers."""
    spans: dict[GpuRef, list[tuple[float, float, int, int]]] = {}
    for span in timelines.spans:
        drawn = (
            origin.since(span.begin),
            origin.since(span.end),
            book.number(span.job),
            book.decision(span),
        )
        for ref in span.placement.refs():
            spans.setdefault(ref, []).append(drawn)
    nodes: dict[NodeName, list[Lane]] = {}
    for ref, known in sorted(timelines.gpus.items(), key=_natural):
        outages = timelines.outages.get(ref, ())
        out = [each for each in outages if not each.is_held]
        lane = Lane(
            number=ref.number,
            gpu_type=printable(timelines.types.get(ref, "")),
            known=origin.since(known),
            spans=[number for each in sorted(spans.get(ref, ())) for number in each],
            outages=[max(0.0, origin.since(at)) for each in out for at in each[:2]],
            reasons=[printable(each.reason) for each in out],
            others=[
                max(0.0, origin.since(at)) for each in outages if each.is_held for at in each[:2]
            ],
        )
        nodes.setdefault(ref.node, []).append(lane)
    return [Node(name=printable(name), lanes=lanes) for name, lanes in nodes.items()]


def _natural(item: tuple[GpuRef, float]) -> tuple[list[str | int], int]:
    """Order node-2 before node-10."""
    ref, _ = item
    # Words and numbers alternate, so that words are compared with words.
    parts = re.split(r"([0-9]+)", ref.node)
    return [int(part) if number % 2 else part for number, part in enumerate(parts)], ref.number


def _sums(report: Report) -> Sums:
    held = report.held
    return Sums(
        trained=held.trained,
        changing=held.changing,
        failing=held.failing,
        idle=report.idle,
        idle_while_waiting=report.idle_while_waiting,
        out_of_service=report.out_of_service,
        held_by_others=report.held_by_others,
        namespaces=[
            (
                printable(row.name),
                row.held.trained,
                row.held.changing,
                row.held.failing,
                row.idle_while_waiting,
            )
            for row in sorted(report.rows, key=lambda row: row.name)
        ],
        causes=[(printable(cause), seconds) for cause, seconds in report.causes.items()],
        csv=_to_csv(report),
    )


def _to_csv(report: Report) -> str:
    written = io.StringIO()
    rows = list_parts(report)
    writer = csv.DictWriter(written, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    return written.getvalue()
