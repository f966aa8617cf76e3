"""
A record as a trace for Perfetto (https://ui.perfetto.dev): one track for each GPU, below its node.

Slices on the track of a GPU are jobs, with the decision that gave it as arguments; slices on the track of
a job are the phases of its changes. An arrow goes from a job that made room to the job for which it did.
Durations are those of the record to the nanosecond, so that the sum of a job's slices on GPUs are its
GPU-seconds.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from dlcore.model import GpuRef, NodeName
from dlcore.recording.record import (
    Clock,
    Decided,
    Ended,
    Given,
    Gpu,
    Happened,
    Line,
    Progress,
    Record,
    Stage,
    Submitted,
)
from dlcore.recording.stretches import list_stretches
from dlcore.recording.sums import Span, list_levels, list_spans
from dlctl.exporting import packets
from dlctl.exporting.packets import Argument, Event

NS = 1_000_000_000

GPU_CATEGORY, ROOM_CATEGORY, PHASE_CATEGORY, SERVICE_CATEGORY = "gpu", "room", "phase", "service"

_STAGES: Mapping[Stage, str] = {
    Stage.ASKED: "asked: trains on, or its pods start",
    Stage.SAVING: "saving",
    Stage.SAVED: "stopping",
    Stage.STOPPED: "stopped: waits for its GPUs",
    Stage.STARTED: "starting",
}

_ORDER = {Event.INSTANT: 0, Event.END: 1, Event.BEGIN: 2, Event.COUNTER: 3}
"""What is first of the events of one instant: what ends makes room for what begins."""


class _Written(NamedTuple):
    at: int
    order: int
    packet: bytes


class Exporter:
    """Writes one record."""

    def __init__(self, record: Record) -> None:
        self._record = record
        first = min((line.at for line in record.lines), default=0.0)
        self._base = max(record.header.since, 0.0) or first
        self._decisions = {
            (line.job, line.generation): line
            for line in record.lines
            if isinstance(line, Decided) and line.step != "wait"
        }
        self._uuids: dict[tuple[str, ...], int] = {}
        self._tracks: list[bytes] = []
        self._events: list[_Written] = []
        self._arrows = 0

    def export(self) -> bytes:
        """Return the trace."""
        self._add_gpus()
        self._add_spans()
        self._add_stretches()
        self._add_happenings()
        self._add_counters()
        self._events.sort(key=lambda written: written[:2])
        base = round(self._base * NS) if self._record.header.clock is Clock.EPOCH else 0
        head = [packets.clock(base)] if base else []
        return b"".join([*head, *self._tracks, *(written.packet for written in self._events)])

    # --- tracks

    def _track(self, *path: str, rank: int = 0, unit: str | None = None) -> int:
        """Return the number of a track, which is described when it is first asked for."""
        known = self._uuids.get(path)
        if known is None:
            parent = self._track(*path[:-1]) if len(path) > 1 else 0
            known = self._uuids[path] = len(self._uuids) + 1
            described = packets.track(known, path[-1], parent=parent, rank=rank or known, unit=unit)
            self._tracks.append(described)
        return known

    def _gpu_track(self, ref: GpuRef, lane: str = "") -> int:
        # In the order of their numbers, below their node.
        return self._track(ref.node, f"GPU {ref.number}{lane}", rank=ref.number + 1)

    def _job_track(self, job: str) -> int:
        return self._track("Jobs", job)

    def _ns(self, at: float) -> int:
        return round(max(0.0, at - self._base) * NS)

    # --- events

    def _slice(
        self,
        track: int,
        begin: float,
        end: float,
        name: str,
        *,
        category: str,
        arguments: Mapping[str, Argument],
        arrows: tuple[int, ...] = (),
    ) -> None:
        first, last = self._ns(begin), self._ns(end)
        if last <= first:
            return
        opening = packets.event(
            first,
            track,
            Event.BEGIN,
            name=name,
            category=category,
            arguments=arguments,
            ends=arrows,
        )
        self._put(first, Event.BEGIN, opening)
        self._put(last, Event.END, packets.event(last, track, Event.END))

    def _put(self, at: int, what: Event, packet: bytes) -> None:
        self._events.append(_Written(at, _ORDER[what], packet))

    # --- GPUs

    def _add_gpus(self) -> None:
        """Describe all GPUs, and show when they are out of service."""
        gpus = [line for line in self._record.lines if isinstance(line, Gpu)]
        out: dict[GpuRef, Gpu] = {}
        for ref in sorted({GpuRef(NodeName(line.node), line.gpu) for line in gpus}):
            self._gpu_track(ref)
        for line in gpus:
            ref = GpuRef(NodeName(line.node), line.gpu)
            former = out.pop(ref, None)
            if former is not None:
                self._add_outage(ref, former, line.at)
            if not line.in_service:
                out[ref] = line
        for ref, line in out.items():
            self._add_outage(ref, line, self._record.header.until)

    def _add_outage(self, ref: GpuRef, line: Gpu, end: float) -> None:
        # A track of its own, because a job may keep a GPU that is out of service.
        track = self._gpu_track(ref, ": out of service")
        reason = {"reason": line.reason}
        name = line.reason or "out of service"
        self._slice(track, line.at, end, name, category=SERVICE_CATEGORY, arguments=reason)

    def _add_spans(self) -> None:
        """Show which job has which GPU, and arrows between those that follow each other."""
        spans = sorted(list_spans(self._record), key=lambda span: span.begin)
        arrows = self._find_arrows(spans)
        busy: dict[tuple[GpuRef, int], float] = {}
        for span in spans:
            arguments = self._arguments_of(span)
            for ref in span.placement.refs():
                lane = 0
                # Two jobs never have one GPU at once; in a damaged past both are to be seen.
                while busy.get((ref, lane), 0.0) > span.begin:
                    lane += 1
                busy[ref, lane] = span.end
                self._slice(
                    self._gpu_track(ref, f", {lane + 1}" if lane else ""),
                    span.begin,
                    span.end,
                    span.job,
                    category=GPU_CATEGORY,
                    arguments=arguments,
                    arrows=arrows.get((span.job, span.begin, ref), ()),
                )

    def _arguments_of(self, span: Span) -> Mapping[str, Argument]:
        decided = self._decisions.get((span.job, span.generation))
        arguments: dict[str, Argument] = {
            "job": span.job,
            "gpus": span.placement.gpus,
            "where": str(span.placement),
            "generation": span.generation,
        }
        if decided is None:
            return arguments
        arguments |= {"reason": decided.sentence, "cause": decided.cause, "step": decided.step}
        if decided.for_job is not None:
            arguments["for"] = decided.for_job
        if decided.cost_seconds is not None:
            arguments["cost_seconds"] = decided.cost_seconds
        if (expected := decided.expected) is not None:
            arguments["expected_pause_seconds"] = expected.pause_seconds
            if expected.iterations_per_second is not None:
                arguments["expected_iterations_per_second"] = expected.iterations_per_second
            if expected.remaining_seconds is not None:
                arguments["expected_remaining_seconds"] = expected.remaining_seconds
        return arguments

    def _find_arrows(
        self, spans: list[Span]
    ) -> Mapping[tuple[str, float, GpuRef], tuple[int, ...]]:
        """Begin arrows where a job makes room; tell at which slices they end."""
        gains: dict[tuple[str, float], Span] = {(span.job, span.begin): span for span in spans}
        found: dict[tuple[str, float, GpuRef], tuple[int, ...]] = {}
        for line in self._record.lines:
            if not isinstance(line, Decided) or line.for_job is None or line.old is None:
                continue
            gained = gains.get((line.for_job, line.at))
            kept = set(line.new.refs()) if line.new is not None else set()
            lost = [ref for ref in line.old.refs() if ref not in kept]
            if gained is None or not lost:
                continue
            refs = gained.placement.refs()
            taken = next((ref for ref in lost if ref in refs), None)
            self._arrows += 1
            key = gained.job, gained.begin, taken or refs[0]
            found[key] = (*found.get(key, ()), self._arrows)
            self._add_room_making(line, taken or lost[0])
        return found

    def _add_room_making(self, line: Decided, ref: GpuRef) -> None:
        """Begin an arrow within the slice of the job that makes room, where that ends."""
        at = self._ns(line.at)
        packet = packets.event(
            at,
            self._gpu_track(ref),
            Event.INSTANT,
            name=f"makes room for {line.for_job}",
            category=ROOM_CATEGORY,
            arguments={"job": line.job, "reason": line.sentence, "cause": line.cause},
            starts=(self._arrows,),
        )
        self._put(at, Event.INSTANT, packet)

    # --- jobs

    def _add_stretches(self) -> None:
        for stretch in list_stretches(self._record):
            decided = self._decisions.get((stretch.job, stretch.generation))
            arguments: dict[str, Argument] = {"generation": stretch.generation}
            if decided is not None:
                arguments |= {"reason": decided.sentence, "cause": decided.cause}
            self._slice(
                self._job_track(stretch.job),
                stretch.begin,
                stretch.end,
                _STAGES[stretch.stage],
                category=PHASE_CATEGORY,
                arguments=arguments,
            )

    def _add_happenings(self) -> None:
        """Show as moments on the track of a job what does not last."""
        for line in self._record.lines:
            told = _moment(line)
            if told is None or line.at < self._record.header.since:
                continue
            job, name, message = told
            at = self._ns(line.at)
            packet = packets.event(
                at,
                self._track("Jobs", job, "events"),
                Event.INSTANT,
                name=name,
                arguments={"message": message} if message else {},
            )
            self._put(at, Event.INSTANT, packet)

    # --- counters

    def _add_counters(self) -> None:
        for level in list_levels(self._record):
            self._count(level.at, "Queue", level.queued, "jobs")
            self._count(level.at, "Idle GPUs", level.idle, "GPUs")
            self._count(level.at, "GPUs in service", level.in_service, "GPUs")
        speeds: dict[str, float] = {}
        for at, job, speed in _iter_speeds(self._record.lines):
            speeds[job] = speed
            self._count(at, "Speed of all jobs", sum(speeds.values()), "iterations/s")
            self._count(at, "Jobs", speed, "iterations/s", job, "speed")

    def _count(self, at: float, name: str, value: float, unit: str, *below: str) -> None:
        moment = self._ns(at)
        track = self._track(name, *below, unit=unit)
        self._put(moment, Event.COUNTER, packets.count(moment, track, value))


def export(record: Record) -> bytes:
    """Write a record as a trace that Perfetto opens."""
    return Exporter(record).export()


def _moment(line: Line) -> tuple[str, str, str] | None:
    """Name what happened to which job, if it is a moment, and say more of it."""
    match line:
        case Submitted():
            options = ", ".join(map(str, line.options))
            return line.job, "submitted", f"runs on {options} GPUs" if options else ""
        case Decided(step="wait"):
            return line.job, "waits", line.sentence
        case Happened():
            return line.job, line.name, line.message
        case Ended():
            return line.job, line.outcome, line.message
        case _:
            return None


def _iter_speeds(lines: tuple[Line, ...]) -> Iterator[tuple[float, str, float]]:
    """Yield how fast which job trains from when on; one that has lost its GPUs does not train."""
    for line in lines:
        if isinstance(line, Progress):
            yield line.at, line.job, line.iterations_per_second
        elif isinstance(line, Ended) or (isinstance(line, Given) and line.placement is None):
            yield line.at, line.job, 0.0
