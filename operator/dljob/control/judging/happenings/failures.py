"""Failures of processes: crashed, stalled, without their GPUs, or with a SideCar that is not trusted."""

from dataclasses import replace

from dljob.control.gpus.occupancy import find_refusal
from dljob.control.gpus.visibility import cannot_prove, missing_in
from dljob.control.judging.conditions import UNTRUSTED, say_untrusted
from dljob.control.judging.ends_and_retries import Case, Happening, Then
from dljob.control.judging.exits import (
    EXIT_NOT_EXECUTABLE,
    EXIT_NOT_FOUND,
    NOT_EXECUTABLE,
    NOT_FOUND,
    describe_failure,
    find_culprit,
    states_of,
)
from dljob.control.judging.progress import idle_seconds
from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.status import Condition, ConditionType
from dljob_wire.messages import Phase as SideCarPhase


def find_untrusted(case: Case) -> Happening | None:
    """Find pods whose SideCar contradicts itself: that counts as one failure of the job."""
    untrusted = [pod for pod in case.job_pods if pod.untrusted]
    if not untrusted:
        return None
    message = say_untrusted(untrusted)
    known = case.status.condition(ConditionType.TROUBLED)
    if known is not None and known.status and known.message == message:
        return Happening(Then.NOTHING, case.status)
    broken = max(case.latest.generation, case.status.running, case.status.broken)
    return Happening(
        Then.RETRY,
        replace(case.status, broken=broken),
        reason=UNTRUSTED,
        message=message,
        keeps=False,
        condition=Condition(ConditionType.TROUBLED, status=True, reason=UNTRUSTED, message=message),
    )


def find_lost_gpus(case: Case) -> Happening | None:
    """Find a container that cannot use GPUs of its command; only a new container may see them again."""
    if case.status.placement is None:
        return None
    wanted = set(case.status.placement.refs())
    for pod in case.job_pods:
        if pod.is_leaving or not _needs_its_gpus(pod):
            continue
        missing = missing_in(case.scene, pod)
        if ref := next((ref for ref in sorted(missing) if ref in wanted), None):
            status = case.broken_status() if pod in case.started else case.status
            return Happening(
                Then.RESTART,
                status,
                reason="GPUsVanished",
                message=f"its processes cannot use GPU {ref}: {missing[ref]}",
                keeps=False,
            )
    return None


def find_refused_gpus(case: Case) -> Happening | None:
    """Find a SideCar that started nothing, because others use its GPUs or it cannot identify them."""
    refusal = next(filter(None, map(find_refusal, case.started)), None)
    if refusal is None or case.latest.generation <= case.status.broken:
        return None
    return Happening(
        Then.RESTART,
        case.broken_status(),
        reason=refusal.name,
        message=refusal.message,
        keeps=False,
    )


def find_crash(case: Case) -> Happening | None:
    failed = [pod for pod in case.started if pod.phase is SideCarPhase.FAILED]
    if not failed or case.latest.generation <= case.status.broken:
        return None
    culprit, code = find_culprit(failed), None
    if culprit is not None:  # As a shell reports it.
        code = culprit.exit_code if culprit.signal is None else 128 + culprit.signal
    status = replace(case.broken_status(), exit_code=code)
    problems = (problem for state in states_of(failed) for problem in state.problems)
    missing = next((each for each in problems if each.name in (NOT_FOUND, NOT_EXECUTABLE)), None)
    if missing is None:
        return Happening(Then.RETRY, status, reason="Crashed", message=describe_failure(failed))
    # The command is missing or not executable. Another attempt would change nothing.
    return Happening(
        Then.GIVE_UP,
        replace(status, failures=status.failures + 1),
        reason=missing.name,
        message=f"{missing.message}; {missing.remedy}",
        exit_code=EXIT_NOT_FOUND if missing.name == NOT_FOUND else EXIT_NOT_EXECUTABLE,
    )


def find_stall(case: Case) -> Happening | None:
    """Find a job whose iterations have not advanced for the time that its user allows."""
    limit = case.job.progress.restart_seconds
    if limit is None or case.latest.generation <= case.status.broken or not case.trains:
        return None
    idle = idle_seconds(case.status, case.job, started=case.started, now=case.now)
    if idle < limit:
        return None
    # A training that hangs cannot save itself.
    return Happening(
        Then.RETRY,
        case.broken_status(),
        reason="StalledForTooLong",
        message=f"no iteration came for {idle:.0f} s",
    )


def _needs_its_gpus(job_pod: JobPod) -> bool:
    """Return True if processes could not begin, or hang, for want of GPUs."""
    state = job_pod.state
    if state is None or state.phase is SideCarPhase.EXITED:
        return False
    hangs = state.phase is SideCarPhase.RUNNING and state.progress.stalled
    return hangs or not job_pod.is_living or cannot_prove(job_pod)
