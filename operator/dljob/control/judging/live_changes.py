"""Live changes: whether the processes of a job stay when its GPUs change, as a trial has shown.

A training registers what makes up its state, and passes a boundary after each step (docs/training.md). Once all of its
processes do so and its checkpoint was tried, its SideCars get the command to try a live change: the same
processes form their group once more. A job whose trial went well changes live from then on
(:mod:`dljob.control.acting.desired_pods`). A trial or change that fails ends the start, and the job starts again from its
checkpoint; it is tried once more in a later start, and a few times in all. A training without a checkpoint would lose its
work by that, so it is tried while it has done little.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from dljob.control.judging import trials
from dljob.control.judging.checkpoints import is_declared, is_tried
from dljob.control.judging.progress import is_changing
from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.ports import Entry
from dljob.control.situation.rules import News
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import Condition, ConditionType, Status, Trust
from dljob.core.model import Job, Mechanism, Phase
from dljob_wire.messages import LiveChange, LiveTrial, State
from dljob_wire.messages import Phase as SideCarPhase
from dljob_wire.training import GATHERING

MOST_FAILURES: Final = 3
"""After this number of failures in all the job changes by restarts only."""
LOSABLE_S: Final = 60.0
"""A job without a checkpoint is tried as long as it would lose no more training than this."""


def are_capable(started: Iterable[JobPod]) -> bool:
    """Return True if all processes of a start can change live."""
    states = [job_pod.state for job_pod in started]
    return bool(states) and all(
        state is not None
        and state.live is not None
        and 0 < state.live.capable == len(state.processes)
        for state in states
    )


def find_due(scene: Scene, entry: Entry) -> int:
    """Return the number of the live trial that is due; 0 if there is none."""
    status, started = entry.status, scene.latest_start(entry.job.id)
    if status.phase is not Phase.RUNNING or scene.mechanism is not Mechanism.IN_PLACE:
        return 0
    may_be_tried = _may_be_tried(status, started)
    if status.live is Trust.CONFIRMED or not may_be_tried or not are_capable(started):
        return 0
    has_stepped = any(pod.state is not None and pod.state.progress.begun for pod in started)
    if not has_stepped or is_changing(scene, entry) or not _may_lose(scene, entry):
        return 0
    return status.live_tried + 1


def _may_be_tried(status: Status, started: Iterable[JobPod]) -> bool:
    if status.live is Trust.UNTRIED:
        return True
    changes = [_change_of(pod.state) for pod in started if pod.state is not None]
    # The processes that failed have ended with the change that fell back to this start.
    fell_back = any(each and each.message and each.generation == status.running for each in changes)
    is_later = fell_back or status.running != status.live_failed_in
    return status.live_failures < MOST_FAILURES and is_later


def _may_lose(scene: Scene, entry: Entry) -> bool:
    """Return True if a failure of the trial would lose little, and disturbs no trial of the checkpoint."""
    checkpoint, status = entry.job.checkpoint, entry.status
    if is_tried(checkpoint, status):
        is_confirmed = status.trust is Trust.CONFIRMED and not status.trials
        return is_confirmed and not trials.find_due(scene, entry)
    if is_declared(checkpoint):
        return True
    return status.pace > 0.0 and (status.iteration - status.saved) / status.pace <= LOSABLE_S


def follow(
    status: Status, started: Sequence[JobPod], *, now: float
) -> tuple[Status, tuple[News, ...]]:
    """Record the results of the latest live trial and of the latest live change."""
    before = status
    states = [job_pod.state for job_pod in started if job_pod.state is not None]
    status = _judge_trial(status, states)
    status = _judge_change(status, states)
    if status is before:
        return status, ()
    told = _describe(status, states)
    if told is None:
        return status, ()
    status = status.with_condition(told, now)
    if status.condition(ConditionType.LIVE) == before.condition(ConditionType.LIVE):
        return status, ()
    return status, (News(told.reason, told.message, warning=not told.status),)


def _judge_trial(status: Status, states: Sequence[State]) -> Status:
    outcomes = [trial for state in states if (trial := _outcome(state, status)) is not None]
    failed = any(trial.succeeded is False for trial in outcomes)
    if not outcomes or (len(outcomes) < len(states) and not failed):
        return status
    status = replace(status, live_tried=max(trial.number for trial in outcomes))
    return _fail(status, states) if failed else replace(status, live=Trust.CONFIRMED)


def _outcome(state: State, status: Status) -> LiveTrial | None:
    trial = state.live.trial if state.live is not None else None
    if trial is None or trial.number <= status.live_tried or trial.succeeded is None:
        return None
    return trial


def _judge_change(status: Status, states: Sequence[State]) -> Status:
    changes = [change for state in states if (change := _change_of(state)) is not None]
    if status.live is not Trust.CONFIRMED or not any(change.message for change in changes):
        return status
    generation = max(change.generation for change in changes if change.message)
    if generation <= status.live_failed_in:
        return status
    # A container that leaves names the end of the generation before, and the others the next one.
    return _fail(status, states, generation=max(generation, status.run_generation))


def _change_of(state: State) -> LiveChange | None:
    return state.live.change if state.live is not None else None


def _fail(status: Status, states: Sequence[State], *, generation: int = 0) -> Status:
    failed_in = max([generation, *(state.held_generation for state in states)])
    return replace(
        status,
        live=Trust.FAILED,
        live_failures=status.live_failures + 1,
        live_failed_in=type(status.live_failed_in)(failed_in),
    )


def _describe(status: Status, states: Sequence[State]) -> Condition | None:
    reports = [state.live for state in states if state.live is not None]
    if status.live is Trust.CONFIRMED:
        pause = max((report.trial.seconds for report in reports), default=0.0)
        message = f"its processes stay when its GPUs change: a trial paused it for {in_ms(pause)}"
        return Condition(ConditionType.LIVE, status=True, reason="Live", message=message)
    if status.live is not Trust.FAILED:
        return None
    whys = [report.change.message for report in reports if report.change is not None]
    whys += [report.trial.message for report in reports]
    why = next(filter(None, whys), "its processes did not agree in time")
    again = ", and live changes are tried again in a later start"
    message = f"its processes restart when its GPUs change: {why}"
    message += again if status.live_failures < MOST_FAILURES else ""
    return Condition(ConditionType.LIVE, status=False, reason="NotLive", message=message)


def in_ms(seconds: float) -> str:
    """Return a pause in milliseconds, for people."""
    return f"{seconds * 1000:.{0 if seconds >= 0.01 else 1}f} ms"


def find_withdrawal(status: Status, job_pods: Iterable[JobPod]) -> str:
    """Return why processes go on as before their latest change; empty if they do not."""
    for job_pod in job_pods:
        change = _change_of(job_pod.state) if job_pod.state is not None else None
        goes_on = job_pod.phase is SideCarPhase.RUNNING and job_pod.run_before is not None
        # A SideCar that is to get a newer command follows that one first.
        if not goes_on or job_pod.is_waited_for or change is None:
            continue
        if change.generation == status.run_generation and change.message:
            return change.message
    return ""


def are_late(job: Job, status: Status, started: Sequence[JobPod], *, now: float) -> bool:
    """Return True if processes have not registered for so long that a change of their GPUs waits in vain."""
    is_due = status.phase is Phase.ADJUSTING and status.live is Trust.CONFIRMED
    trains = bool(started) and all(pod.phase is SideCarPhase.RUNNING for pod in started)
    seconds = GATHERING * job.live_seconds
    return is_due and trains and not are_capable(started) and now - status.decided_at > seconds


def give_up(status: Status, started: Sequence[JobPod], *, now: float) -> Status:
    """Record that processes which have changed live before do not register any more."""
    states = [job_pod.state for job_pod in started if job_pod.state is not None]
    status = _fail(status, states)
    told = _describe(status, states)
    return status.with_condition(told, now) if told is not None else status


def count(status: Status, started: Iterable[JobPod]) -> Status:
    """Add the pause of the live change that has led to the present start; call it once for each."""
    changes = [
        change
        for job_pod in started
        if job_pod.state is not None and (change := _change_of(job_pod.state)) is not None
    ]
    pauses = [
        change.pause_ms / 1000.0
        for change in changes
        if change.generation == status.run_generation and not change.message
    ]
    if not pauses:
        return status
    seconds = max(pauses)
    # Where all processes go on as before a change that was given up, none pauses.
    times = status.live_changes + (seconds > 0.0)
    return replace(status, live_changes=times, live_seconds=status.live_seconds + seconds)


def find_end_by_trial(started: Iterable[JobPod]) -> str:
    """Return a sentence if the training has ended by its live trial; empty if not."""
    ends = (SideCarPhase.EXITED, SideCarPhase.FAILED)
    for job_pod in started:
        state = job_pod.state
        if state is not None and state.phase in ends and state.live and state.live.trial.ended:
            why = state.live.trial.message
            return f"its training ended when a live change was tried{f': {why}' if why else ''}"
    return ""
