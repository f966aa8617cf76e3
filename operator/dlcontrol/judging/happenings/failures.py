"""Whether processes of a job have failed: crashed, stalled, without their GPUs, or with a SideCar that is not trusted."""

from dataclasses import replace

from dlcontrol.gpus.occupancy import find_refusal
from dlcontrol.gpus.visibility import cannot_prove, missing_in
from dlcontrol.judging.conditions import UNTRUSTED, say_untrusted
from dlcontrol.judging.ends_and_retries import Case
from dlcontrol.judging.exits import (
    code_of,
    describe_failure,
    find_missing_command,
)
from dlcontrol.judging.progress import idle_seconds
from dlcontrol.situation.job_pods import JobPod
from dlcontrol.situation.rules import News
from dlcontrol.situation.status import Condition, ConditionType
from dlwire.messages import Phase as SideCarPhase


def judge_trust(case: Case) -> bool:
    """A SideCar of it says what cannot be: that counts as a failure, once, and ends its pod."""
    job_pods = [job_pod for job_pod in case.job_pods if job_pod.untrusted]
    if not job_pods:
        return False
    if not _told_of(case, message := say_untrusted(job_pods)):
        _say_untrusted(case, message)
        broken = max(case.latest.generation, case.status.running, case.status.broken)
        case.status = replace(case.status, broken=broken)
        case.fail(message, reason=UNTRUSTED, keeps=False)
        if case.status.is_final:
            # Its last failure is reported under another name.
            case.news.insert(0, News(UNTRUSTED, message, warning=True))
    return True


def _told_of(case: Case, message: str) -> bool:
    told = case.status.condition(ConditionType.TROUBLED)
    return told is not None and told.status and told.message == message


def _say_untrusted(case: Case, message: str) -> None:
    said = Condition(ConditionType.TROUBLED, status=True, reason=UNTRUSTED, message=message)
    case.status = case.status.with_condition(said, case.now)


def judge_lost_gpus(case: Case) -> bool:
    """A container cannot use GPUs that it shall; only a new one may, and what trains on trains."""
    if case.status.placement is None:
        return False
    wanted = set(case.status.placement.refs())
    for job_pod in case.job_pods:
        if job_pod.is_leaving or not _needs_its_gpus(job_pod):
            continue
        missing = missing_in(case.scene, job_pod)
        if ref := next((ref for ref in sorted(missing) if ref in wanted), None):
            if job_pod in case.started:
                broken = max(case.latest.generation, case.status.broken)
                case.status = replace(case.status, broken=broken)
            what = f"its container cannot use GPU {ref}: {missing[ref]}"
            case.set_back("GPUsVanished", what, ran=True, keeps=False)
            return True
    return False


def judge_refused_gpus(case: Case) -> bool:
    """A SideCar started nothing, because others use its GPUs or it cannot tell them apart."""
    refusal = next(filter(None, map(find_refusal, case.started)), None)
    if refusal is None or case.latest.generation <= case.status.broken:
        return False
    case.status = replace(case.status, broken=case.latest.generation)
    case.set_back(refusal.name, refusal.message, ran=True, keeps=False)
    return True


def judge_crash(case: Case) -> bool:
    failed = [job_pod for job_pod in case.started if job_pod.phase is SideCarPhase.FAILED]
    if not failed or case.latest.generation <= case.status.broken:
        return False
    case.status = replace(case.status, broken=case.latest.generation, exit_code=code_of(failed))
    missing = find_missing_command(failed)
    if missing is None:
        case.fail(describe_failure(failed))
    else:
        # A new attempt would find no more than this one, so the user hears of it at once.
        case.end_without_command(missing)
    return True


def judge_stall(case: Case) -> bool:
    """Its iterations have not advanced for as long as its user bears with: it hangs."""
    limit = case.job.progress.restart_seconds
    if limit is None or case.latest.generation <= case.status.broken or not case.trains:
        return False
    idle = idle_seconds(case.status, case.job, started=case.started, now=case.now)
    if idle < limit:
        return False
    # A training that hangs cannot save itself.
    case.status = replace(case.status, broken=case.latest.generation)
    case.fail(f"no iteration came for {idle:.0f} s", reason="StalledForTooLong")
    return True


def _needs_its_gpus(job_pod: JobPod) -> bool:
    """Whether processes could not begin or hang for want of GPUs; what trains has what it needs."""
    state = job_pod.state
    if state is None or state.phase is SideCarPhase.EXITED:
        return False
    hangs = state.phase is SideCarPhase.RUNNING and state.progress.stalled
    return hangs or not job_pod.is_living or cannot_prove(job_pod)
