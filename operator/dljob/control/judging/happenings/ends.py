"""The end of a job: well, by its target or deadline, or because a trial of its checkpoint went wrong."""

from collections.abc import Sequence
from dataclasses import replace

from dljob.control.judging import trials
from dljob.control.judging.ends_and_retries import Case, Happening, Then
from dljob.control.judging.exits import (
    ENDED_EARLY,
    Ending,
    describe_end,
    ended_with_zero,
    exited,
    exited_unasked,
    has_done_all,
)
from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.process_sets import ProcessSet
from dljob.control.situation.status import StartNumber, Trust
from dljob_wire.messages import Phase as SideCarPhase
from dljob_wire.messages import Run
from dljob_wire.training import is_at_end


def has_just_ended(case: Case) -> bool:
    """Return True if the job may have ended, so that its last progress counts before that is judged."""
    return _have_ended_with_zero(case) or bool(_find_end_of_trial(case))


def find_end_by_trial(case: Case) -> Happening | None:
    """Find a job that ended during the trial of its checkpoint; it starts again."""
    what = _find_end_of_trial(case)
    is_over = False
    if what and _have_exited(case):
        # A training that exits when it has saved itself ends like this, too.
        has_saved = trials.has_saved(case.last.job_pods)
        is_over = _has_reported_all(case) if has_saved else _has_done_all(case)
    if not what or is_over:
        return None
    return _start_after_trial(case, "EndedByTrial", message=what)


def _find_end_of_trial(case: Case) -> str:
    is_new = case.latest.generation > case.status.broken
    return trials.find_ended(case.started) if is_new else ""


def find_freeze_by_trial(case: Case) -> Happening | None:
    what = trials.find_frozen(case.started)
    if not what or case.latest.generation <= case.status.broken:
        return None
    return _start_after_trial(case, "FrozenByTrial", message=what)


def _start_after_trial(case: Case, reason: str, *, message: str) -> Happening:
    # The training cannot save itself and go on, so no further trial is made.
    status = replace(case.broken_status(), ends=True)
    return Happening(Then.RESTART, status, reason=reason, message=message)


def find_finish(case: Case) -> Happening | None:
    """Find a job whose processes of the latest start all ended well, even if they were asked to end."""
    ending = _describe_end(case) if _have_ended_with_zero(case) else None
    if ending is None:
        return None
    if ending.reason == ENDED_EARLY and not case.job.training.may_end_early:
        if case.latest.generation <= case.status.broken:
            return None  # It was reported once for this start.
        status = replace(case.broken_status(), exit_code=0)
        return Happening(Then.RETRY, status, reason=ending.reason, message=ending.message)
    return _finish(case, ending)


def _describe_end(case: Case) -> Ending | None:
    """Return how the training ended; None if it is not done, as far as DLJob knows."""
    done = Ending("Finished", "its training finished")
    if _has_reported_all(case):
        return done
    if case.last.generation <= case.status.broken:
        return None  # This end was judged before.
    unasked = exited_unasked(case.last.job_pods)
    status = case.status
    # A trial may have shown that the training saves itself and goes on.
    goes_on = status.tried > 0 and status.trust is Trust.CONFIRMED and not status.ends
    if _all_ended(case.last, unasked, forgotten=case.ended.unasked) or (
        goes_on and _have_exited(case)
    ):
        return describe_end(case.job, case.status, job_pods=case.last.job_pods)
    # A training that exits when it has saved itself looks the same, so its count decides.
    return done if _have_exited(case) and _has_done_all(case) else None


def find_end_when_asked(case: Case) -> Happening | None:
    """
    Find a training that ended when it was asked to save itself, before it was done and without a confirmation.

    Its SideCar starts nothing until the controller has judged this end.
    """
    if not _have_ended_with_zero(case) or case.status.placement is None:
        return None
    wanted = case.status.run_generation
    if not any(_waits_for_judgement(job_pod, wanted) for job_pod in case.last.job_pods):
        return None
    message = "its training ended when it was asked to save itself, and confirmed no checkpoint"
    return Happening(Then.RESTART, case.broken_status(), reason="EndedWhenAsked", message=message)


def _waits_for_judgement(job_pod: JobPod, wanted: StartNumber) -> bool:
    state, told = job_pod.state, job_pod.told
    if state is None or state.phase is not SideCarPhase.EXITED or not isinstance(told, Run):
        return False
    is_waiting = state.held_generation < told.generation == wanted
    return is_waiting and told.ended not in (None, state.held_generation)


def _finish(case: Case, ending: Ending) -> Happening:
    return Happening(
        Then.FINISH, case.status, reason=ending.reason, message=ending.message, exit_code=0
    )


def _have_ended_with_zero(case: Case) -> bool:
    last = case.last
    return bool(last.job_pods) and _all_ended(
        last, ended_with_zero(last.job_pods), forgotten=case.ended.containers
    )


def _all_ended(last: ProcessSet, ended: Sequence[JobPod], *, forgotten: int) -> bool:
    """Return True if the ``ended`` are all pods of the latest start, and no container is unaccounted for."""
    return len(ended) >= len(last.job_pods) and len(ended) + forgotten >= last.containers


def _have_exited(case: Case) -> bool:
    return _all_ended(case.last, exited(case.last.job_pods), forgotten=case.ended.unasked)


def _is_counted(case: Case) -> bool:
    """Return True if the iteration in the status is of the latest start, and not of a former one."""
    return case.status.heard == case.last.generation


def _has_reported_all(case: Case) -> bool:
    total = case.job.training.iterations or 0
    return _is_counted(case) and is_at_end(case.status.iteration, total)


def _has_done_all(case: Case) -> bool:
    return _is_counted(case) and has_done_all(case.job, case.status, job_pods=case.last.job_pods)


def find_target(case: Case) -> Happening | None:
    target = case.job.training.target
    if target is None or case.status.reached < target.patience:
        return None
    value = f"{target.metric} is {case.status.metric:g}"
    message = f"{value}, and {target.value:g} was asked for"
    return _finish(case, Ending("TargetReached", message))


def find_deadline(case: Case) -> Happening | None:
    limit, started = case.job.limits.active_deadline_seconds, case.status.started_at
    if limit is None or started is None or case.now - started <= limit:
        return None
    return Happening(
        Then.GIVE_UP,
        case.status,
        reason="DeadlineExceeded",
        message=f"it took longer than {limit} s",
    )
