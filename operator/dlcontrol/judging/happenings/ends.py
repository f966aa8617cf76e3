"""Whether a job has ended: well, by its target or deadline, or because a trial of its checkpoint went wrong."""

from collections.abc import Sequence
from dataclasses import replace

from dlcontrol.judging import trials
from dlcontrol.judging.ends_and_retries import Case
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
from dlcore.lifecycle import Event


def judge_end_by_trial(case: Case) -> bool:
    """It was asked to save itself and to go on, and has ended: it goes on where it was."""
    what = trials.find_ended(case.started)
    if not what or case.latest.generation <= case.status.broken:
        return False
    case.follow_progress()
    if _has_finished(case):
        return False  # It was done, too.
    _start_after_trial(case, "EndedByTrial", what)
    return True


def judge_freeze_by_trial(case: Case) -> bool:
    what = trials.find_frozen(case.started)
    if not what or case.latest.generation <= case.status.broken:
        return False
    _start_after_trial(case, "FrozenByTrial", what)
    return True


def _start_after_trial(case: Case, reason: str, what: str) -> None:
    """It cannot save itself and go on, so that this is not asked of it any more."""
    case.status = replace(case.status, broken=case.latest.generation, ends=True)
    case.set_back(reason, what, ran=True, keeps=True)


def judge_finish(case: Case) -> bool:
    """Whether all processes of its latest start ended well, also when they were asked to end meanwhile."""
    last = case.last
    if not last.job_pods or not _all_ended(
        last, ended_with_zero(last.job_pods), forgotten=case.ended.containers
    ):
        return False
    case.follow_progress()
    if not _have_ended_unasked(case):
        # Some were asked to end. A training that exits when it has saved itself looks the same, so its count decides.
        if not has_reported_all(case.job, case.status):
            return False
        _finish(case, Ending("Finished", "its training finished"))
        return True
    ending = describe_end(case.job, case.status, job_pods=last.job_pods)
    if ending.reason == ENDED_EARLY and not case.job.training.may_end_early:
        return _fails_by_ending(case, ending)
    _finish(case, ending)
    return True


def _finish(case: Case, ending: Ending) -> None:
    # A training that was done did not answer the trial in which it ended, and there is nothing in it to mend.
    case.news[:] = [news for news in case.news if news.reason != trials.NOT_CONFIRMED]
    case.end(Event.FINISHED, ending.reason, ending.message, exit_code=0)


def _all_ended(last: ProcessSet, ended: Sequence[JobPod], *, forgotten: int) -> bool:
    """Whether all pods of the latest start are among the ``ended``, and no container is unaccounted for."""
    return len(ended) >= len(last.job_pods) and len(ended) + forgotten >= last.containers


def _have_ended_unasked(case: Case) -> bool:
    return _all_ended(case.last, ended_well(case.last.job_pods), forgotten=case.ended.unasked)


def _has_finished(case: Case) -> bool:
    """Whether a training that ended in its trial had done everything, and did not end because it was asked to save itself."""
    last = case.last
    if not _have_ended_unasked(case):
        return False
    if trials.has_saved(last.job_pods):
        # One that exits when it has saved itself ends like this, too.
        return has_reported_all(case.job, case.status)
    return has_done_all(case.job, case.status, job_pods=last.job_pods)


def _fails_by_ending(case: Case, ending: Ending) -> bool:
    """It ended before its user lets it: once for each start, whose end is seen until the next."""
    if case.latest.generation <= case.status.broken:
        return False
    case.status = replace(case.status, broken=case.latest.generation, exit_code=0)
    case.fail(ending.message, reason=ending.reason)
    return True


def judge_target(case: Case) -> bool:
    target = case.job.training.target
    if target is None or case.status.reached < target.patience:
        return False
    value = f"{target.metric} is {case.status.metric:g}"
    message = f"{value}, and {target.value:g} was asked for"
    case.end(Event.FINISHED, "TargetReached", message, exit_code=0)
    return True


def judge_deadline(case: Case) -> bool:
    limit, started = case.job.limits.active_deadline_seconds, case.status.started_at
    if limit is None or started is None or case.now - started <= limit:
        return False
    case.end(Event.FAILED, "DeadlineExceeded", f"it took longer than {limit} s")
    return True
