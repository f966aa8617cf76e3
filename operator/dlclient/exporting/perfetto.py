"""
A record as a trace for Perfetto (https://ui.perfetto.dev): one track for each GPU, below its node.

Slices on the track of a GPU are jobs, with the decision that gave it as arguments; slices on the track of
a job are the phases of its changes. An arrow goes from a job that made room to the job for which it did.
Durations are those of the record to the nanosecond, so that the sum of a job's slices on GPUs are its
GPU-seconds.
"""

from collections.abc import Iterator, Mapping

from dlclient.exporting.drawing import Drawing, Slice
from dlclient.exporting.packets import Argument
from dlcore.model import GpuRef
from dlcore.recording.record import (
    Clock,
    Decided,
    Ended,
    Given,
    Happened,
    Line,
    Progress,
    Record,
    Stage,
    Submitted,
)
from dlcore.recording.stretches import list_stretches
from dlcore.recording.sums import Span, list_levels, list_outages, list_spans

GPU_CATEGORY, ROOM_CATEGORY, PHASE_CATEGORY, SERVICE_CATEGORY = "gpu", "room", "phase", "service"

JOBS = "Jobs"

_STAGES: Mapping[Stage, str] = {
    Stage.ASKED: "asked: trains on, or its pods start",
    Stage.SAVING: "saving",
    Stage.SAVED: "stopping",
    Stage.STOPPED: "stopped: waits for its GPUs",
    Stage.STARTED: "starting",
}


def export(record: Record) -> bytes:
    """Write a record as a trace that Perfetto opens."""
    drawing = Drawing(record.begin)
    decisions = {
        (line.job, line.generation): line
        for line in record.lines
        if isinstance(line, Decided) and line.step != "wait"
    }
    _Gpus(drawing, record, decisions=decisions).draw()
    _draw_phases(drawing, record, decisions=decisions)
    _draw_moments(drawing, record)
    _draw_counters(drawing, record)
    return drawing.content(is_epoch=record.header.clock is Clock.EPOCH)


Decisions = Mapping[tuple[str, int], Decided]
"""The decisions about GPUs, by job and generation."""


class _Gpus:
    """The tracks of GPUs."""

    def __init__(self, drawing: Drawing, record: Record, *, decisions: Decisions) -> None:
        self._drawing = drawing
        self._record = record
        self._decisions = decisions
        self._arrows = 0

    def draw(self) -> None:
        outages = list_outages(self._record)
        # All GPUs in the order of their numbers, also those that never have a job.
        for ref in sorted(outages):
            self._track(ref)
        for ref, found in outages.items():
            for outage in found:
                # A track of its own, because a job may keep a GPU that is out of service.
                lane = ": held by other jobs" if outage.is_held else ": out of service"
                name = "another job" if outage.is_held else outage.reason or "out of service"
                drawn = Slice(
                    outage.begin, outage.end, name, SERVICE_CATEGORY, {"reason": outage.reason}
                )
                self._drawing.add_slice(self._track(ref, lane), drawn)
        self._draw_spans()

    def _track(self, ref: GpuRef, lane: str = "") -> int:
        return self._drawing.track(ref.node, f"GPU {ref.number}{lane}", rank=ref.number + 1)

    def _draw_spans(self) -> None:
        spans = sorted(list_spans(self._record), key=lambda span: span.begin)
        arrows = self._draw_arrows(spans)
        busy: dict[tuple[GpuRef, int], float] = {}
        for span in spans:
            arguments = self._arguments_of(span)
            for ref in span.placement.refs():
                lane = 0
                # A damaged record may give one GPU to two jobs, which are then both drawn.
                while busy.get((ref, lane), 0.0) > span.begin:
                    lane += 1
                busy[ref, lane] = span.end
                ending = arrows.get((span.job, span.begin, ref), ())
                drawn = Slice(span.begin, span.end, span.job, GPU_CATEGORY, arguments, ending)
                self._drawing.add_slice(self._track(ref, f", {lane + 1}" if lane else ""), drawn)

    def _arguments_of(self, span: Span) -> Mapping[str, Argument]:
        arguments: dict[str, Argument] = {
            "job": span.job,
            "gpus": span.placement.gpus,
            "where": str(span.placement),
            "generation": span.generation,
        }
        decided = self._decisions.get((span.job, span.generation))
        # A new attempt after a crash is no decision of a plan.
        return arguments if decided is None else arguments | _reasons_of(decided)

    def _draw_arrows(
        self, spans: list[Span]
    ) -> Mapping[tuple[str, float, GpuRef], tuple[int, ...]]:
        """Begin arrows where a job makes room; return the slices at which they end."""
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
            # Best along one GPU. Placing may shuffle them, and then the first of each side stand for all.
            taken = next((ref for ref in lost if ref in refs), None)
            self._arrows += 1
            key = gained.job, gained.begin, taken or refs[0]
            found[key] = (*found.get(key, ()), self._arrows)
            self._draw_room_making(line, taken or lost[0])
        return found

    def _draw_room_making(self, line: Decided, ref: GpuRef) -> None:
        # Perfetto takes no arrow from the end of a slice, so that it begins at a moment within it.
        self._drawing.add_moment(
            self._track(ref),
            line.at,
            name=f"makes room for {line.for_job}",
            category=ROOM_CATEGORY,
            arguments={"job": line.job, "reason": line.sentence, "cause": line.cause},
            arrows=(self._arrows,),
        )


def _reasons_of(decided: Decided) -> dict[str, Argument]:
    arguments: dict[str, Argument] = {
        "reason": decided.sentence,
        "cause": decided.cause,
        "step": decided.step,
    }
    if decided.for_job is not None:
        arguments["for"] = decided.for_job
    if decided.cost_seconds is not None:
        arguments["cost_seconds"] = decided.cost_seconds
    expected = decided.expected
    if expected is not None:
        arguments["expected_pause_seconds"] = expected.pause_seconds
        if expected.iterations_per_second is not None:
            arguments["expected_iterations_per_second"] = expected.iterations_per_second
        if expected.remaining_seconds is not None:
            arguments["expected_remaining_seconds"] = expected.remaining_seconds
    return arguments


def _draw_phases(drawing: Drawing, record: Record, *, decisions: Decisions) -> None:
    for stretch in list_stretches(record):
        decided = decisions.get((stretch.job, stretch.generation))
        arguments: dict[str, Argument] = {"generation": stretch.generation}
        if decided is not None:
            arguments |= {"reason": decided.sentence, "cause": decided.cause}
        name = _STAGES[stretch.stage]
        drawn = Slice(stretch.begin, stretch.end, name, PHASE_CATEGORY, arguments)
        drawing.add_slice(drawing.track(JOBS, stretch.job), drawn)


def _draw_moments(drawing: Drawing, record: Record) -> None:
    for line in record.lines:
        moment = _moment(line)
        # Lines from before the begin only give the state at the begin.
        if moment is None or line.at < record.header.since:
            continue
        job, name, message = moment
        arguments = {"message": message} if message else {}
        # Below the job, because a moment within a phase would be drawn over it.
        drawing.add_moment(
            drawing.track(JOBS, job, "events"), line.at, name=name, arguments=arguments
        )


def _moment(line: Line) -> tuple[str, str, str] | None:
    """Return name, job and details of an event; ``None`` for other kinds of lines."""
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


def _draw_counters(drawing: Drawing, record: Record) -> None:
    for level in list_levels(record):
        drawing.count(drawing.track("Queue", unit="jobs"), level.at, level.queued)
        drawing.count(drawing.track("Idle GPUs", unit="GPUs"), level.at, level.idle)
        drawing.count(drawing.track("GPUs in service", unit="GPUs"), level.at, level.in_service)
    unit = "iterations/s"
    speeds: dict[str, float] = {}
    for at, job, speed in _iter_speeds(record.lines):
        speeds[job] = speed
        drawing.count(drawing.track("Speed of all jobs", unit=unit), at, sum(speeds.values()))
        drawing.count(drawing.track(JOBS, job, "speed", unit=unit), at, speed)


def _iter_speeds(lines: tuple[Line, ...]) -> Iterator[tuple[float, str, float]]:
    """Yield the speed of a job from each moment on at which it changes."""
    for line in lines:
        if isinstance(line, Progress):
            yield line.at, line.job, line.iterations_per_second
        # A job without GPUs does not train, although no progress says so.
        elif isinstance(line, Ended) or (isinstance(line, Given) and line.placement is None):
            yield line.at, line.job, 0.0
