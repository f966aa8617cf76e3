"""The end of a job: well, by its target or deadline, or because a trial of its checkpoint went wrong."""

from collections.abc import Sequence
from dataclasses import replace

from dlcontrol.judging import trials
from dlcontrol.judging.ends_and_retries import Case, Happening, Then
from dlcontrol.judging.exits import (
    ENDED_EARLY,
    Ending,
    describe_end,
    ended_well,
    ended_with_zero,
    has_done_all,
    has_reported_all,
)
from dlcontrol.situation.job_pods import JobPod
from dlcontrol.situation.process_sets import ProcessSet


def has_just_ended(case: Case) -> bool:
    """Return True if the job may have ended, so that its last progress counts before that is judged."""
    return _have_ended_with_zero(case) or bool(_find_end_of_trial(case))


def find_end_by_trial(case: Case) -> Happening | None:
    """Find a job that ended during the trial of its checkpoint; it starts again."""
    what = _find_end_of_trial(case)
    if not what or _has_finished(case):
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
    if not _have_ended_with_zero(case):
        return None
    if not _have_ended_unasked(case):
        # Some processes were asked to end, and a training that exits after saving looks the same,
        # so the iteration count decides.
        if not has_reported_all(case.job, case.status):
            return None
        return _finish(case, Ending("Finished", "its training finished"))
    ending = describe_end(case.job, case.status, job_pods=case.last.job_pods)
    if ending.reason == ENDED_EARLY and not case.job.training.may_end_early:
        return _fail_by_ending(case, ending)
    return _finish(case, ending)


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


def _have_ended_unasked(case: Case) -> bool:
    return _all_ended(case.last, ended_well(case.last.job_pods), forgotten=case.ended.unasked)


def _has_finished(case: Case) -> bool:
    """Return True if a training that ended in its trial was done, and did not end because of the trial."""
    last = case.last
    if not _have_ended_unasked(case):
        return False
    if trials.has_saved(last.job_pods):
        # A training that exits after saving ends like this, too.
        return has_reported_all(case.job, case.status)
    return has_done_all(case.job, case.status, job_pods=last.job_pods)


def _fail_by_ending(case: Case, ending: Ending) -> Happening | None:
    """Report an end before the user allows one, once for each start."""
    if case.latest.generation <= case.status.broken:
        return None
    status = replace(case.broken_status(), exit_code=0)
    return Happening(Then.RETRY, status, reason=ending.reason, message=ending.message)


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
