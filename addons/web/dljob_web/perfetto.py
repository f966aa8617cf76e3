"""
A record as a trace for Perfetto (https://ui.perfetto.dev), in Chrome's JSON: one track for each GPU, below its node.

Slices on the track of a GPU are jobs, with the decision that gave it as arguments; slices on the track of
a job are the phases of its changes. An arrow goes from a job that made room to the job for which it did.
Times are those of the record to the microsecond, so that the slices of a job add up to its GPU-seconds.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dljob.core.model import GpuRef
from dljob.core.recording.record import (
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
from dljob.core.recording.stretches import Stretch, list_stretches
from dljob.core.recording.sums import Outage, Span, list_levels, list_outages, list_spans

JOBS = "Jobs"

_STAGES: Mapping[Stage, str] = {
    Stage.ASKED: "asked: trains on, or its pods start",
    Stage.SAVING: "saving",
    Stage.SAVED: "stopping",
    Stage.STOPPED: "stopped: waits for its GPUs",
    Stage.STARTED: "starting",
    Stage.PAUSED: "paused by a live change",
}

Arguments = Mapping[str, object]
Track = Mapping[str, int]


def export(record: Record) -> bytes:
    """Write a record as a trace that Perfetto opens."""
    drawing = _Drawing(record)
    drawing.draw_gpus()
    drawing.draw_phases()
    drawing.draw_moments()
    drawing.draw_counters()
    return json.dumps({"traceEvents": drawing.events}, separators=(",", ":")).encode()


class _Drawing:
    """The events of one trace, in any order. A process stands for a node, and a thread for a GPU."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._numbers: dict[tuple[str, ...], int] = {}
        self._arrows = 0
        self.events: list[dict[str, Any]] = []
        self._decisions = {
            (line.job, line.generation): line
            for line in record.lines
            if isinstance(line, Decided) and line.step != "wait"
        }

    def draw_gpus(self) -> None:
        outages = list_outages(self._record)
        # All GPUs in the order of their numbers, also those that never have a job.
        for ref in sorted(outages):
            self._gpu(ref)
        for ref, found in outages.items():
            for outage in found:
                # A track of its own, because a job may keep a GPU that is out of service.
                track = self._gpu(
                    ref, ": held by other jobs" if outage.is_held else ": out of service"
                )
                name = "another job" if outage.is_held else outage.reason or "out of service"
                self._slice(
                    track,
                    outage,
                    name=name,
                    category="service",
                    arguments={"reason": outage.reason},
                )
        spans = sorted(list_spans(self._record), key=lambda span: span.begin)
        busy: dict[tuple[GpuRef, int], float] = {}
        for span in spans:
            arguments = self._arguments_of(span)
            for ref in span.placement.refs():
                lane = 0
                # A damaged record may give one GPU to two jobs, which are then both drawn.
                while busy.get((ref, lane), 0.0) > span.begin:
                    lane += 1
                busy[ref, lane] = span.end
                track = self._gpu(ref, f", {lane + 1}" if lane else "")
                self._slice(track, span, name=span.job, category="gpu", arguments=arguments)
        self._draw_arrows({(span.job, span.begin): span for span in spans})

    def _arguments_of(self, span: Span) -> Arguments:
        arguments: dict[str, object] = {
            "job": span.job,
            "gpus": span.placement.gpus,
            "where": str(span.placement),
            "generation": span.generation,
        }
        decided = self._decisions.get((span.job, span.generation))
        # A new attempt after a crash is no decision of a plan.
        if decided is None:
            return arguments
        expected = decided.expected
        arguments |= {
            "reason": decided.sentence,
            "cause": decided.cause,
            "step": decided.step,
            "for": decided.for_job,
            "cost_seconds": decided.cost_seconds,
            "how": decided.how or None,
            "expected_pause_seconds": expected and expected.pause_seconds,
            "expected_iterations_per_second": expected and expected.iterations_per_second,
            "expected_remaining_seconds": expected and expected.remaining_seconds,
        }
        return {name: value for name, value in arguments.items() if value is not None}

    def _draw_arrows(self, gains: Mapping[tuple[str, float], Span]) -> None:
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
            begin, end = self._gpu(taken or lost[0]), self._gpu(taken or refs[0])
            name = f"makes room for {line.for_job}"
            reasons = {"job": line.job, "reason": line.sentence, "cause": line.cause}
            # Within the slice that ends here, because Perfetto takes no arrow from its end.
            at = self._us(line.at) - 1
            self._arrows += 1
            arrow = {"name": name, "cat": "room", "id": self._arrows}
            self._add("i", at, begin, name=name, cat="room", s="t", args=reasons)
            self._add("s", at, begin, **arrow)
            self._add("f", at + 1, end, bp="e", **arrow)

    def draw_phases(self) -> None:
        for stretch in list_stretches(self._record):
            decided = self._decisions.get((stretch.job, stretch.generation))
            arguments: dict[str, object] = {"generation": stretch.generation}
            if decided is not None:
                arguments |= {"reason": decided.sentence, "cause": decided.cause}
            track = self._track(JOBS, stretch.job)
            name = _STAGES[stretch.stage]
            self._slice(track, stretch, name=name, category="phase", arguments=arguments)

    def draw_moments(self) -> None:
        for line in self._record.lines:
            moment = _moment(line)
            # Lines from before the begin only give the state at the begin.
            if moment is None or line.at < self._record.header.since:
                continue
            job, name, message = moment
            # Not on the track of the job, because a moment within a phase would be drawn over it.
            track = self._track(JOBS, f"{job}: events")
            args = {"message": message} if message else {}
            self._add("i", self._us(line.at), track, name=name, s="t", args=args)

    def draw_counters(self) -> None:
        for level in list_levels(self._record):
            self._count("All", level.at, name="Queue", unit="jobs", value=level.queued)
            self._count("All", level.at, name="Idle", unit="GPUs", value=level.idle)
            self._count("All", level.at, name="In service", unit="GPUs", value=level.in_service)
        unit = "iterations/s"
        speeds: dict[str, float] = {}
        for at, job, speed in _iter_speeds(self._record.lines):
            speeds[job] = speed
            self._count("All", at, name="All jobs", unit=unit, value=sum(speeds.values()))
            self._count(JOBS, at, name=job, unit=unit, value=speed)

    def _count(self, group: str, at: float, *, name: str, unit: str, value: float) -> None:
        """Draw the value of a counter from a moment on."""
        self._add("C", self._us(at), self._track(group), name=name, args={unit: value})

    def _gpu(self, ref: GpuRef, lane: str = "") -> Track:
        return self._track(ref.node, f"GPU {ref.number}{lane}", rank=ref.number + 1)

    def _track(self, *path: str, rank: int = 0) -> Track:
        """Return the numbers of a track by group and name; the first call describes it."""
        track: dict[str, int] = {}
        for key, kind in ((path[:1], "process"), (path, "thread"))[: len(path)]:
            is_new = key not in self._numbers
            number = self._numbers.setdefault(key, len(self._numbers) + 1)
            track["pid" if kind == "process" else "tid"] = number
            if is_new:
                order = {"sort_index": rank or number}
                self._add("M", 0, track, name=f"{kind}_name", args={"name": key[-1]})
                self._add("M", 0, track, name=f"{kind}_sort_index", args=order)
        return track

    def _slice(
        self,
        track: Track,
        drawn: Outage | Span | Stretch,
        *,
        name: str,
        category: str,
        arguments: Arguments,
    ) -> None:
        begin = self._us(drawn.begin)
        duration = self._us(drawn.end) - begin
        if duration > 0:
            self._add("X", begin, track, dur=duration, name=name, cat=category, args=arguments)

    def _us(self, at: float) -> int:
        return round(max(at, self._record.begin) * 1e6)

    def _add(self, kind: str, at_us: int, track: Track, **more: object) -> None:
        self.events.append({"ph": kind, "ts": at_us, **track, **more})


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


def _iter_speeds(lines: tuple[Line, ...]) -> Iterator[tuple[float, str, float]]:
    """Yield the speed of a job from each moment on at which it changes."""
    for line in lines:
        if isinstance(line, Progress):
            yield line.at, line.job, line.iterations_per_second
        # A job without GPUs does not train, although no progress says so.
        elif isinstance(line, Ended) or (isinstance(line, Given) and line.placement is None):
            yield line.at, line.job, 0.0
