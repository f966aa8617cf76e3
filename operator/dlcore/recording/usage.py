"""
Where GPU time went: trained, changing, idle without demand, idle while a job waits, out of service.

The five sums add up to the time of all GPUs from when each is known until the end of the record. A GPU
that a job has counts as the job's, also where it is out of service; of each job, the seconds that it
trained and those of changes add up to the GPU-seconds that the report gives.

Pure.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import NamedTuple

from dlcore.model import GpuRef, NodeName
from dlcore.placement.limits import namespace_of
from dlcore.recording.record import Decided, Given, Gpu, Record, Stage
from dlcore.recording.stretches import list_stretches
from dlcore.recording.sums import Outage, Span, list_levels, list_outages, list_spans


class Interval(NamedTuple):
    """A length of time."""

    begin: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timelines:
    """Spans of a record, each read once, because a record may have millions of lines."""

    spans: tuple[Span, ...]
    pauses: Mapping[str, tuple[Interval, ...]]
    """When each job had GPUs and did not train."""
    waiting: tuple[Interval, ...]
    """When at least one job waited for GPUs."""
    outages: Mapping[GpuRef, Sequence[Outage]]
    gpus: Mapping[GpuRef, float]
    """All GPUs, and from when on each is known."""


@dataclass(frozen=True, slots=True)
class Held:
    """GPU-seconds of a job, or of the jobs of a namespace."""

    trained: float = 0.0
    changing: float = 0.0
    """The job had GPUs and did not train: it started, saved itself or was moved."""

    def __add__(self, other: "Held") -> "Held":
        return Held(self.trained + other.trained, self.changing + other.changing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """GPU-seconds of all GPUs."""

    trained: float
    changing: float
    idle: float
    """No job had the GPU, and none waited for GPUs."""
    idle_while_waiting: float
    """No job had the GPU although at least one job waited for GPUs."""
    out_of_service: float
    jobs: Mapping[str, Held]
    namespaces: Mapping[str, Held]
    """By the part of a name before the slash; jobs of one machine have none."""

    @property
    def total(self) -> float:
        sums = [getattr(self, each.name) for each in fields(self)[:5]]
        return float(sum(sums))


def read_timelines(record: Record) -> Timelines:
    """Read the timelines of a record."""
    return Timelines(
        spans=list_spans(record),
        pauses=list_pauses(record),
        waiting=list_waiting(record),
        outages=list_outages(record),
        gpus=list_gpus(record),
    )


def sum_usage(record: Record, timelines: Timelines | None = None) -> Usage:
    """Divide the time of all GPUs between ``since`` and ``until``; reads timelines that are not given."""
    timelines = timelines or read_timelines(record)
    jobs = _sum_jobs(record, timelines)
    free = _sum_free(timelines, record.header.until)
    namespaces: dict[str, Held] = {}
    for job, held in jobs.items():
        name = namespace_of(job)
        namespaces[name] = namespaces.get(name, Held()) + held
    whole = sum(namespaces.values(), start=Held())
    return Usage(
        trained=whole.trained,
        changing=whole.changing,
        idle=free.idle,
        idle_while_waiting=free.waiting,
        out_of_service=free.out,
        jobs=jobs,
        namespaces=namespaces,
    )


def list_waiting(record: Record) -> tuple[Interval, ...]:
    """List when at least one job waited for GPUs."""
    found: list[Interval] = []
    begin: float | None = None
    for level in list_levels(record):
        if level.queued and begin is None:
            begin = level.at
        elif not level.queued and begin is not None:
            found.append(Interval(begin, level.at))
            begin = None
    if begin is not None:
        found.append(Interval(begin, record.header.until))
    return tuple(each for each in found if each.end > each.begin)


def list_pauses(record: Record) -> Mapping[str, tuple[Interval, ...]]:
    """List when each job had GPUs and did not train, in the order of time."""
    resumed = _list_resumed(record)
    pauses: dict[str, list[Interval]] = {}
    for stretch in list_stretches(record):
        # A job that trains goes on until it saves itself; one that starts does not train yet.
        if stretch.stage is not Stage.ASKED or (stretch.job, stretch.generation) not in resumed:
            pauses.setdefault(stretch.job, []).append(Interval(stretch.begin, stretch.end))
    return {job: tuple(_merge(found)) for job, found in pauses.items()}


def _list_resumed(record: Record) -> frozenset[tuple[str, int]]:
    """List the decisions about a job that had GPUs before, by job and generation."""
    return frozenset(
        (line.job, line.generation)
        for line in record.lines
        if isinstance(line, Decided) and line.old is not None
    )


def _merge(intervals: Iterable[Interval]) -> Iterator[Interval]:
    """Join intervals that overlap or touch."""
    last: Interval | None = None
    for each in sorted(intervals):
        if last is not None and each.begin <= last.end:
            last = Interval(last.begin, max(last.end, each.end))
            continue
        if last is not None:
            yield last
        last = each
    if last is not None:
        yield last


class _Measure:
    """Measures how much of an interval lies within others, which are in order and apart."""

    def __init__(self, intervals: Sequence[Interval]) -> None:
        self._intervals = intervals
        self._begins = [each.begin for each in intervals]
        lengths = (each.end - each.begin for each in intervals)
        self._before = [0.0, *accumulate(lengths)]

    def within(self, begin: float, end: float) -> float:
        return self._until(end) - self._until(begin)

    def _until(self, at: float) -> float:
        number = bisect_right(self._begins, at)
        if not number:
            return 0.0
        last = self._intervals[number - 1]
        return self._before[number - 1] + min(at, last.end) - last.begin


def _sum_jobs(record: Record, timelines: Timelines) -> Mapping[str, Held]:
    measures = {job: _Measure(found) for job, found in timelines.pauses.items()}
    none = _Measure(())
    sums = {line.job: Held() for line in record.lines if isinstance(line, Given)}
    for span in timelines.spans:
        paused = measures.get(span.job, none).within(span.begin, span.end)
        gpus = span.placement.gpus
        sums[span.job] += Held(span.gpu_seconds - gpus * paused, gpus * paused)
    return sums


class _Free(NamedTuple):
    idle: float
    waiting: float
    out: float


def _sum_free(timelines: Timelines, until: float) -> _Free:
    """Sum up the time in which no job had a GPU."""
    held: dict[GpuRef, list[Interval]] = {}
    for span in timelines.spans:
        for ref in span.placement.refs():
            held.setdefault(ref, []).append(Interval(span.begin, span.end))
    waiting = _Measure(timelines.waiting)
    idle = waited = out = 0.0
    for ref, first in timelines.gpus.items():
        missing = [Interval(each.begin, each.end) for each in timelines.outages.get(ref, ())]
        measure = _Measure(missing)
        for gap in _list_gaps(_merge(held.get(ref, ())), Interval(first, until)):
            out += measure.within(*gap)
            for rest in _list_gaps(missing, gap):
                lasted = waiting.within(*rest)
                waited += lasted
                idle += rest.end - rest.begin - lasted
    return _Free(idle, waited, out)


def list_gpus(record: Record) -> Mapping[GpuRef, float]:
    """Return all GPUs and from when each is known, in the order of their lines."""
    since = record.header.since
    known: dict[GpuRef, float] = {}
    for line in record.lines:
        if isinstance(line, Gpu):
            known.setdefault(GpuRef(NodeName(line.node), line.gpu), max(since, line.at))
        elif isinstance(line, Given) and line.placement is not None:
            for ref in line.placement.refs():
                known.setdefault(ref, max(since, line.at))
    return known


def _list_gaps(intervals: Iterable[Interval], within: Interval) -> Iterator[Interval]:
    """Yield the rest of an interval; those taken out of it are in order and apart, and may reach beyond it."""
    at = within.begin
    for each in intervals:
        if each.begin >= within.end:
            break
        if each.begin > at:
            yield Interval(at, each.begin)
        at = max(at, each.end)
    if within.end > at:
        yield Interval(at, within.end)
