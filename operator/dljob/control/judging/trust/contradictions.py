"""
Reports of a SideCar that cannot be true: they contradict each other, or the commands that it got.

Pure functions of one scene; :mod:`dljob.control.judging.trust.distrusting` draws the consequences.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from dljob.control.gpus.visibility import NOT_RELEASED
from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.ports import MOST_JUMP
from dljob.control.situation.scene import Scene
from dljob.control.situation.sent import Commanded
from dljob.control.situation.status import Booking
from dljob.core.model import JobId
from dljob_wire.messages import Phase, Run, State, Stop, Term

COMPLAINING: Final = frozenset({NOT_RELEASED, "ProcessesDoNotEnd"})
"""Problems with which a SideCar may need long to obey a command."""
PATIENCE: Final = 6.0
"""The factor by which the controller waits longer for a SideCar that reports one of these problems."""

_QUIET = frozenset({Phase.READY, Phase.STOPPED, Phase.EXITED, Phase.FAILED})


def find_disobedience(
    scene: Scene, job_pod: JobPod, *, epoch: int, state: State, told: Commanded | None
) -> str:
    """Return the command that the SideCar claims to obey and that no controller sent; empty if
    none.
    """
    if state.epoch < epoch:
        known = scene.entries[job_pod.key.job].status.run_generation
        if state.generation > known + MOST_JUMP:
            return f"it obeys generation {state.generation}, and the latest decided is {known}"
        return _is_late(scene, job_pod, state=state, told=told)
    if told is None:
        return "it says that it obeys this controller, which has sent it no command"
    latest = told.target
    if state.generation > latest.generation:
        return (
            f"it obeys generation {state.generation} of this controller, whose latest is"
            f" {latest.generation}"
        )
    if state.generation == latest.generation and not _may_be(state, told):
        return f"it obeys another command of generation {latest.generation} than it was given"
    return _is_late(scene, job_pod, state=state, told=told)


def iter_disobedient(
    scene: Scene, commanded: Mapping[tuple[JobId, Booking], Commanded]
) -> Iterator[JobPod]:
    """Find the SideCars that have left an old command undone."""
    for (job, booking), told in commanded.items():
        job_pod = scene.pods_of(job).get(booking.node)
        state = job_pod.state if job_pod is not None and job_pod.booking == booking else None
        if (
            job_pod is not None
            and state is not None
            and _is_late(scene, job_pod, state=state, told=told)
        ):
            yield job_pod


def contradicts_itself(state: State) -> str:
    """Return why no command can lead to this state; empty if one can."""
    target = state.target
    if state.term != (Term(0, 0) if target is None else target.term):
        return f"it says that it obeys {state.term}, and shows another command"
    if state.released == bool(state.held) or state.released != (state.phase in _QUIET):
        return f"it says that it is {state.phase.value}, and contradicts that by the GPUs that it holds"
    is_begun = isinstance(target, Run) and target.generation == state.held_generation
    if is_begun and state.held and isinstance(target, Run) and state.held != target.gpus:
        return "it says that it holds other GPUs than those of the command that it obeys"
    return ""


def _may_be(state: State, told: Commanded) -> bool:
    """Return True if the state shows the sent command, or the same stop before it had to hurry."""
    if isinstance(told.target, Stop) and isinstance(state.target, Stop):
        return state.target.leave == told.target.leave or not told.is_exact
    target = state.target
    if isinstance(target, Run) and isinstance(told.target, Run):
        # Ignore what may differ in the same term: a later trial, the reason (for people), and ends,
        # which an older SideCar does not know.
        target = replace(
            target, trial=told.target.trial, reason=told.target.reason, ended=told.target.ended
        )
    return not told.is_exact or target == told.target


def _is_late(scene: Scene, job_pod: JobPod, *, state: State, told: Commanded | None) -> str:
    """Return the overdue command that the SideCar has not obeyed; empty if none."""
    if told is None or not job_pod.contact.reachable or _has_done(state, told):
        return ""
    if not told.is_for(state.incarnation) or told.start != job_pod.pod.start:
        return ""  # The container has restarted, and is about to get its command.
    checkpoint = scene.entries[job_pod.key.job].job.checkpoint
    limit = checkpoint.timeout_seconds + checkpoint.grace_seconds + scene.obey_seconds
    if any(problem.name in COMPLAINING for problem in state.problems):
        limit *= PATIENCE
    if scene.now - told.at <= limit:
        return ""
    what = "run" if isinstance(told.target, Run) else "stop"
    return f"the controller ordered it to {what} {scene.now - told.at:.0f} s ago, and it has still not done so"


def _has_done(state: State, told: Commanded) -> bool:
    target = told.target
    if state.generation < target.generation:
        return False
    if isinstance(target, Stop) and target.leave and target.generation == state.generation:
        return False  # Its pod would have ended.
    return state.released or state.held_generation >= target.generation or state.term > target.term
