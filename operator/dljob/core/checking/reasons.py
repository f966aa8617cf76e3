"""
The check of a step's reason: it changes something, and another job gains the GPUs that one loses.

The laws ``purpose`` and ``work-kept`` are about the reason of a step; all others only about its effect.
"""

from collections.abc import Collection, Iterator

from dljob.core.checking.laws import Breach, Law
from dljob.core.model import DEMANDS, OWN_REASONS, CauseCode, JobId, JobState, Placement
from dljob.core.planning import Move, Reshape, Stop, Wait

# Reasons for a change that does not improve the placement of the job itself.
_TIDYING = frozenset({CauseCode.PACKING, CauseCode.EXPLORING, CauseCode.MAKES_ROOM})


def find_idle_wait(step: Wait, state: JobState | None) -> Iterator[Breach]:
    """Find a breach: the job is not pending, or already has this reason to wait."""
    if state is None:
        yield Breach(Law.PURPOSE, step.job, "has a step Wait but is not pending")
    elif state.waiting == step.cause:
        message = "has a step Wait with the reason that it has already"
        yield Breach(Law.PURPOSE, step.job, message)


def find_idle_change(step: Reshape | Move, state: JobState) -> Iterator[Breach]:
    """Find a breach: the change improves nothing or has the wrong type."""
    same_batch = step.batch_size is None or step.batch_size == state.batch_size
    if same_batch and set(step.old.refs()) == set(step.new.refs()):
        message = "gets exactly the GPUs and the batch that it has"
        yield Breach(Law.PURPOSE, step.job, message)
    elif same_batch and _is_as_good(step.old, step.new) and step.cause.code not in _TIDYING:
        message = "is changed, and its new GPUs are no better than its present ones"
        yield Breach(Law.PURPOSE, step.job, message)
    stays = not set(step.old.nodes).isdisjoint(step.new.nodes)
    if stays != isinstance(step, Reshape):
        message = "has a step Move that keeps a node, or a step Reshape that keeps none"
        yield Breach(Law.PURPOSE, step.job, message)


def find_vain_loss(
    step: Reshape | Move | Stop, state: JobState, *, gainers: Collection[JobId | None]
) -> Iterator[Breach]:
    """Find a breach: the named job gains none of the GPUs that this job loses."""
    if step.cause.code in OWN_REASONS:
        return
    if step.old.gpus not in state.job.gpus.options:
        return  # The user changed the job's allowed numbers of GPUs.
    named = step.cause.job
    if named is not None and named in gainers:
        return
    kept = 0 if isinstance(step, Stop) else len(set(step.new.refs()))
    lost = len(step.old.refs()) - kept
    gain = "no other job gains them"
    if named is not None and any(each is not None for each in gainers):
        gain = f"job {named}, for which it loses them, gains none of them"
    yield Breach(Law.PURPOSE, step.job, f"loses {lost} GPU{'s'[: lost != 1]} and {gain}")


def find_lost_work(
    step: Reshape | Move | Stop, state: JobState, *, gainer: JobState | None
) -> Iterator[Breach]:
    """Find a breach: the step loses work for neither a law nor a higher priority."""
    loses = state.unsaved_from is not None or (state.lost_if_stopped and isinstance(step, Stop))
    if not loses or step.cause.code in DEMANDS:
        return
    if not state.has_allowed_size:
        return  # The user changed the job's allowed numbers of GPUs.
    is_outranked = gainer is not None and gainer.job.priority > state.job.priority
    if not (isinstance(step, Stop) and is_outranked):
        yield Breach(Law.WORK_KEPT, step.job, "would lose work that no checkpoint saves")


def _is_as_good(old: Placement, new: Placement) -> bool:
    """Return whether the old placement was at least as good as the new one."""
    same = (old.gpus, old.gpu_type) == (new.gpus, new.gpu_type)
    return same and new.shape.nodes >= old.shape.nodes
