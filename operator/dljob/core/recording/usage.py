"""
Where GPU time went: trained, lost to changes and to failures, idle, idle while a job waits, out of service, or held
by jobs that the reader may not see.

The sums add up to the time of all GPUs from when each is known until the end of the record. A GPU
that a job has counts as the job's, also where it is out of service; of each job, the seconds that it
trained and those that it lost add up to its GPU-seconds.

Pure.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple

from dljob.core.model import GpuRef, NodeName
from dljob.core.model.causes import CauseCode
from dljob.core.recording.record import Decided, Ended, Given, Gpu, Progress, Record, Stage
from dljob.core.recording.stretches import list_stretches
from dljob.core.recording.sums import Outage, Span, Wait, list_outages, list_spans, list_waits

FAILURES = frozenset({CauseCode.NODE_LOST, CauseCode.GPUS_GONE})
"""Causes of decisions by which a job goes on after the loss of GPUs."""


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
    repairs: Mapping[str, tuple[Interval, ...]]
    """The part of the pauses that follows from failures."""
    restarts: frozenset[tuple[str, int]]
    """The starts that follow from failures, by job and generation."""
    waits: tuple[Wait, ...]
    """When jobs waited for GPUs."""
    outages: Mapping[GpuRef, Sequence[Outage]]
    gpus: Mapping[GpuRef, float]
    """All GPUs, and from when on each is known."""
    types: Mapping[GpuRef, str]


@dataclass(frozen=True, slots=True)
class Held:
    """GPU-seconds of a job, or of several jobs."""

    trained: float = 0.0
    """The job trained, and no iteration of that time had to be repeated."""
    changing: float = 0.0
    """The job started, saved itself or was moved, or it repeated iterations because of that."""
    failing: float = 0.0
    """The job restarted after a failure, or it repeated iterations because of a failure."""

    @property
    def total(self) -> float:
        return self.trained + self.changing + self.failing

    def __add__(self, other: "Held") -> "Held":
        return Held(
            self.trained + other.trained,
            self.changing + other.changing,
            self.failing + other.failing,
        )


class Holder(NamedTuple):
    """A job on GPUs of one type."""

    job: str
    gpu_type: str


class Waste(NamedTuple):
    """Idle GPUs of a type while this job had waited longest."""

    gpu_type: str
    job: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """GPU-seconds of all GPUs."""

    held: Mapping[Holder, Held]
    idle: Mapping[str, float]
    """By type of GPU: no job had the GPU, and none waited for GPUs."""
    wasted: Mapping[Waste, float]
    """No job had the GPU although at least one job waited for GPUs."""
    out_of_service: Mapping[str, float]
    """By type of GPU."""
    foreign: Mapping[str, float]
    """By type of GPU: a job that the reader may not see had the GPU."""

    @property
    def jobs(self) -> Mapping[str, Held]:
        sums: dict[str, Held] = {}
        for holder, held in self.held.items():
            sums[holder.job] = sums.get(holder.job, Held()) + held
        return sums


def read_timelines(record: Record) -> Timelines:
    """Read the timelines of a record."""
    restarts = _list_restarts(record)
    pauses, repairs = _list_pauses(record, restarts)
    return Timelines(
        spans=list_spans(record),
        pauses=pauses,
        repairs=repairs,
        restarts=restarts,
        waits=list_waits(record),
        outages=list_outages(record),
        gpus=list_gpus(record),
        types=_list_types(record),
    )


def sum_usage(record: Record, timelines: Timelines | None = None) -> Usage:
    """Divide the time of all GPUs between ``since`` and ``until``; reads timelines that are not given."""
    timelines = timelines or read_timelines(record)
    free = _sum_free(record, timelines)
    return Usage(
        held=_sum_held(record, timelines),
        idle=free.idle,
        wasted=free.wasted,
        out_of_service=free.out,
        foreign=free.foreign,
    )


Intervals = Mapping[str, tuple[Interval, ...]]


def _list_pauses(
    record: Record, restarts: frozenset[tuple[str, int]]
) -> tuple[Intervals, Intervals]:
    """List when each job had GPUs and did not train, in the order of time, and the part that is due to failures."""
    resumed = _list_resumed(record)
    pauses: dict[str, list[Interval]] = {}
    repaired: dict[str, list[Interval]] = {}
    for stretch in list_stretches(record):
        # A job that trains goes on until it saves itself; one that starts does not train yet.
        if stretch.stage is Stage.ASKED and (stretch.job, stretch.generation) in resumed:
            continue
        pause = Interval(stretch.begin, stretch.end)
        pauses.setdefault(stretch.job, []).append(pause)
        if (stretch.job, stretch.generation) in restarts:
            repaired.setdefault(stretch.job, []).append(pause)
    return _merge_each(pauses), _merge_each(repaired)


def _merge_each(found: Mapping[str, Iterable[Interval]]) -> Intervals:
    return {job: tuple(merge(intervals)) for job, intervals in found.items()}


def _list_resumed(record: Record) -> frozenset[tuple[str, int]]:
    """List the decisions about a job that had GPUs before, by job and generation."""
    return frozenset(
        (line.job, line.generation)
        for line in record.lines
        if isinstance(line, Decided) and line.old is not None
    )


def _list_restarts(record: Record) -> frozenset[tuple[str, int]]:
    """
    List the starts that follow from failures, by job and generation.

    The controller tries a failed job again without a decision of the scheduler. If it takes the GPUs of the job until
    then, the next start is the one that follows from the failure.
    """
    decided: dict[str, set[int]] = {}
    restarts: set[tuple[str, int]] = set()
    has_failed: set[str] = set()
    for line in record.lines:
        if isinstance(line, Decided) and line.step != "wait":
            decided.setdefault(line.job, set()).add(line.generation)
            if line.cause in FAILURES or line.job in has_failed:
                restarts.add((line.job, line.generation))
                has_failed.discard(line.job)
        elif isinstance(line, Given) and line.generation not in decided.get(line.job, ()):
            # An allocation before the first decision that the record has says nothing.
            if line.job not in decided or line.generation < min(decided[line.job]):
                continue
            if line.placement is None:
                has_failed.add(line.job)
            else:
                restarts.add((line.job, line.generation))
    return frozenset(restarts)


def merge(intervals: Iterable[tuple[float, float]]) -> Iterator[Interval]:
    """Join intervals that overlap or touch."""
    last: Interval | None = None
    for begin, end in sorted(intervals):
        if last is not None and begin <= last.end:
            last = Interval(last.begin, max(last.end, end))
            continue
        if last is not None:
            yield last
        last = Interval(begin, end)
    if last is not None:
        yield last


class _Measure:
    """Measures how much of an interval lies within others, which are in order and apart."""

    def __init__(self, intervals: Sequence[Interval | Outage]) -> None:
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


def _sum_held(record: Record, timelines: Timelines) -> Mapping[Holder, Held]:
    none = _Measure(())
    pauses = {job: _Measure(found) for job, found in timelines.pauses.items()}
    repairs = {job: _Measure(found) for job, found in timelines.repairs.items()}
    sums: dict[Holder, Held] = {}
    for line in record.lines:
        if isinstance(line, Given) and line.placement is not None:
            sums.setdefault(Holder(line.job, line.placement.gpu_type), Held())
    for span in timelines.spans:
        paused = pauses.get(span.job, none).within(span.begin, span.end)
        repaired = repairs.get(span.job, none).within(span.begin, span.end)
        gpus = span.placement.gpus
        sums[Holder(span.job, span.placement.gpu_type)] += Held(
            span.gpu_seconds - gpus * paused, gpus * (paused - repaired), gpus * repaired
        )
    for loss in _list_losses(record, timelines.restarts):
        held = sums[loss.holder]
        # The time of a job is an estimate from its speed, and a job cannot repeat more than it has trained.
        lost = min(loss.gpu_seconds, held.trained)
        sums[loss.holder] = replace(held, trained=held.trained - lost) + (
            Held(failing=lost) if loss.is_failure else Held(changing=lost)
        )
    return sums


class _Loss(NamedTuple):
    """Work that a job had to repeat."""

    holder: Holder
    gpu_seconds: float
    is_failure: bool


def _list_losses(record: Record, restarts: frozenset[tuple[str, int]]) -> Iterator[_Loss]:
    started: dict[str, Given] = {}
    worked: dict[str, Given] = {}
    """The start of each job that reported last: the work was lost there."""
    lost: dict[str, float] = {}
    for line in record.lines:
        if isinstance(line, Given) and line.placement is not None:
            started[line.job] = line
        if not isinstance(line, Progress | Ended) or line.job not in started:
            continue
        seconds = line.lost_seconds - lost.get(line.job, 0.0)
        lost[line.job] = line.lost_seconds
        before = worked.get(line.job, started[line.job]).placement
        worked[line.job] = started[line.job]
        if seconds > 0 and before is not None and line.at >= record.header.since:
            is_failure = (line.job, started[line.job].generation) in restarts
            holder = Holder(line.job, before.gpu_type)
            yield _Loss(holder, seconds * before.gpus, is_failure)


class _Free(NamedTuple):
    idle: Mapping[str, float]
    wasted: Mapping[Waste, float]
    out: Mapping[str, float]
    foreign: Mapping[str, float]


def _sum_free(record: Record, timelines: Timelines) -> _Free:
    """Sum up the time in which no job of the record had a GPU."""
    held: dict[GpuRef, list[Interval]] = {}
    for span in timelines.spans:
        for ref in span.placement.refs():
            held.setdefault(ref, []).append(Interval(span.begin, span.end))
    free: dict[str, list[Interval]] = {}
    # By whether a job that the reader may not see had the GPU.
    missed: Mapping[bool, dict[str, float]] = {True: {}, False: {}}
    for ref, first in timelines.gpus.items():
        gpu_type = timelines.types.get(ref, "")
        outages = timelines.outages.get(ref, ())
        missing = [Interval(each.begin, each.end) for each in outages]
        measures = {
            is_held: _Measure([each for each in outages if each.is_held is is_held])
            for is_held in missed
        }
        for gap in _list_gaps(merge(held.get(ref, ())), Interval(first, record.header.until)):
            for is_held, sums in missed.items():
                sums[gpu_type] = sums.get(gpu_type, 0.0) + measures[is_held].within(*gap)
            free.setdefault(gpu_type, []).extend(_list_gaps(missing, gap))
    idle: dict[str, float] = {}
    wasted: dict[Waste, float] = {}
    for gpu_type, gaps in free.items():
        area = _Area(gaps)
        idle[gpu_type] = area.until(record.header.until)
        for wait in timelines.waits:
            seconds = area.until(wait.end) - area.until(wait.begin)
            if seconds > 0:
                waste = Waste(gpu_type, wait.job, wait.cause)
                wasted[waste] = wasted.get(waste, 0.0) + seconds
                idle[gpu_type] -= seconds
    return _Free(idle, wasted, out=missed[False], foreign=missed[True])


class _Area:
    """Sums up intervals of many GPUs over time."""

    def __init__(self, intervals: Iterable[Interval]) -> None:
        steps: dict[float, int] = {}
        for each in intervals:
            steps[each.begin] = steps.get(each.begin, 0) + 1
            steps[each.end] = steps.get(each.end, 0) - 1
        self._times = sorted(steps)
        self._levels = list(accumulate(steps[at] for at in self._times))
        lengths = (later - at for at, later in pairwise(self._times))
        self._before = [
            0.0,
            *accumulate(
                level * length for level, length in zip(self._levels, lengths, strict=False)
            ),
        ]

    def until(self, at: float) -> float:
        number = bisect_right(self._times, at) - 1
        if number < 0:
            return 0.0
        return self._before[number] + self._levels[number] * (at - self._times[number])


def _list_types(record: Record) -> Mapping[GpuRef, str]:
    types: dict[GpuRef, str] = {}
    for line in record.lines:
        if isinstance(line, Gpu):
            ref = GpuRef(NodeName(line.node), line.gpu)
            types[ref] = line.gpu_type or types.get(ref, "")
        elif isinstance(line, Given) and line.placement is not None:
            for ref in line.placement.refs():
                types.setdefault(ref, line.placement.gpu_type)
    return types


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
