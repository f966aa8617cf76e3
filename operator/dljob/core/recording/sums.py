"""
Sums over a record: which job had which GPUs when, GPU-seconds, the queue and idle GPUs over time.

All figures come from the lines alone, so that the record of a simulation and that of a live system are
summed up by the same rule.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dljob.core.model import GpuRef, NodeName, Placement
from dljob.core.model.causes import CauseCode
from dljob.core.recording.record import (
    Decided,
    Ended,
    Given,
    Gpu,
    Line,
    Progress,
    Record,
    Submitted,
)


class Span(NamedTuple):
    """A stretch of time in which a job had these GPUs."""

    job: str
    begin: float
    end: float
    placement: Placement
    generation: int
    is_over: bool = True
    """True if the job had them until then only; false if the record ends there."""

    @property
    def gpu_seconds(self) -> float:
        return self.placement.gpus * (self.end - self.begin)


class Levels(NamedTuple):
    """How things are from one moment on."""

    at: float
    queued: int
    """Jobs that are submitted, have no GPUs, and are neither suspended nor over."""
    idle: int
    """GPUs in service that no job has."""
    in_service: int


def list_spans(record: Record) -> tuple[Span, ...]:
    """List which job had which GPUs, job by job in the order of time; what was before ``since`` is cut off."""
    spans: list[Span] = []
    held: dict[str, Given] = {}
    for line in record.lines:
        if not isinstance(line, Given | Ended):
            continue
        former = held.pop(line.job, None)
        if former is not None:
            spans += _spans_of(former, line.at, record, is_over=True)
        if isinstance(line, Given) and line.placement is not None:
            held[line.job] = line
    for former in held.values():
        spans += _spans_of(former, record.header.until, record, is_over=False)
    return tuple(spans)


def _spans_of(given: Given, end: float, record: Record, *, is_over: bool) -> Iterator[Span]:
    begin = max(given.at, record.header.since)
    if given.placement is not None and end > begin:
        yield Span(given.job, begin, end, given.placement, given.generation, is_over)


class Outage(NamedTuple):
    """A GPU is out of service for some time, or a job that the reader may not see holds it."""

    begin: float
    end: float
    reason: str
    is_held: bool = False


def list_outages(record: Record) -> Mapping[GpuRef, list[Outage]]:
    """List when each GPU was out of service; the list of one that never was is empty."""
    found: dict[GpuRef, list[Outage]] = {}
    out: dict[GpuRef, Gpu] = {}
    for line in record.lines:
        if isinstance(line, Gpu):
            ref = GpuRef(NodeName(line.node), line.gpu)
            outages = found.setdefault(ref, [])
            # A new reason is a new outage.
            former = out.pop(ref, None)
            if former is not None:
                outages.append(Outage(former.at, line.at, former.reason, former.held))
            if not line.in_service:
                out[ref] = line
    for ref, line in out.items():
        found[ref].append(Outage(line.at, record.header.until, line.reason, line.held))
    return found


def list_levels(record: Record) -> tuple[Levels, ...]:
    """List queue and idle GPUs, one entry for each moment at which one of them changes."""
    tally = _Tally()
    levels: list[Levels] = []
    for line in record.lines:
        tally.take(line)
        now = tally.levels(max(line.at, record.header.since))
        # Several lines of one instant are one change.
        if levels and levels[-1].at == now.at:
            levels[-1] = now
        elif not levels or levels[-1][1:] != now[1:]:
            levels.append(now)
    return tuple(levels)


class Wait(NamedTuple):
    """A stretch of time in which this job had waited for GPUs longer than all others."""

    begin: float
    end: float
    job: str
    cause: str
    """The code of the scheduler's reason; empty before its first decision about the job."""


def list_waits(record: Record) -> tuple[Wait, ...]:
    """List the times in which jobs waited for GPUs, each with the job that had waited longest."""
    tally = _Tally()
    waits: list[Wait] = []
    begin, longest = record.header.since, None
    for line in record.lines:
        tally.take(line)
        if tally.longest_wait == longest:
            continue
        at = max(line.at, record.header.since)
        if longest is not None and at > begin:
            waits.append(Wait(begin, at, *longest))
        begin, longest = at, tally.longest_wait
    if longest is not None and record.header.until > begin:
        waits.append(Wait(begin, record.header.until, *longest))
    return tuple(waits)


class _Tally:
    """Counts waiting jobs and free GPUs, line after line."""

    def __init__(self) -> None:
        self._waiting: dict[str, str] = {}
        """The jobs that wait with the cause of each, the longest wait first."""
        self._suspended: set[str] = set()
        self._held: dict[str, frozenset[GpuRef]] = {}
        self._taken: dict[GpuRef, int] = {}
        self._service: dict[GpuRef, bool] = {}
        self._foreign: set[GpuRef] = set()
        """The GPUs of jobs that the reader may not see."""
        self._idle: set[GpuRef] = set()
        self._in_service = 0

    def take(self, line: Line) -> None:
        if isinstance(line, Gpu):
            ref = GpuRef(NodeName(line.node), line.gpu)
            # Counted here, because a sum over all GPUs for each line takes long where both are many.
            is_in_service = line.in_service or line.held
            self._in_service += is_in_service - self._service.get(ref, False)
            self._service[ref] = is_in_service
            (self._foreign.add if line.held else self._foreign.discard)(ref)
            self._settle([ref])
        elif isinstance(line, Submitted):
            self._waiting[line.job] = ""
        elif isinstance(line, Decided):
            self._decide(line)
        elif isinstance(line, Given):
            self._hold(line.job, line.placement)
        elif isinstance(line, Ended):
            self._hold(line.job, None)
            self._waiting.pop(line.job, None)

    def _decide(self, line: Decided) -> None:
        if line.cause == CauseCode.SUSPENDED:
            self._suspended.add(line.job)
            self._waiting.pop(line.job, None)
            return
        self._suspended.discard(line.job)
        if line.step == "wait" and line.job not in self._held:
            self._waiting[line.job] = line.cause

    def _hold(self, job: str, placement: Placement | None) -> None:
        old = self._held.pop(job, frozenset())
        new = frozenset(placement.refs()) if placement is not None else frozenset()
        for ref in old:
            self._taken[ref] -= 1
        for ref in new:
            self._taken[ref] = self._taken.get(ref, 0) + 1
        if new:
            self._held[job] = new
            # It is in the queue again as soon as it loses them, unless it is over.
            self._waiting.pop(job, None)
        elif old and job not in self._suspended:
            self._waiting[job] = ""
        self._settle(old | new)

    def _settle(self, refs: Iterable[GpuRef]) -> None:
        for ref in refs:
            is_taken = self._taken.get(ref) or ref in self._foreign
            is_idle = self._service.get(ref, False) and not is_taken
            (self._idle.add if is_idle else self._idle.discard)(ref)

    @property
    def longest_wait(self) -> tuple[str, str] | None:
        """The job that has waited longest, and the cause."""
        return next(iter(self._waiting.items()), None)

    def levels(self, at: float) -> Levels:
        return Levels(at, len(self._waiting), len(self._idle), self._in_service)


_STATES = (Submitted, Given, Progress, Decided)
"""The kinds of lines of a job that hold until the next one of their kind."""


def cut(lines: Sequence[Line], since: float) -> tuple[Line, ...]:
    """
    Leave out what was before ``since``, but for how things were then.

    Of each GPU, and of each job that was not over, the last line of each kind that describes a state is kept.
    """
    states: dict[tuple[str, ...], Line] = {}
    kept: list[Line] = []
    for line in lines:
        if line.at >= since:
            kept.append(line)
        elif isinstance(line, Ended):
            for kind in _STATES:
                states.pop((kind.__name__, line.job), None)
        elif isinstance(line, Gpu):
            states["gpu", line.node, str(line.gpu)] = line
        elif isinstance(line, _STATES):
            states[type(line).__name__, line.job] = line
    return (*states.values(), *kept)
