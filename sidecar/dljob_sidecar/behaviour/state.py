"""
The state of a SideCar at one moment, and the conclusions from that state alone.

:mod:`dljob_sidecar.behaviour.machine` defines the transitions.
"""

from __future__ import annotations

from dataclasses import dataclass

from dljob_sidecar.behaviour.events import RankEnded
from dljob_wire.messages import (
    LiveChange,
    LiveTrial,
    Phase,
    Problem,
    Run,
    Saving,
    Stop,
    Target,
    Term,
    Trial,
)
from dljob_wire.training import GATHERING


@dataclass(frozen=True)
class Limits:
    """The limits and abilities of a job for a stop."""

    saves: bool = False
    """True if the job can be asked to save itself."""
    leader_saves: bool = False
    """True if the job's first process saves it; False if each container's processes do."""
    tries: bool = False
    """True if the job can save itself on request and continue."""
    checkpoint_seconds: float = 60.0
    grace_seconds: float = 10.0
    kill_seconds: float = 5.0
    """The time from SIGKILL without a proof until SIGKILL is repeated and reported."""
    live_seconds: float = 0.0
    """How long a live change may hold up the training; 0 if the job never changes live."""

    @property
    def gathering_seconds(self) -> float:
        return GATHERING * self.live_seconds


QUIET = frozenset({Phase.READY, Phase.STOPPED, Phase.EXITED, Phase.FAILED})
"""The phases in which it is proven that no process of the job lives."""


@dataclass(frozen=True)
class Machine:
    """The state of a SideCar at one moment."""

    incarnation: str
    limits: Limits = Limits()
    phase: Phase = Phase.READY
    target: Target | None = None
    """The newest declaration, to which the SideCar converges."""
    run: Run | None = None
    """The run of the latest attempt."""
    attempt: int = 0
    """Counts the attempts of this incarnation; each event names its attempt."""
    ended: tuple[RankEnded, ...] = ()
    """The ended ranks of the latest attempt, in the order of their ends."""
    failure: Problem | None = None
    """The reason why the latest attempt failed, unless the SideCar ended it."""
    culprit: RankEnded | None = None
    """The first rank of the latest attempt that failed by itself; the others followed."""
    is_finished: bool = False
    """True if all ranks of the latest attempt ended well before any was terminated."""
    saving: Saving | None = Saving.NONE
    """The outcome of the latest checkpoint; None while it is under way."""
    saving_problem: Problem | None = None
    is_unstepped: bool = False
    """True if the latest request came before the first step, so that its failure is no fault of the checkpoint."""
    trial: Trial = Trial()
    """The latest trial of a checkpoint in the latest attempt, as far as the machine knows it."""
    capable: int = 0
    """The number of processes of the latest attempt that can change live."""
    changing: Target | None = None
    """The target of the live change under way. After a failure, until the proof that all are gone."""
    is_gathered: bool = False
    """True if the live change may hold up the training, because all that join are ready."""
    is_withdrawing: bool = False
    awaited: str = ""
    """The present obstacle to the live change, in words."""
    live_trial: LiveTrial = LiveTrial()
    """The latest trial of a live change in the latest attempt."""
    live_change: LiveChange | None = None
    """The latest live change, also if it fell back to the latest attempt."""
    is_stuck: bool = False
    """True if SIGKILL was sent and the proof has not come in ``kill_seconds``."""
    lingering: Problem | None = None
    """The obstacle to the proof, if it is not a process."""
    installation: str = ""
    """The installation of DLJob that the SideCar obeys; empty until a command names one."""
    is_interrupted: bool = False
    has_left: bool = False

    @property
    def released(self) -> bool:
        """True once it is proven that no process of the job lives in this incarnation."""
        return self.phase in QUIET

    @property
    def has_ended(self) -> bool:
        """True if all ranks of the latest attempt have ended, and none failed by itself."""
        is_over = self.run is not None and len(self.ended) == self.run.processes
        return is_over and self.failure is None

    @property
    def held(self) -> tuple[str, ...]:
        """The GPUs that processes of the job may use; during a live change, of both its sides."""
        if self.released or self.run is None:
            return ()
        coming = self.changing.gpus if isinstance(self.changing, Run) else ()
        return tuple(dict.fromkeys((*self.run.gpus, *coming)))

    @property
    def follows(self) -> bool:
        return self.limits.leader_saves and self.run is not None and self.run.rank_offset > 0

    @property
    def is_trying(self) -> bool:
        return self.trial.number > 0 and self.trial.saving is Saving.NONE

    @property
    def is_trying_live(self) -> bool:
        return self.live_trial.number > 0 and self.live_trial.succeeded is None

    @property
    def only_joins(self) -> bool:
        """True during a live change if all processes of this container join others."""
        return self.changing is not None and self.changing == self.run

    @property
    def present(self) -> Run | None:
        """The run of the processes that live, where it is not the target."""
        return None if self.released or self.run == self.target else self.run

    @property
    def falls_back(self) -> bool:
        """True if the live change under way has failed."""
        return self.changing is not None and self.has_fallen_back(self.changing)

    def has_fallen_back(self, target: Target) -> bool:
        """Return True if the live change to this target has failed; it is not tried again."""
        change = self.live_change
        return (
            change is not None and bool(change.message) and change.generation == target.generation
        )

    @property
    def has_ended_well(self) -> bool:
        """
        True if the training is over: it ended well by itself, without a checkpoint.

        A waiting command does not change that, but the run of a controller without this rule still
        starts.
        """
        if not self.is_finished or self.saving is Saving.CONFIRMED:
            return False
        target = self.target
        return not isinstance(target, Run) or target == self.run or target.ended is not None

    @property
    def may_start(self) -> bool:
        """True if the run's author knows of the latest good end, or if there was none."""
        if self.phase is not Phase.EXITED or self.run is None:
            return True
        target = self.target
        return not isinstance(target, Run) or target.ended in (None, self.run.generation)

    @property
    def term(self) -> Term:
        return Term(0, 0) if self.target is None else self.target.term

    @property
    def is_leaving(self) -> bool:
        return self.is_interrupted or self.has_left or self._is_told_to_leave

    @property
    def _is_told_to_leave(self) -> bool:
        return isinstance(self.target, Stop) and self.target.leave

    @property
    def exit_status(self) -> int:
        """The SideCar's exit status: the training's, by shell rules, or 0 after a leave command."""
        if self._is_told_to_leave:
            # With any other status, a kubelet would restart the container even after a failure, and
            # its pod and log would have to be deleted.
            return 0
        if self.failure is None:
            decisive = min(self.ended, key=lambda end: end.rank, default=None)
        else:
            decisive = next((end for end in self.ended if not end.is_well), None)
        if decisive is None:
            return 0 if self.failure is None else EXIT_NOT_STARTED
        return (
            decisive.exit_code if decisive.exit_code is not None else 128 + (decisive.signal or 0)
        )

    @property
    def problems(self) -> tuple[Problem, ...]:
        stuck = (self.lingering or STUCK) if self.is_stuck else None
        known = (self.failure, self.saving_problem, stuck)
        return tuple(problem for problem in known if problem is not None)


EXIT_NOT_STARTED = 127
"""The exit status of shells for a command that cannot be run."""

STUCK = Problem(
    "ProcessesDoNotEnd",
    "SIGKILL was sent, and processes of the job are still there",
    "look for processes in the uninterruptible sleep (state D), for example on a network file"
    " system or a GPU that has failed; the GPUs stay with this job until they are gone",
)
UNCONFIRMED = Problem(
    "CheckpointNotConfirmed",
    "the processes ended before the checkpoint was confirmed",
    "look into the log of the training; what it did since the last checkpoint is done again",
)
LIVE_CHANGE_FAILED = Problem(
    "LiveChangeFailed",
    "the processes did not come together in a live change",
    "look into the log of the training; liveSeconds: 0 in the job makes DLJob restart it for each change",
)
TOO_SLOW = Problem(
    "CheckpointTimedOut",
    "the checkpoint was not confirmed in time, and the processes were stopped without it",
    "raise checkpoint.timeoutSeconds, or look whether the training answers the request",
)
