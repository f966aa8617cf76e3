"""
From the event log of a demonstration to times: what each job did when, and how fast it was.

Pure. A SideCar reports mere progress up to a second late, but says for how long no iteration was
reported, so that the time of the latest one is known; when the first one began follows from how
fast they came.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from dljob.core.model import JobId, Mechanism
from dljob.sim.results.records import Entry, Happening, Record
from dljob_lab.demonstrating.journal import Line

_TRAINS = "Running"
_HALTS = ("Checkpointing", "Stopping", "Stopped")
_ENDS = "Exited"


class Sample(NamedTuple):
    """The number of iterations that were done at a time."""

    at: float
    iteration: int


@dataclass(slots=True)
class Stint:
    """One start of a job's processes."""

    job: JobId
    gpus: int
    runs_at: float
    """Its processes are the user's program from now on."""
    found: int
    """The number of iterations that were done before."""
    samples: list[Sample] = field(default_factory=list)
    halts_at: float | None = None
    """When it got the command to stop."""
    ended_at: float | None = None
    """All its iterations were done."""
    told_speed: float = 0.0

    @property
    def speed(self) -> float:
        """Iterations a second, over all of it; as its SideCar says where that is too short."""
        first, last = self.samples[:1], self.samples[-1:]
        if first and last[0].iteration > first[0].iteration:
            return (last[0].iteration - first[0].iteration) / (last[0].at - first[0].at)
        return self.told_speed

    @property
    def trains_at(self) -> float:
        """Its first iteration began; not a number if it never came so far."""
        if not self.samples:
            return math.nan
        at, iteration = self.samples[0]
        before = max(1, iteration - self.found) / self.speed if self.speed > 0 else 0.0
        return max(self.runs_at, at - before)

    def stops_at(self, now: float) -> float:
        """It trained until then, or trains yet."""
        return next((at for at in (self.ended_at, self.halts_at) if at is not None), now)


def read_stints(lines: Iterable[Line], approach: str, *, job: JobId) -> list[Stint]:
    """Every start of a job, in order."""
    stints: dict[int, Stint] = {}
    for line in lines:
        if (line["approach"], line["job"], line["what"]) != (approach, job, "state"):
            continue
        stint = stints.get(line["start"])
        if stint is None and line["phase"] in (_TRAINS, _ENDS):
            # The first report of a start still has the iterations of the previous start.
            before = [s.samples[-1].iteration for s in stints.values() if s.samples]
            found = max(line["iteration"], *before, 0)
            stint = Stint(job, len(line["gpus"]), line["at"], found)
            stints[line["start"]] = stint
        if stint is not None:
            _take(stint, line)
    return list(stints.values())


def _take(stint: Stint, line: Line) -> None:
    # The work after the checkpoint is done, and reported, once more.
    moved = not stint.samples or line["iteration"] > stint.samples[-1].iteration
    stint.told_speed = line["speed"] or stint.told_speed
    if line["phase"] == _TRAINS and line["begun"] and moved:
        stint.samples.append(Sample(line["at"] - line["idle"], line["iteration"]))
    elif line["phase"] in _HALTS:
        stint.halts_at = stint.halts_at if stint.halts_at is not None else line["at"]
        _take_last(stint, line)
    elif line["phase"] == _ENDS and stint.ended_at is None:
        _take_last(stint, line)
        stint.ended_at = min(line["at"], stint.samples[-1].at) if stint.samples else line["at"]


def _take_last(stint: Stint, line: Line) -> None:
    """Take the iterations that were reported with the end of the processes; their times are extrapolated."""
    if not stint.samples and line["begun"]:
        stint.samples.append(Sample(line["at"], line["iteration"]))
    elif stint.samples and line["iteration"] > stint.samples[-1].iteration and stint.speed > 0:
        at, known = stint.samples[-1]
        done_at = at + (line["iteration"] - known) / stint.speed
        stint.samples.append(Sample(min(done_at, line["at"]), line["iteration"]))


# --- as the simulator writes it ------------------------------------------------------------


class Clock(NamedTuple):
    """Converts the time of a run to the shown time."""

    origin: float
    """When the first job was submitted."""
    factor: float = 1.0
    """The factor by which the demonstration was faster than the shown times."""

    def shown(self, at: float) -> float:
        """Return how many seconds after the first submission this was, in what is shown."""
        return (at - self.origin) * self.factor


def read_clock(lines: Iterable[Line], approach: str, *, factor: float) -> Clock:
    """Return when an approach began."""
    submitted = (
        line["at"] for line in lines if (line["approach"], line["what"]) == (approach, "submitted")
    )
    return Clock(min(submitted, default=math.nan), factor)


def read_record(
    lines: Sequence[Line], approach: str, *, jobs: Iterable[JobId], factor: float
) -> Record:
    """Write the log of an approach as the simulator would have, so that all can read it alike."""
    clock = read_clock(lines, approach, factor=factor)
    record = Record(
        workload="demo", policy=approach, mechanism=Mechanism.IN_PLACE.value, seed=0, gpus=0
    )
    for job in jobs:
        record.log.append(Entry(clock.shown(_submitted(lines, approach, job=job)), job, _SUBMITTED))
        for stint in read_stints(lines, approach, job=job):
            record.log += _entries(stint, clock)
    record.log.sort(key=lambda entry: entry.time)
    return record


_SUBMITTED = Happening.SUBMITTED


def _submitted(lines: Iterable[Line], approach: str, *, job: JobId) -> float:
    times = (
        line["at"]
        for line in lines
        if (line["approach"], line["job"], line["what"]) == (approach, job, "submitted")
    )
    return next(times, math.nan)


def _entries(stint: Stint, clock: Clock) -> Iterator[Entry]:
    if stint.samples:
        yield Entry(clock.shown(stint.trains_at), stint.job, Happening.TRAINS, stint.gpus)
    if stint.ended_at is not None:
        yield Entry(clock.shown(stint.ended_at), stint.job, Happening.COMPLETED)
    elif stint.halts_at is not None and stint.samples:
        yield Entry(clock.shown(stint.halts_at), stint.job, Happening.HALTS)


SHORTEST_S = 0.75
"""Over less real time a speed is a matter of when it was looked."""


def read_speeds(stints: Iterable[Stint], clock: Clock) -> tuple[list[float], list[float]]:
    """Return how fast a job trained over time, as steps: in iterations per shown second."""
    times, speeds = [0.0], [0.0]
    for stint in stints:
        points = _space(stint)
        for (since, before), (at, iteration) in pairwise(points):
            times.append(clock.shown(since))
            speeds.append((iteration - before) / (at - since) / clock.factor)
        if points:
            times.append(clock.shown(stint.stops_at(points[-1].at)))
            speeds.append(0.0)
    return times, speeds


def _space(stint: Stint) -> list[Sample]:
    """The samples of a stint that are far enough from each other to show a speed."""
    if not stint.samples:
        return []
    points = [Sample(stint.trains_at, stint.found)]
    end = stint.stops_at(math.inf)
    for sample in stint.samples:
        if sample.at <= end and sample.at >= points[-1].at + SHORTEST_S:
            points.append(sample)
    return points


def read_interruptions(stints: Sequence[Stint]) -> list[float]:
    """For how long, each time, the job's processes were not there because they were replaced."""
    return [
        after.runs_at - before.halts_at
        for before, after in pairwise(stints)
        if before.halts_at is not None
    ]
