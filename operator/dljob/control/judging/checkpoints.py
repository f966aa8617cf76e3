"""Decides whether the checkpoints of a job can be relied on, and which work a change would lose.

Called by :mod:`dljob.control.judging.judging` in each cycle, and by
:mod:`dljob.control.deciding.snapshots`, which marks the jobs whose work is not saved for the brain
(:mod:`dljob.core.keeping`). A checkpoint counts once a SideCar has confirmed one, in a trial before the
first change (:mod:`dljob.control.judging.trials`). If saving ends the training, only the change itself
shows whether saving works; until then the price of the change includes all work that it may lose.
If no SideCar requests checkpoints, the iteration at which the next start continues is the only
evidence.
"""

import math
from collections.abc import Iterable
from dataclasses import replace

from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.status import Condition, ConditionType, StartNumber, Status, Trust
from dljob.core.model import Checkpoint, Job, Mechanism, Phase
from dljob.core.primitives.backoff import wait_after
from dljob_wire.messages import Saving, State
from dljob_wire.training import is_at_end

KEEPS = "it keeps the GPUs it starts with, unless a job of a higher priority needs them"
_KEEPS_SOME = "its GPUs change live as long as one of its processes stays, and it is stopped only for a job of a higher priority"
_REMEDY = (
    "fix it, then run dljob suspend and dljob resume, or set checkpoint.trusted: true in its file"
)
_CAUSES = frozenset({"CheckpointIncomplete", "CheckpointFailed", "CheckpointTimedOut"})
TO_BE_TRIED = "NotTriedYet"
"""The reason of a condition that is no fault: the trial is still to come."""
_WHEN_TRIED = (
    "its checkpoint is tried while it trains, once it has taken a step; until one is confirmed it keeps"
    " its GPUs"
)
_UNTRIED = (
    "the first change of its GPUs shows whether its checkpoint works; until then what it may lose"
    " is part of the price of a change"
)
_WELL_KNOWN_TRIALS = 2
"""The number of failures in a row after which checkpoints that were confirmed before count as
failing.
"""
_PAUSE_S = 600.0
"""The time after which a change may retry a checkpoint that was confirmed before; doubles each
time.
"""
_LONGEST_PAUSE_S = 86400.0
_LOSABLE = 0.25
"""The checkpoint does not work if a start repeats more than this share of the work."""
_ENDING_S = 600.0
"""The longest time from the last step to the end in which a job keeps its GPUs."""
_LATE_LAP = 0.25
"""The share of a lap by which the reports may be late."""
_LOOK_S = 10.0
"""A checkpoint may lack this much work, because reports reach the controller late."""


def is_declared(checkpoint: Checkpoint) -> bool:
    return checkpoint.is_possible or bool(checkpoint.path) or checkpoint.trusted


def is_tried(checkpoint: Checkpoint, status: Status) -> bool:
    """Return True if a trial during training has to confirm the checkpoint before it counts."""
    can_be = status.triable and not status.ends
    return checkpoint.is_possible and not checkpoint.trusted and can_be


def counts(job: Job, status: Status, *, now: float) -> bool:
    """Return True if a change of GPUs loses no work as far as DLJob knows, or may test that."""
    checkpoint = job.checkpoint
    if not is_declared(checkpoint):
        return False
    if checkpoint.trusted:
        return True
    if is_tried(checkpoint, status):
        return status.trust is Trust.CONFIRMED and not status.trials
    if status.trust is not Trust.FAILED:
        return True
    return bool(status.saved_at) and now - status.failed_at >= _pause_after(status)


def _pause_after(status: Status) -> float:
    """Return how long a job keeps its GPUs after a checkpoint failed that was confirmed before."""
    counted = status.trials - _WELL_KNOWN_TRIALS + 1
    return wait_after(counted, first_seconds=_PAUSE_S, longest_seconds=_LONGEST_PAUSE_S)


def unsaved_from(
    job: Job, status: Status, *, now: float, mechanism: Mechanism = Mechanism.IN_PLACE
) -> float | None:
    """Return the iteration from which on a change would lose work;

    ``None`` if it would lose none.
    """
    if _is_ending(job, status, now=now):
        return float(status.iteration)
    # The processes of a live change train on.
    trains_on = status.phase is Phase.ADJUSTING and status.live is Trust.CONFIRMED
    if status.phase is not Phase.RUNNING and not trains_on:
        return None
    if job.checkpoint.ends_with_pod and (
        mechanism is not Mechanism.IN_PLACE or len(status.pods) > 1
    ):
        return 0.0  # A change may end the pod that has the checkpoint.
    if counts(job, status, now=now):
        return None
    return float(min(status.saved, status.iteration))


def _is_ending(job: Job, status: Status, *, now: float) -> bool:
    """Return True if the training has taken its last step and only evaluates or exports.

    A change would lose that work and could not pay off, because no iteration is left.
    """
    if status.phase is not Phase.RUNNING or status.heard != status.running:
        return False  # The figure is that of a former start.
    is_at_total = is_at_end(status.iteration, job.training.iterations or 0)
    return is_at_total and now - status.iterated_at < _ENDING_S


def risked_from(job: Job, status: Status) -> float | None:
    """Return the iteration from which on a change may lose unconfirmed work."""
    is_known = job.checkpoint.trusted or status.trust is Trust.CONFIRMED
    if status.phase is not Phase.RUNNING or is_known:
        return None
    return float(min(status.saved, status.iteration))


def keeps_first(job: Job, status: Status, *, now: float) -> bool:
    """Return True if the job declares no checkpoint or its checkpoints fail, so that it keeps its first GPUs."""
    if not is_declared(job.checkpoint):
        return True
    return status.trust is Trust.FAILED and not counts(job, status, now=now)


def notice_for(job: Job) -> str:
    """Return a notice for the user who submits a job with a checkpoint that ends with its pod, or an elastic one without."""
    if job.checkpoint.ends_with_pod:
        return f"{job.id}: {_describe_perishable(job.checkpoint)}"
    if is_declared(job.checkpoint) or len(job.gpus.options) < 2:
        return ""
    return f"{job.id}: no checkpoint: {KEEPS}; spec.checkpoint says how it is saved"


def follow_saving(status: Status, job_pods: Iterable[JobPod], *, now: float) -> Status:
    """Record the result of the latest checkpoint, in every phase of the job.

    A SideCar may report the result only briefly, before it leaves or starts the next processes.
    """
    states = [
        job_pod.state for job_pod in job_pods if job_pod.state is not None and job_pod.state.change
    ]
    for state in sorted(states, key=lambda state: state.change.generation if state.change else 0):
        status = _follow(status, state, now=now)
    return status


def tell_of_saving(
    job: Job, status: Status, *, job_pods: Iterable[JobPod] = (), now: float
) -> Status:
    """Set the condition about the job's checkpoints, with the cause that a SideCar reports."""
    said, before = _condition(job, status), status.condition(ConditionType.SAVED)
    problems = (each for pod in job_pods if pod.state is not None for each in pod.state.problems)
    cause = next((each.message for each in problems if each.name in _CAUSES), "")
    if cause and said.reason == "NotConfirmed":
        said = replace(said, message=f"{said.message}; {cause}")
    elif before is not None and before.message.startswith(said.message):
        said = replace(said, message=before.message)  # The SideCar that knew the cause may be gone.
    return status.with_condition(said, now)


def _follow(status: Status, state: State, *, now: float) -> Status:
    change = state.change
    if change is None or change.generation <= status.judged or change.saving is Saving.NONE:
        return status
    if change.saving is Saving.CONFIRMED:
        # The training may have continued while the checkpoint was written.
        since = round(status.pace * change.checkpoint_seconds)
        saved = max(0, status.iteration - since)
        status = replace(status, trust=Trust.CONFIRMED, saved=saved, saved_at=now, trials=0)
        return replace(status, judged=StartNumber(change.generation))
    ends = [process.exit_code for process in state.processes]
    is_unconfirmed = any(each.name == "CheckpointNotConfirmed" for each in state.problems)
    has_ended = bool(ends) and all(code == 0 for code in ends)
    if change.saving is Saving.FAILED and is_unconfirmed and has_ended:
        return status  # Unknown so far: the work that the next start repeats will show it.
    status = replace(status, judged=StartNumber(change.generation))
    has_nothing_new = status.iteration == status.saved > 0
    return status if has_nothing_new else fail_saving(status, now)


def fail_saving(status: Status, now: float) -> Status:
    """Record a failed request for a checkpoint."""
    trials = status.trials + 1
    # A job before its first iteration had nothing to save, and some jobs never report iterations.
    is_proven = trials >= _WELL_KNOWN_TRIALS or (not status.saved_at and status.iteration > 0)
    trust = Trust.FAILED if is_proven else status.trust
    return replace(status, trust=trust, trials=trials, failed_at=now)


def reset_trust(status: Status) -> Status:
    """Mark the checkpoints as untried, because the user has resumed the job and may have fixed
    them.
    """
    if status.trust is not Trust.FAILED:
        return status
    # Later reports about earlier ends are no news.
    judged = max(status.judged, status.stop_generation)
    fresh = replace(status, trust=Trust.UNTRIED, judged=judged, trials=0, failed_at=0.0)
    return replace(fresh, saved=0, saved_at=0.0, ends=False)


def count_laps(status: Status, checkpoint: Checkpoint, *, iteration: int) -> int:
    """
    Return the iterations of the whole laps that a new start does not count.

    Its SideCar may not know the earlier laps of a counter that begins again. The fewest laps count
    with which the start goes on at the checkpoint, but never beyond the work that was done.
    """
    lap = status.lap
    if not lap:
        return 0
    goes_on_by_itself = bool(checkpoint.path) and not checkpoint.is_possible
    is_trusted = checkpoint.trusted or goes_on_by_itself
    saved = status.iteration if is_trusted else status.saved
    fewest = math.ceil((saved - iteration) / lap - _LATE_LAP)
    most = math.floor((status.iteration - iteration) / lap + _LATE_LAP)
    return max(0, min(fewest, most)) * lap


def note_loss(status: Status, job: Job, *, iteration: int, now: float) -> Status:
    """Record the work lost with the former start, once a new start reports its first iteration."""
    lost = status.iteration - iteration
    if is_declared(job.checkpoint):
        status = _weigh(status, iteration, now=now)
    # Until a checkpoint is confirmed, the laps before this start are unknown.
    is_known = not status.lap or bool(status.saved) or not is_declared(job.checkpoint)
    return count_loss(status, lost) if lost > 0 and is_known else status


def count_loss(status: Status, lost: int) -> Status:
    seconds = lost / status.pace if status.pace > 0 else 0.0
    lost_so_far = status.lost_iterations + lost
    return replace(status, lost_iterations=lost_so_far, lost_seconds=status.lost_seconds + seconds)


def _weigh(status: Status, iteration: int, *, now: float) -> Status:
    """Judge a checkpoint by the first iteration of the start that began with it."""
    losable = _LOSABLE * status.iteration
    is_before = status.saved - iteration > max(1.0, status.pace * _LOOK_S)
    repeats = status.iteration - iteration > max(1.0, losable)
    if status.lap and (is_before or repeats):
        return status  # The counter begins again, so its fall shows nothing.
    if is_before:
        # Zero trials mean that no request failed: the training did not continue from the confirmed
        # one.
        return replace(status, trust=Trust.FAILED, saved=iteration, failed_at=now, trials=0)
    if status.trust is Trust.FAILED and _goes_on(status, iteration):
        return replace(status, trust=Trust.UNTRIED, saved=iteration, trials=0, failed_at=0.0)
    was_asked = status.saves and status.heard > status.broken
    if status.trust is not Trust.UNTRIED or not was_asked or status.judged > status.heard:
        return status
    if repeats:
        return replace(fail_saving(status, now), saved=min(status.saved, iteration))
    return replace(status, saved=iteration) if iteration - status.iteration <= losable else status


def _goes_on(status: Status, iteration: int) -> bool:
    """Return True if a start continues near the end of the former one, too far to be new work.

    That is evidence about a checkpoint only if the start is later than its last failure.
    """
    if status.decided_at <= status.failed_at:
        return False
    is_near = status.iteration - iteration <= _LOSABLE * status.iteration
    return is_near and iteration > max(1.0, status.pace * _LOOK_S)


def _condition(job: Job, status: Status) -> Condition:
    is_saved, reason, message = _describe(job, status)
    if job.checkpoint.ends_with_pod and reason != "NotConfirmed":
        is_saved, reason, message = False, "NotDurable", _describe_perishable(job.checkpoint)
    return Condition(ConditionType.SAVED, status=is_saved, reason=reason, message=message)


def _describe(job: Job, status: Status) -> tuple[bool, str, str]:
    if not is_declared(job.checkpoint):
        keeps = _KEEPS_SOME if status.live is Trust.CONFIRMED else KEEPS
        return False, "NoCheckpoint", f"no checkpoint: {keeps}"
    if job.checkpoint.trusted:
        return (
            True,
            "Trusted",
            "its checkpoints are trusted without a trial, because its file says so",
        )
    if is_tried(job.checkpoint, status) and not counts(job, status, now=0.0):
        return _describe_trial(status)
    if status.trust is Trust.CONFIRMED:
        return True, "Confirmed", "its SideCar has confirmed a checkpoint"
    if status.trust is Trust.FAILED:
        message = f"no checkpoint was confirmed, or a start did not resume from it: {KEEPS}"
        if status.saved_at:
            minutes = _pause_after(status) / 60.0
            message = f"{message}; after {minutes:.0f} min the next change may try again"
        return False, "NotConfirmed", f"{message}; {_REMEDY}"
    why = ""
    if status.ends:
        why = "its training ended or stalled when its checkpoint was tried: "
    elif job.checkpoint.is_possible and not job.checkpoint.goes_on:
        why = "it saves only by ending, so its checkpoint cannot be tried without a stop: "
    return True, "Untried", f"{why}{_UNTRIED}"


def _describe_perishable(checkpoint: Checkpoint) -> str:
    return (
        f"checkpoint.path is on {checkpoint.ends_with_pod}, which ends with the pod: a change in place on one"
        " node goes on from it, and the end of the pod loses all work, so the job keeps its pod, unless a job"
        " of a higher priority needs its GPUs; mount a volume there that outlives the pod, or leave"
        " checkpoint.path out if the training keeps its checkpoints elsewhere"
    )


def _describe_trial(status: Status) -> tuple[bool, str, str]:
    if status.trials:
        told = f"the latest checkpoint was not confirmed: until one is, {KEEPS}; {_REMEDY}"
        return False, "NotConfirmed", told
    if status.trust is Trust.UNTRIED:
        return False, TO_BE_TRIED, _WHEN_TRIED
    told = "a start did not resume from the confirmed checkpoint"
    return False, "NotConfirmed", f"{told}: {KEEPS}; {_REMEDY}"
