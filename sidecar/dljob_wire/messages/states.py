"""The state of a SideCar, and the reports of the training process that it is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from dljob_wire.kinds import Flag, Many, Number, OneOf, Said, Whole, declare, nested
from dljob_wire.messages.gpus import Gpu
from dljob_wire.messages.limits import (
    GPU_ID,
    INCARNATION,
    INSTALLATION,
    LONGEST_LAST_LINE,
    LONGEST_MESSAGE,
    METRICS,
    MOST_ENDS,
    MOST_GPUS,
    MOST_LAST_LINES,
    MOST_PROBLEMS,
    NAME,
)
from dljob_wire.messages.targets import TARGET, Target, Term


class Phase(str, Enum):
    READY = "Ready"
    """It has started and has no command yet."""
    STARTING = "Starting"
    RUNNING = "Running"
    CHECKPOINTING = "Checkpointing"
    """The processes were asked to save themselves, because they must end."""
    STOPPING = "Stopping"
    """The processes must end, or have ended without a proof that none is left."""
    STOPPED = "Stopped"
    """No process is left, as declared."""
    EXITED = "Exited"
    """The processes ended by themselves and well; none is left."""
    FAILED = "Failed"
    """The processes could not be started, or one ended badly; none is left."""


@dataclass(frozen=True)
class Problem:
    """A problem and its remedy."""

    name: str = declare(NAME)
    """In CamelCase, like the reasons of Kubernetes conditions: ``GPUsNotVisible``."""
    message: str = declare(Said(LONGEST_MESSAGE))
    remedy: str = declare(Said(LONGEST_MESSAGE), "")
    gpus: tuple[str, ...] = declare(Many(GPU_ID, MOST_GPUS), ())
    """The affected GPUs by their names in the run; empty if the problem is not limited to some."""


@dataclass(frozen=True)
class Process:
    """One training process of the latest start."""

    rank: int = declare(Whole())
    """The rank in the whole job."""
    pid: int = declare(Whole())
    """The process id in this container; 0 while there is no process."""
    gpus: tuple[str, ...] = declare(Many(GPU_ID, MOST_GPUS), ())
    warm: bool = declare(Flag(), default=False)
    """True if the process was a spare interpreter."""
    exit_code: int | None = declare(Whole(0, 255), None)
    """Absent while the process runs, and if a signal ended it."""
    signal: int | None = declare(Whole(1, 64), None)

    @property
    def is_running(self) -> bool:
        return self.exit_code is None and self.signal is None


@dataclass(frozen=True)
class Failure:
    """The first process of the latest start that failed by itself; the others were ended then."""

    rank: int = declare(Whole())
    """The rank in the whole job."""
    at: float = declare(Number())
    """Seconds since 1970 by the node's clock; the earliest failure of all containers counts."""
    exit_code: int | None = declare(Whole(0, 255), None)
    """Absent if a signal ended the process."""
    signal: int | None = declare(Whole(1, 64), None)
    exception: str = declare(Said(LONGEST_LAST_LINE), "")
    """The last line of the first traceback around the failure; empty if there was none."""
    lines: tuple[str, ...] = declare(Many(Said(LONGEST_LAST_LINE), MOST_LAST_LINES), ())
    """The last lines of the container's output before the failure."""


@dataclass(frozen=True)
class Progress:
    """The progress of the training, as far as known."""

    iteration: int = declare(Whole(), 0)
    epoch: float = declare(Number(), 0.0)
    batch_size: int = declare(Whole(), 0)
    """The global batch size that the training reports; 0 if it reports none."""
    metrics: Mapping[str, float] = declare(METRICS, default_factory=dict)
    iterations_per_second: float = declare(Number(), 0.0)
    """Measured over the latest iterations of this start only; 0 while unknown."""
    idle_seconds: float = declare(Number(), 0.0)
    """The seconds since the last reported iteration, or since the start if there was none."""
    begun: bool = declare(Flag(), default=False)
    """True if the training has reported anything, and so a step, since the latest start."""
    stalled: bool = declare(Flag(), default=False)
    interval: int = declare(Whole(), 0)
    """The fewest iterations between two reports of this start; 0 before the second report."""
    lap: int = declare(Whole(), 0)
    """The iterations after which the counter of the training begins again, which ``iteration``
    counts on; 0 if it has not done so in this container.
    """


@dataclass(frozen=True)
class Post:
    """A report of a training process about itself; absent fields are unchanged."""

    iteration: int | None = declare(Whole(), None)
    epoch: float | None = declare(Number(), None)
    batch_size: int | None = declare(Whole(), None)
    metrics: Mapping[str, float] = declare(METRICS, default_factory=dict)


@dataclass(frozen=True)
class Warmth:
    """The interpreters that wait to become training processes."""

    wanted: int = declare(Whole(), 0)
    """The number of spares that are ready or will be soon, and a larger one while GPUs are
    uncounted.
    """
    ready: int = declare(Whole(), 0)
    memory_bytes: int = declare(Whole(), 0)
    limit_bytes: int = declare(Whole(), 0)
    """The memory limit of all spares together; 0 while unknown."""


class Saving(str, Enum):
    """The outcome of the checkpoint before a stop."""

    NONE = "none"
    """No checkpoint was requested."""
    CONFIRMED = "confirmed"
    FAILED = "failed"
    TIMED_OUT = "timedOut"


@dataclass(frozen=True)
class Change:
    """The cost of the latest change of GPUs, in seconds."""

    generation: int = declare(Whole())
    saving: Saving = declare(OneOf(Saving), Saving.NONE)
    checkpoint_seconds: float = declare(Number(), 0.0)
    stop_seconds: float = declare(Number(), 0.0)
    start_seconds: float = declare(Number(), 0.0)


@dataclass(frozen=True)
class Trial:
    """A checkpoint that only tests whether saving works, while the training continues."""

    number: int = declare(Whole(), 0)
    """The number of the trial from the run; 0 if none was requested in this start."""
    saving: Saving = declare(OneOf(Saving), Saving.NONE)
    """The outcome; ``none`` while the trial is under way."""
    iteration: int = declare(Whole(), 0)
    """The last iteration reported before the request, which the checkpoint includes."""
    seconds: float = declare(Number(), 0.0)
    """The time from the request to the outcome; 0 while the trial is under way."""
    went_on: bool = declare(Flag(), default=False)
    """True if the training has reported a later iteration since the outcome."""
    ended: bool = declare(Flag(), default=False)
    """True if a process ended during the trial, or after it before the training continued."""
    message: str = declare(Said(LONGEST_MESSAGE), "")
    """The reason why the checkpoint was not confirmed."""


@dataclass(frozen=True)
class State:
    """The state of a SideCar in this start of its container."""

    incarnation: str = declare(INCARNATION)
    """The start of the container; all other fields hold for this start only."""
    version: int = declare(Whole())
    """Increases with every change of this state, from 1."""
    phase: Phase = declare(OneOf(Phase))
    released: bool = declare(Flag())
    """True if it is proven that no process of the job is left in this incarnation."""
    epoch: int = declare(Whole(), 0)
    generation: int = declare(Whole(), 0)
    """Together with the epoch: the highest known term, which is that of the target."""
    target: Target | None = declare(TARGET, None)
    """The latest declaration, to which the SideCar converges."""
    held: tuple[str, ...] = declare(Many(GPU_ID, MOST_GPUS), ())
    """The GPUs that processes of the job may use; empty after the release."""
    held_generation: int = declare(Whole(), 0)
    """The generation whose processes were started last."""
    leaving: bool = declare(Flag(), default=False)
    """True if the SideCar is about to end; a newer run still cancels that, except a platform's end.
    """
    processes: tuple[Process, ...] = declare(Many(nested(Process), MOST_GPUS), ())
    progress: Progress = declare(nested(Progress), Progress())
    gpus: tuple[Gpu, ...] = declare(Many(nested(Gpu), MOST_GPUS), ())
    warmth: Warmth = declare(nested(Warmth), Warmth())
    change: Change | None = declare(nested(Change), None)
    trial: Trial | None = declare(nested(Trial), None)
    """The latest trial of a checkpoint; absent if the training cannot save itself and continue."""
    failure: Failure | None = declare(nested(Failure), None)
    """Absent while the latest start runs, and if it ended well or was ended from outside."""
    problems: tuple[Problem, ...] = declare(Many(nested(Problem), MOST_PROBLEMS), ())
    installation: str = declare(INSTALLATION, "")
    """The installation of DLJob that this SideCar obeys: the first one that named itself."""

    @property
    def term(self) -> Term:
        return Term(self.epoch, self.generation)

    def left_behind(self) -> State:
        """
        Return what outlives the SideCar: how the latest start ended, without all else.

        One process stands for those that ended alike, because platforms keep only a short text.
        """
        ways = {(one.exit_code, one.signal): one for one in reversed(self.processes)}
        ended = sorted(ways.values(), key=lambda one: one.rank)[:MOST_ENDS]
        progress = self.progress
        return replace(
            self,
            target=None,
            held=(),
            leaving=True,
            processes=tuple(replace(one, pid=0, gpus=(), warm=False) for one in ended),
            progress=Progress(
                progress.iteration,
                begun=progress.begun,
                interval=progress.interval,
                lap=progress.lap,
            ),
            gpus=(),
            warmth=Warmth(),
            trial=None,
            failure=None,
            problems=(),
        )

    def essence(self) -> State:
        """
        Return the state without values that change all the time.

        States with the same essence differ only in progress, in figures of GPUs and memory, and in
        the wording of problems.
        """
        return replace(
            self,
            version=0,
            progress=Progress(begun=self.progress.begun, stalled=self.progress.stalled),
            gpus=tuple(
                replace(gpu, utilization=0.0, memory_used=0, processes=()) for gpu in self.gpus
            ),
            warmth=replace(self.warmth, memory_bytes=0, limit_bytes=0),
            problems=tuple(Problem(each.name, "", gpus=each.gpus) for each in self.problems),
        )
