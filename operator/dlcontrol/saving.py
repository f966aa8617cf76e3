"""
Whether the checkpoints of a job can be counted on, and what of its work would be lost without.

Called by :mod:`dlcontrol.judging` with each look, and by :mod:`dlcontrol.observing`, which tells the
brain whose work nothing saves (:mod:`dlcore.keeping`). A checkpoint counts when a SideCar has
confirmed one. The first is asked for while the training goes on (:mod:`dlcontrol.coordinating`);
where only the end of the process confirms it, the first change of GPUs shows whether it works.
"""

from collections.abc import Sequence
from dataclasses import replace

from dlcontrol.records import Condition, ConditionType, Status, Trust
from dlcontrol.scene import Seat
from dlcore.model import Checkpoint, Job, Phase
from dlwire.messages import Saving, State

KEEPS = "it keeps the GPUs it starts with"


def is_declared(checkpoint: Checkpoint) -> bool:
    """Whether the job says at all how it is saved."""
    return is_asked(checkpoint) or bool(checkpoint.path) or checkpoint.trusted


def is_asked(checkpoint: Checkpoint) -> bool:
    """Whether its SideCar asks for checkpoints, and so can tell how that went."""
    return bool(checkpoint.signal or checkpoint.command or checkpoint.http)


def counts(job: Job, status: Status) -> bool:
    """Whether a change of GPUs loses nothing, as far as can be told."""
    checkpoint = job.checkpoint
    if not is_declared(checkpoint):
        return False
    return checkpoint.trusted or status.trust is not Trust.FAILED


def unsaved_from(job: Job, status: Status) -> float | None:
    """From which iteration on a change would lose its work; ``None`` if it would lose none."""
    if status.phase is not Phase.RUNNING or counts(job, status):
        return None
    return float(min(status.saved, status.iteration))


def notice_for(job: Job) -> str:
    """Say to who submits a job that nothing will be saved of it, where that matters."""
    if is_declared(job.checkpoint) or len(job.gpus.options) < 2:
        return ""
    return f"{job.id}: no checkpoint: {KEEPS}; spec.checkpoint says how it is saved"


def tell_of_saving(job: Job, status: Status, started: Sequence[Seat], now: float) -> Status:
    """Take over how the latest checkpoint went, and say whether checkpoints can be counted on."""
    for state in (seat.state for seat in started):
        if state is not None:
            status = _follow(status, state, now)
    return status.with_condition(_condition(job, status), now)


def _follow(status: Status, state: State, now: float) -> Status:
    """Take over how the checkpoint before the present start went."""
    change = state.change
    if change is None or change.generation <= status.judged or change.saving is Saving.NONE:
        return status
    status = replace(status, judged=change.generation)
    if change.saving is Saving.CONFIRMED:
        return replace(
            status, trust=Trust.CONFIRMED, saved=status.iteration, saved_at=now, trials=0
        )
    return replace(status, trust=Trust.FAILED)


def note_loss(status: Status, iteration: int) -> Status:
    """A start reports its first iteration: what it does again was lost with the start before."""
    lost = status.iteration - iteration
    if lost <= 0:
        return status
    seconds = lost / status.pace if status.pace > 0 else 0.0
    lost_so_far = status.lost_iterations + lost
    return replace(status, lost_iterations=lost_so_far, lost_seconds=status.lost_seconds + seconds)


def _condition(job: Job, status: Status) -> Condition:
    is_saved, reason, message = _describe(job, status)
    return Condition(ConditionType.SAVED, status=is_saved, reason=reason, message=message)


def _describe(job: Job, status: Status) -> tuple[bool, str, str]:
    if not is_declared(job.checkpoint):
        return False, "NoCheckpoint", f"no checkpoint: {KEEPS}"
    if job.checkpoint.trusted:
        return True, "Trusted", "its checkpoints are counted on without a trial, as its file says"
    if status.trust is Trust.CONFIRMED:
        return True, "Confirmed", "its SideCar has confirmed a checkpoint"
    if status.trust is Trust.FAILED:
        return False, "NotConfirmed", f"no checkpoint was confirmed when it was asked for: {KEEPS}"
    return True, "Untried", "the first change of its GPUs shows whether its checkpoint works"
