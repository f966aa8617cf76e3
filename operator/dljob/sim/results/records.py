"""
The events of a run of the world, and the sums over time that scoring needs.

:mod:`dljob.sim.engine.world` writes it while it plays; :mod:`dljob.sim.results.scoring` and :mod:`dljob_lab.plots` read it.
Sums are kept as they go: a replay of a hundred thousand decisions cannot afford to look back.
"""

from array import array
from dataclasses import dataclass, field
from enum import StrEnum

from dljob.core.model import JobId
from dljob.core.recording.record import Ended


class Happening(StrEnum):
    """The events of a job."""

    SUBMITTED = "submitted"
    DROPPED = "dropped"
    GRANTED = "granted"
    """A decision gave it its first GPUs, or its first after a stop."""
    TRAINS = "trains"
    """Its training process takes its first step with these GPUs."""
    ADDING = "adding"
    """A decision gives it more GPUs."""
    REMOVING = "removing"
    """A decision leaves it fewer GPUs."""
    MOVING = "moving"
    """A decision gives it as many GPUs elsewhere."""
    HALTS = "halts"
    """Its training process stops for a change."""
    PAUSES = "pauses"
    """Its training processes stand still for a live change."""
    STOPPED = "stopped"
    """A decision took all its GPUs."""
    LOST = "lost"
    """Its node failed; it falls back to its last checkpoint."""
    CRASHED = "crashed"
    """Its training process failed."""
    COMPLETED = "completed"
    FAILED = "failed"
    """It has crashed as often as it may."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the log of a run."""

    time: float
    job: JobId
    what: Happening
    gpus: int = 0


@dataclass(slots=True)
class JobRecord:
    """How it went for one job."""

    job: JobId
    requested: int
    submitted_at: float
    started_at: float | None = None
    completed_at: float | None = None
    failed_at: float | None = None
    iterations: float = 0.0
    """Iterations done, those done twice after a failure included."""
    redone: float = 0.0
    """Iterations that it does again, because no checkpoint held them when it was stopped or failed."""
    lost_work_s: float = 0.0
    """The seconds spent on the iterations that were redone."""
    gpu_seconds: float = 0.0
    lost_s: float = 0.0
    """Time with GPUs decided for it, after its first step, in which it did not train."""
    reshapes: int = 0
    stops: int = 0
    isolated_s: float = 0.0
    """How long it trains alone on its requested GPUs, packed, of the type on which it is fastest."""
    predictions: list[tuple[float, float]] = field(default_factory=list)
    """(fraction done, predicted total iterations / true ones) of a job with a target."""

    @property
    def jct(self) -> float:
        """Completion less submission."""
        if self.completed_at is None:
            raise ValueError(f"{self.job} has not completed")
        return self.completed_at - self.submitted_at

    def write_end(self, at: float) -> Ended:
        """Return the line of the record of a run about the end of the job."""
        return Ended(
            at=at,
            job=self.job,
            outcome="Completed" if self.failed_at is None else "Failed",
            gpu_seconds=self.gpu_seconds,
            reshapes=self.reshapes,
            lost_seconds=self.lost_work_s,
        )


class Level:
    """A quantity that stays what it is until it is changed, and its integral over time."""

    __slots__ = ("_since", "integral", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.integral = 0.0
        self._since = 0.0

    def add(self, by: float, now: float) -> None:
        """Change the level by ``by`` from now on."""
        self.integral += self.value * (now - self._since)
        self._since = now
        self.value += by

    def integral_at(self, now: float) -> float:
        return self.integral + self.value * (now - self._since)


class Blocking:
    """
    AFS's blocking index, summed over time without looking at every pending job at every event.

    At one instant it is the mean over pending jobs of (time pending / remaining time with one
    GPU). The numerators grow all at the same pace, so two sums over the jobs suffice.
    """

    __slots__ = ("_inverse", "_pending", "_since", "_start", "integral")

    def __init__(self) -> None:
        self.integral = 0.0
        self._since = 0.0
        self._pending = 0
        self._inverse = 0.0
        self._start = 0.0

    def enter(self, now: float, *, waited: float, remaining: float) -> None:
        """A job becomes pending that was so for ``waited`` seconds before."""
        self._advance(now)
        self._pending += 1
        if remaining > 0:
            self._inverse += 1.0 / remaining
            self._start += (now - waited) / remaining

    def leave(self, since: float, now: float, *, waited: float, remaining: float) -> None:
        """The job that became pending at ``since`` is so no longer."""
        self._advance(now)
        self._pending -= 1
        if remaining > 0:
            self._inverse -= 1.0 / remaining
            self._start -= (since - waited) / remaining
        if self._pending == 0:
            # Rounding errors must not live on in an empty queue.
            self._inverse = self._start = 0.0

    def _advance(self, now: float) -> None:
        if self._pending and now > self._since:
            mean_time = (now + self._since) / 2
            index = (mean_time * self._inverse - self._start) / self._pending
            self.integral += index * (now - self._since)
        self._since = now

    def integral_at(self, now: float) -> float:
        self._advance(now)
        return self.integral


@dataclass(slots=True)
class Series:
    """Levels over time, for plots: one row for each instant at which something changed."""

    time: "array[float]" = field(default_factory=lambda: array("d"))
    used: "array[float]" = field(default_factory=lambda: array("d"))
    running: "array[float]" = field(default_factory=lambda: array("d"))
    pending: "array[float]" = field(default_factory=lambda: array("d"))

    def add(self, time: float, *, used: float, running: int, pending: int) -> None:
        """Note the levels from ``time`` on."""
        self.time.append(time)
        self.used.append(used)
        self.running.append(running)
        self.pending.append(pending)


@dataclass(frozen=True, slots=True)
class Sums:
    """The integrals over time of the levels of a record, up to its last completion so far."""

    used: float = 0.0
    training: float = 0.0
    efficiency: float = 0.0
    queue: float = 0.0
    blocking: float = 0.0


@dataclass(slots=True)
class Record:
    """Everything that is known of one run."""

    workload: str
    policy: str
    mechanism: str
    seed: int
    gpus: int
    jobs: list[JobRecord] = field(default_factory=list)
    dropped: list[JobId] = field(default_factory=list)
    """Jobs that no state of the cluster could ever run."""
    log: list[Entry] = field(default_factory=list)
    series: Series = field(default_factory=Series)
    used: Level = field(default_factory=Level)
    """GPUs held."""
    training: Level = field(default_factory=Level)
    """GPUs on which jobs train."""
    efficiency: Level = field(default_factory=Level)
    """Sum over training jobs of speed / speed with one GPU."""
    queue: Level = field(default_factory=Level)
    blocking: Blocking = field(default_factory=Blocking)
    sums: Sums = Sums()
    decisions: int = 0
    decision_s: "array[float]" = field(default_factory=lambda: array("d"))
    ended_at: float = 0.0

    def sum_up(self, now: float) -> None:
        """Note the sums, because a job completes now and it may be the last."""
        self.sums = Sums(
            self.used.integral_at(now),
            self.training.integral_at(now),
            self.efficiency.integral_at(now),
            self.queue.integral_at(now),
            self.blocking.integral_at(now),
        )

    @property
    def completed(self) -> list[JobRecord]:
        """The jobs that came to their end."""
        return [job for job in self.jobs if job.completed_at is not None]

    @property
    def unfinished(self) -> list[JobRecord]:
        """The jobs that were kept and never ended: a policy let them starve."""
        return [job for job in self.jobs if job.completed_at is None and job.failed_at is None]
