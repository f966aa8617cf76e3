"""Trials of checkpoints: before the first change of a job, and without a stop.

A job that can save and continue gets the command to save once, as soon as it has taken a step
(:func:`find_due`). Its SideCars report the result, from which :func:`follow_trial` derives if the
checkpoint counts. Until one is confirmed the job keeps its GPUs
(:mod:`dljob.control.judging.checkpoints`). A failed trial is repeated after growing pauses, because it
costs no start. Trials are numbered over the life of a job. The number that is due follows from the
record of the last judged trial, so another controller requests the same one, and a SideCar that has
made it already does nothing. Some trainings end or stall after saving. The controller starts such a
training again, without counting a failure, and makes no further trial: the first change of GPUs
shows if saving works.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dljob.control.judging.checkpoints import fail_saving, is_tried
from dljob.control.judging.progress import is_changing
from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.ports import Entry
from dljob.control.situation.rules import News
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import Status, Trust
from dljob.core.model import Job, Phase
from dljob.core.primitives.backoff import wait_after
from dljob_wire.messages import Phase as SideCarPhase
from dljob_wire.messages import Process, Run, Saving, State, Trial
from dljob_wire.training import is_at_end

NOT_CONFIRMED = "CheckpointNotConfirmed"
"""The news that a trial failed."""
HANGS = "TrainingHangs"
"""The problem that a SideCar reports after a training has stood still for long."""
_FIRST_PAUSE_S = 60.0
"""The time after which a failed trial is repeated; then after twice as long."""
_LONGEST_PAUSE_S = 86400.0


def find_due(scene: Scene, entry: Entry) -> int:
    """Return the number of the trial that is due; 0 if there is none."""
    status = entry.status
    if status.phase is not Phase.RUNNING or not is_tried(entry.job.checkpoint, status):
        return 0
    if status.trust is not Trust.UNTRIED and not status.trials:
        return 0  # Saving works, or starts do not continue from checkpoints, which no trial shows.
    if status.trials and scene.now < status.failed_at + pause_after(status):
        return 0
    return 0 if is_changing(scene, entry) else status.tried + 1


def pause_after(status: Status) -> float:
    """Return the pause before a trial is repeated after this number of failures in a row."""
    return wait_after(status.trials, first_seconds=_FIRST_PAUSE_S, longest_seconds=_LONGEST_PAUSE_S)


def find_asked(job: Job, started: Iterable[JobPod]) -> list[JobPod]:
    """Return the training pods that are asked for a checkpoint: the leader's, or all of them."""
    job_pods = [job_pod for job_pod in started if job_pod.state is not None]
    if job.checkpoint.to == "all":
        return job_pods
    return [job_pod for job_pod in job_pods if _leads(job_pod)]


def _leads(job_pod: JobPod) -> bool:
    target = job_pod.state.target if job_pod.state is not None else None
    return isinstance(target, Run) and target.rank_offset == 0


def follow_trial(
    status: Status, job: Job, *, started: Sequence[JobPod], now: float
) -> tuple[Status, tuple[News, ...]]:
    """Record if the checkpoint can be tried, and the result of the trial that was due."""
    if not job.checkpoint.is_possible:
        return status, ()
    asked = find_asked(job, started)
    states = [job_pod.state for job_pod in asked if job_pod.state is not None]
    if any(state.phase is SideCarPhase.RUNNING for state in states):
        triable = all(state.trial is not None for state in states)
        status = status if status.triable is triable else replace(status, triable=triable)
    trials = [trial for state in states if (trial := _outcome(state, status)) is not None]
    if not trials or (len(trials) < len(states) and not any(trial.ended for trial in trials)):
        return status, ()
    iteration = status.lapped + max(state.progress.iteration for state in states)
    is_last = is_at_end(iteration, job.training.iterations or 0)
    if is_last and not all(trial.saving is Saving.CONFIRMED for trial in trials):
        # A program that ends takes no signals any more, so this trial shows nothing.
        return status, ()
    return _judge(status, trials, now=now)


def _outcome(state: State, status: Status) -> Trial | None:
    """Return the result of the trial that was due, or of a later one, once it is over."""
    trial = state.trial
    if trial is None or trial.number <= status.tried or trial.saving is Saving.NONE:
        return None
    # A training that has ended may have been done; that shows once nothing of it is left.
    is_ending = not state.released and all(_has_ended(each) for each in state.processes)
    return None if trial.ended and is_ending else trial


def _has_ended(process: Process) -> bool:
    return process.exit_code is not None or process.signal is not None


def _judge(
    status: Status, trials: Sequence[Trial], *, now: float
) -> tuple[Status, tuple[News, ...]]:
    status = replace(status, tried=max(trial.number for trial in trials))
    failed = next((trial for trial in trials if trial.saving is not Saving.CONFIRMED), None)
    if failed is None:
        iteration = status.lapped + min(trial.iteration for trial in trials)
        saved = max(status.saved, iteration)
        seconds = max(trial.seconds for trial in trials)
        status = replace(status, trust=Trust.CONFIRMED, saved=saved, saved_at=now, trials=0)
        message = f"its checkpoint was tried while it trained, and confirmed in {seconds:.1f} s"
        return status, (News("CheckpointConfirmed", message),)
    status = fail_saving(status, now)
    why = failed.message or failed.saving.value
    again = f"it is tried again in {pause_after(status):.0f} s"
    message = f"its checkpoint was tried while it trained, and not confirmed: {why}; {again}"
    return status, (News(NOT_CONFIRMED, message, warning=True),)


def find_ended(started: Iterable[JobPod]) -> str:
    """Return a sentence if the training has ended by its trial; empty if not."""
    ends = (SideCarPhase.EXITED, SideCarPhase.FAILED)
    for job_pod in started:
        state = job_pod.state
        if state is not None and state.phase in ends and state.trial and state.trial.ended:
            return "its training ended when its checkpoint was tried"
    return ""


def has_saved(job_pods: Iterable[JobPod]) -> bool:
    """Return True if the trial in which the processes ended was confirmed."""
    trials = [job_pod.state.trial for job_pod in job_pods if job_pod.state is not None]
    return any(trial is not None and trial.saving is Saving.CONFIRMED for trial in trials)


def find_frozen(started: Iterable[JobPod]) -> str:
    """Return a sentence if the training stands still since its trial; empty if not."""
    for job_pod in started:
        state = job_pod.state
        if state is not None and state.phase is SideCarPhase.RUNNING and _stands_still(state):
            return "its training has stalled since its checkpoint was tried"
    return ""


def _stands_still(state: State) -> bool:
    trial = state.trial
    # A trial that failed may not have reached the training, so it is not the reason of a stall.
    if trial is None or trial.saving not in (Saving.CONFIRMED, Saving.TIMED_OUT):
        return False
    if trial.went_on or not state.progress.begun:
        return False
    return any(problem.name == HANGS for problem in state.problems)
