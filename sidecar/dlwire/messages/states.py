"""The state of a SideCar, and the reports of the training process that it is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from dlwire.kinds import Each, Flag, Maybe, Nested, Number, OneOf, Text, Whole, wire
from dlwire.messages.gpus import Gpu
from dlwire.messages.limits import (
    GPU_ID,
    INCARNATION,
    INSTALLATION,
    LONGEST_LAST_LINE,
    LONGEST_MESSAGE,
    METRICS,
    MOST_GPUS,
    MOST_LAST_LINES,
    MOST_PROBLEMS,
    NAME,
)
from dlwire.messages.targets import TARGET, Target, Term


class Phase(str, Enum):
    """The phase of a SideCar."""

    READY = "Ready"
    """It has started and has no command yet."""
    STARTING = "Starting"
    RUNNING = "Running"
    CHECKPOINTING = "Checkpointing"
    """The processes have been asked to save themselves, because they must end."""
    STOPPING = "Stopping"
    """They have to end, or have ended, and it is not yet proven that none is left."""
    STOPPED = "Stopped"
    """None is left, as was declared."""
    EXITED = "Exited"
    """They ended by themselves and well; none is left."""
    FAILED = "Failed"
    """They could not be started, or one ended badly; none is left."""


@dataclass(frozen=True)
class Problem:
    """Something that is not as it should be, and what to do about it."""

    name: str = field(metadata=wire(NAME))
    """In CamelCase, as the reasons of Kubernetes conditions: ``GPUsNotVisible``."""
    message: str = field(metadata=wire(Text(LONGEST_MESSAGE)))
    remedy: str = field(default="", metadata=wire(Text(LONGEST_MESSAGE)))
    gpus: tuple[str, ...] = field(default=(), metadata=wire(Each(GPU_ID, MOST_GPUS)))
    """The GPUs of the run that it is about, as the run names them, where it is about some of them only."""


@dataclass(frozen=True)
class Process:
    """One training process of the latest start."""

    rank: int = field(metadata=wire(Whole()))
    """In the whole job."""
    pid: int = field(metadata=wire(Whole()))
    """As this container counts; 0 while there is none."""
    gpus: tuple[str, ...] = field(default=(), metadata=wire(Each(GPU_ID, MOST_GPUS)))
    warm: bool = field(default=False, metadata=wire(Flag()))
    """Whether an interpreter that was ready became it."""
    exit_code: int | None = field(default=None, metadata=wire(Maybe(Whole(0, 255))))
    """Absent while it runs, and when a signal ended it."""
    signal: int | None = field(default=None, metadata=wire(Maybe(Whole(1, 64))))

    @property
    def is_running(self) -> bool:
        return self.exit_code is None and self.signal is None


@dataclass(frozen=True)
class Failure:
    """Which process of the latest start failed first, and by itself; the others were ended then."""

    rank: int = field(metadata=wire(Whole()))
    """In the whole job."""
    at: float = field(metadata=wire(Number()))
    """In seconds since 1970, by the clock of the node: over several containers the earliest counts."""
    exit_code: int | None = field(default=None, metadata=wire(Maybe(Whole(0, 255))))
    """Absent if a signal ended it."""
    signal: int | None = field(default=None, metadata=wire(Maybe(Whole(1, 64))))
    exception: str = field(default="", metadata=wire(Text(LONGEST_LAST_LINE)))
    """The last line of the traceback that was printed first around the failure; empty if none was."""
    lines: tuple[str, ...] = field(
        default=(), metadata=wire(Each(Text(LONGEST_LAST_LINE), MOST_LAST_LINES))
    )
    """The last lines of the container's processes before it; they share their output."""


@dataclass(frozen=True)
class Progress:
    """How far the training is, as far as it can be known."""

    iteration: int = field(default=0, metadata=wire(Whole()))
    epoch: float = field(default=0.0, metadata=wire(Number()))
    batch_size: int = field(default=0, metadata=wire(Whole()))
    """The global batch size that the training says it uses; 0 if it does not say."""
    metrics: Mapping[str, float] = field(default_factory=dict, metadata=wire(METRICS))
    iterations_per_second: float = field(default=0.0, metadata=wire(Number()))
    """Measured over the latest iterations of this start only; 0 while it cannot be known."""
    idle_seconds: float = field(default=0.0, metadata=wire(Number()))
    """For how long no iteration has been reported, or since the latest start none ever was."""
    begun: bool = field(default=False, metadata=wire(Flag()))
    """Whether anything was reported since the latest start: the training has taken a step."""
    stalled: bool = field(default=False, metadata=wire(Flag()))
    interval: int = field(default=0, metadata=wire(Whole()))
    """The fewest iterations between two reports of this start; 0 before the second report."""


@dataclass(frozen=True)
class Post:
    """A report of a training process about itself; absent fields are unchanged."""

    iteration: int | None = field(default=None, metadata=wire(Maybe(Whole())))
    epoch: float | None = field(default=None, metadata=wire(Maybe(Number())))
    batch_size: int | None = field(default=None, metadata=wire(Maybe(Whole())))
    metrics: Mapping[str, float] = field(default_factory=dict, metadata=wire(METRICS))


@dataclass(frozen=True)
class Warmth:
    """The interpreters that wait to become training processes."""

    wanted: int = field(default=0, metadata=wire(Whole()))
    """How many there will be soon, with those that are ready; 0 where none are made or none fits into memory.
    Before the driver has told how many GPUs there are it is more than are ready."""
    ready: int = field(default=0, metadata=wire(Whole()))
    memory_bytes: int = field(default=0, metadata=wire(Whole()))
    limit_bytes: int = field(default=0, metadata=wire(Whole()))
    """How much memory they may take together; 0 while that is not known."""


class Saving(str, Enum):
    """How the checkpoint before a stop went."""

    NONE = "none"
    """There was none to make."""
    CONFIRMED = "confirmed"
    FAILED = "failed"
    TIMED_OUT = "timedOut"


@dataclass(frozen=True)
class Change:
    """The cost of the latest change of GPUs, in seconds."""

    generation: int = field(metadata=wire(Whole()))
    saving: Saving = field(default=Saving.NONE, metadata=wire(OneOf(Saving)))
    checkpoint_seconds: float = field(default=0.0, metadata=wire(Number()))
    stop_seconds: float = field(default=0.0, metadata=wire(Number()))
    start_seconds: float = field(default=0.0, metadata=wire(Number()))


@dataclass(frozen=True)
class Trial:
    """A checkpoint that was asked for only to see that it works, while the training goes on."""

    number: int = field(default=0, metadata=wire(Whole()))
    """Which one, as the run named it; 0 if none was asked for in this start."""
    saving: Saving = field(default=Saving.NONE, metadata=wire(OneOf(Saving)))
    """How it went; ``none`` while it is under way."""
    iteration: int = field(default=0, metadata=wire(Whole()))
    """Which iteration was reported last when it was asked for, so that it holds at least that."""
    seconds: float = field(default=0.0, metadata=wire(Number()))
    """From the request to the outcome; 0 while it is under way."""
    went_on: bool = field(default=False, metadata=wire(Flag()))
    """Whether the training has reported a later iteration since the outcome."""
    ended: bool = field(default=False, metadata=wire(Flag()))
    """Whether a process ended during the trial, or right after it and before it went on."""
    message: str = field(default="", metadata=wire(Text(LONGEST_MESSAGE)))
    """Why it was not confirmed."""


@dataclass(frozen=True)
class State:
    """Everything a SideCar knows about this start of its container."""

    incarnation: str = field(metadata=wire(INCARNATION))
    """Which start of the container this is; all else holds for this start only."""
    version: int = field(metadata=wire(Whole()))
    """Rises with every change of this state, from 1."""
    phase: Phase = field(metadata=wire(OneOf(Phase)))
    released: bool = field(metadata=wire(Flag()))
    """Whether it is proven that no process of the job is left in this incarnation."""
    epoch: int = field(default=0, metadata=wire(Whole()))
    generation: int = field(default=0, metadata=wire(Whole()))
    """With the epoch: the highest term seen, which is that of the target."""
    target: Target | None = field(default=None, metadata=wire(Maybe(TARGET)))
    """The latest declaration, to which the SideCar converges."""
    held: tuple[str, ...] = field(default=(), metadata=wire(Each(GPU_ID, MOST_GPUS)))
    """The GPUs that processes of the job may use; none once they are released."""
    held_generation: int = field(default=0, metadata=wire(Whole()))
    """The generation whose processes were started last."""
    leaving: bool = field(default=False, metadata=wire(Flag()))
    """Whether the SideCar is about to end. Until it has ended, a newer run prevents that, unless
    the platform ends the container."""
    processes: tuple[Process, ...] = field(
        default=(), metadata=wire(Each(Nested(Process), MOST_GPUS))
    )
    progress: Progress = field(default=Progress(), metadata=wire(Nested(Progress)))
    gpus: tuple[Gpu, ...] = field(default=(), metadata=wire(Each(Nested(Gpu), MOST_GPUS)))
    warmth: Warmth = field(default=Warmth(), metadata=wire(Nested(Warmth)))
    change: Change | None = field(default=None, metadata=wire(Maybe(Nested(Change))))
    trial: Trial | None = field(default=None, metadata=wire(Maybe(Nested(Trial))))
    """The latest trial of a checkpoint; absent where the training cannot save itself and go on."""
    failure: Failure | None = field(default=None, metadata=wire(Maybe(Nested(Failure))))
    """Absent while the latest start goes on, and where it ended well or was ended from outside."""
    problems: tuple[Problem, ...] = field(
        default=(), metadata=wire(Each(Nested(Problem), MOST_PROBLEMS))
    )
    installation: str = field(default="", metadata=wire(INSTALLATION))
    """The installation of DLJob whose commands are obeyed: that of the first that named one."""

    @property
    def term(self) -> Term:
        return Term(self.epoch, self.generation)

    def essence(self) -> State:
        """
        Leave out what changes all the time.

        Two states of the same essence differ in nothing but how far the training is, in figures
        of GPUs and memory, and in the wording of problems.
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
