"""
The events of a SideCar, and the actions that answer them: values only.

The events come from the controller, from the processes and from timers.
:mod:`dljob_sidecar.behaviour.machine` answers with actions; ``dljob_sidecar.agent`` carries them out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from dljob_wire.messages import Problem, Run, Target

# --- what can happen ----------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """The controller declared a target."""

    target: Target


@dataclass(frozen=True)
class Interrupted:
    """The platform ends the container (SIGTERM to the SideCar)."""


@dataclass(frozen=True)
class Started:
    """Every process of the attempt runs the user's program."""

    attempt: int


@dataclass(frozen=True)
class StartFailed:
    """
    At least one process could not be started; others may have been started, and may live.

    This event proves nothing: :class:`Gone` follows, at once if there is nothing to wait for.
    """

    attempt: int
    problem: Problem


@dataclass(frozen=True)
class RankEnded:
    """The process of a rank ended; it may leave other processes behind."""

    attempt: int
    rank: int
    exit_code: int | None
    """None if a signal ended the process."""
    signal: int | None = None
    at: float = 0.0
    """In seconds since 1970."""

    @property
    def is_well(self) -> bool:
        return self.exit_code == 0


@dataclass(frozen=True)
class CheckpointDone:
    """The job confirmed its checkpoint."""

    attempt: int


@dataclass(frozen=True)
class CheckpointFailed:
    """The checkpoint failed, and waiting for it is pointless."""

    attempt: int
    problem: Problem


@dataclass(frozen=True)
class Unstepped:
    """The job is to save itself, and has reported no step since its start: it may have no work to save."""

    attempt: int


@dataclass(frozen=True)
class CheckpointTimedOut:
    """The time limit of the checkpoint has passed."""

    attempt: int


@dataclass(frozen=True)
class GraceOver:
    """The time between SIGTERM and SIGKILL has passed."""

    attempt: int


@dataclass(frozen=True)
class StillThere:
    """Some time has passed since SIGKILL, and there is still no proof."""

    attempt: int


@dataclass(frozen=True)
class Lingering:
    """No process of the attempt is found, but something else prevents Gone."""

    attempt: int
    problem: Problem


@dataclass(frozen=True)
class Gone:
    """
    It is proven that no process of the attempt is left, including descendants.

    If the memory of the GPUs can be read, it is back at its base line. After this event no process
    of the attempt can appear.
    """

    attempt: int


@dataclass(frozen=True)
class Capable:
    """This number of processes can change live: they have registered and pass boundaries."""

    attempt: int
    processes: int


@dataclass(frozen=True)
class Gathered:
    """The processes that join here are ready, so from now on the live change may hold up the training."""

    attempt: int


@dataclass(frozen=True)
class Awaited:
    """The present obstacle to the live change, in words."""

    attempt: int
    what: str


@dataclass(frozen=True)
class Changed:
    """
    All members have joined, and it is proven that those that left are gone.

    Also after a trial, in which all stay.
    """

    attempt: int
    pause_seconds: float = 0.0
    state_bytes: int = 0


@dataclass(frozen=True)
class ChangeRefused:
    """A live change cannot succeed, and the training may not know of it yet."""

    attempt: int
    why: str


@dataclass(frozen=True)
class ChangeFailed:
    """A live change cannot succeed, and its processes have to end."""

    attempt: int
    why: str


@dataclass(frozen=True)
class Withdrawn:
    """The training goes on without the live change; it is proven that those that came for it are gone."""

    attempt: int


@dataclass(frozen=True)
class NotWithdrawn:
    """The members have agreed on the boundary of the live change, which can only succeed or fail now."""

    attempt: int


@dataclass(frozen=True)
class ChangeTimedOut:
    """The time limit of the live change has passed."""

    attempt: int


Event = Union[
    Told,
    Interrupted,
    Started,
    StartFailed,
    RankEnded,
    CheckpointDone,
    CheckpointFailed,
    Unstepped,
    CheckpointTimedOut,
    GraceOver,
    StillThere,
    Lingering,
    Gone,
    Capable,
    Gathered,
    Awaited,
    Changed,
    ChangeRefused,
    ChangeFailed,
    Withdrawn,
    NotWithdrawn,
    ChangeTimedOut,
]

# --- what to do about it ------------------------------------------------------------------


@dataclass(frozen=True)
class StartProcesses:
    run: Run
    attempt: int
    joins: bool = False
    """True if the processes join those of other containers, which train already."""


@dataclass(frozen=True)
class Prepare:
    """Make spares for the processes that start after the present ones have ended."""

    processes: int


@dataclass(frozen=True)
class Checkpoint:
    """Ask the job to save itself, and watch for its confirmation."""

    is_trial: bool = False
    """True if the training is to continue after the checkpoint."""


@dataclass(frozen=True)
class GiveUpCheckpoint:
    """Stop watching for the confirmation; the training continues."""


@dataclass(frozen=True)
class ChangeLive:
    """Change the processes of the run into those of the target, without ending those that stay."""

    run: Run
    target: Target


@dataclass(frozen=True)
class TryLive:
    """Let the processes of the run go through a live change in which all stay."""

    run: Run
    number: int


@dataclass(frozen=True)
class Withdraw:
    """Take the live change back, unless its members have agreed on a boundary."""


@dataclass(frozen=True)
class Terminate:
    """Send SIGTERM to every living process of the job, and end a start that is under way."""


@dataclass(frozen=True)
class Kill:
    """Send SIGKILL to every living process of the job, repeatedly until none is left."""


@dataclass(frozen=True)
class ArmTimer:
    """Deliver :attr:`event` after :attr:`seconds`, and cancel the previous timer."""

    event: Event
    seconds: float


@dataclass(frozen=True)
class Leave:
    """End the SideCar itself."""

    exit_status: int


Action = Union[
    StartProcesses,
    Prepare,
    Checkpoint,
    GiveUpCheckpoint,
    ChangeLive,
    TryLive,
    Withdraw,
    Terminate,
    Kill,
    ArmTimer,
    Leave,
]
