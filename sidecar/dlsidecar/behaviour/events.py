"""
The events of a SideCar, and the actions that answer them: values only.

The events come from the controller, from the processes and from timers.
:mod:`dlsidecar.behaviour.machine` answers them with actions, and ``dlsidecar.agent`` carries these out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from dlwire.messages import Problem, Run, Target

# --- what can happen ----------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """The controller declared what shall be."""

    target: Target


@dataclass(frozen=True)
class Interrupted:
    """The platform ends the container (SIGTERM to the SideCar)."""


@dataclass(frozen=True)
class Started:
    """Every process of the attempt runs: it has become the user's program."""

    attempt: int


@dataclass(frozen=True)
class StartFailed:
    """
    At least one process could not be started; others may have been, and may live.

    It proves nothing: :class:`Gone` follows, at once if there is nothing to be waited for.
    """

    attempt: int
    problem: Problem


@dataclass(frozen=True)
class RankEnded:
    """A process that is a rank ended; it may leave others behind."""

    attempt: int
    rank: int
    exit_code: int | None
    """None if a signal ended it."""
    signal: int | None = None
    at: float = 0.0
    """In seconds since 1970."""

    @property
    def is_well(self) -> bool:
        return self.exit_code == 0


@dataclass(frozen=True)
class CheckpointDone:
    """The job confirmed its checkpoint in the way it said it would."""

    attempt: int


@dataclass(frozen=True)
class CheckpointFailed:
    """There will be no checkpoint, and no use in waiting for it."""

    attempt: int
    problem: Problem


@dataclass(frozen=True)
class CheckpointTimedOut:
    """The time for the checkpoint is over."""

    attempt: int


@dataclass(frozen=True)
class GraceOver:
    """The time between SIGTERM and SIGKILL is over."""

    attempt: int


@dataclass(frozen=True)
class StillThere:
    """It is some time since SIGKILL, and there is still no proof."""

    attempt: int


@dataclass(frozen=True)
class Lingering:
    """No process of the attempt is to be found any more, and yet something is in the way of Gone."""

    attempt: int
    problem: Problem


@dataclass(frozen=True)
class Gone:
    """
    It is proven that no process of the attempt is left, not as a descendant either.

    Where the memory of the GPUs can be read, it is back at its base line. After this no process of
    the attempt can appear any more.
    """

    attempt: int


Event = Union[
    Told,
    Interrupted,
    Started,
    StartFailed,
    RankEnded,
    CheckpointDone,
    CheckpointFailed,
    CheckpointTimedOut,
    GraceOver,
    StillThere,
    Lingering,
    Gone,
]

# --- what to do about it ------------------------------------------------------------------


@dataclass(frozen=True)
class StartProcesses:
    run: Run
    attempt: int


@dataclass(frozen=True)
class Prepare:
    """Make spares for the processes that are to start once those that live are gone."""

    processes: int


@dataclass(frozen=True)
class Checkpoint:
    """Ask the job to save itself, and watch for its confirmation."""

    is_trial: bool = False
    """True if the training is to go on after the checkpoint."""


@dataclass(frozen=True)
class GiveUpCheckpoint:
    """Watch for the confirmation no longer; the training goes on."""


@dataclass(frozen=True)
class Terminate:
    """SIGTERM to every process of the job that lives; end a start that is under way."""


@dataclass(frozen=True)
class Kill:
    """SIGKILL to every process of the job that lives, again until none is left."""


@dataclass(frozen=True)
class ArmTimer:
    """Deliver :attr:`event` after :attr:`seconds`; the timer armed before is cancelled."""

    event: Event
    seconds: float


@dataclass(frozen=True)
class Leave:
    """End the SideCar itself."""

    exit_status: int


Action = Union[
    StartProcesses, Prepare, Checkpoint, GiveUpCheckpoint, Terminate, Kill, ArmTimer, Leave
]
