"""Whether pods of a job are lost, do not come up, or are gone in part."""

from dataclasses import replace

from dlcontrol.judging.ends_and_retries import Case
from dlcontrol.judging.lost_pods import explain_loss
from dlcontrol.judging.silence import is_lost
from dlcontrol.judging.starting_pods import NODES_REFUSE, patience_with
from dlcontrol.situation.job_pods import JobPod
from dlcontrol.situation.ports import PodPhase
from dlcontrol.situation.rules import News
from dlcontrol.situation.status import Condition, ConditionType, DecisionNumber
from dlcore import lifecycle
from dlcore.lifecycle import Event


def judge_lost_pod(case: Case) -> bool:
    """Whether neither the platform nor the SideCar has reported on one of its pods for too long."""
    lost = [
        job_pod
        for job_pod in case.job_pods
        if is_lost(job_pod, now=case.now, lost_seconds=case.rules.lost_seconds)
    ]
    if not lost or case.status.placement is None:
        return False
    if len(case.started) > 1:
        case.status = replace(case.status, broken=max(case.latest.generation, case.status.broken))
    where = ", ".join(sorted(job_pod.key.node for job_pod in lost))
    message = (
        f"waits: its pod on {where} does not answer; it restarts once it is proven that"
        " no process of it is left there"
    )
    status = case.status.decided(None, now=case.now)
    phase = lifecycle.advance(status.phase, Event.DISPLACED)
    case.status = replace(
        status, phase=phase, speed=0.0, paused_at=None, message=message
    ).with_condition(
        Condition(ConditionType.SCHEDULED, status=False, reason="PodLost", message=message),
        case.now,
    )
    case.news.append(News("PodLost", message, warning=True))
    return True


def judge_coming_up(case: Case) -> bool:
    """A pod that it needs ended before anything ran in it, or takes too long."""
    placement = case.status.placement
    if placement is None or case.now < case.status.retry_at:
        return False
    needed = [job_pod for job_pod in case.all_job_pods if job_pod.key.node in placement.nodes]
    ended = [job_pod for job_pod in needed if job_pod.has_ended and job_pod.fresh]
    late = [job_pod for job_pod in needed if _is_late(case, job_pod)]
    pod = next((job_pod.pod for job_pod in (*ended, *late)), None)
    if pod is None:
        return False
    why = pod.message or pod.reason
    how = "ended before it could be used" if ended else "does not come up"
    message = f"its pod on {pod.key.node} {how}{f': {why}' if why else ''}"
    reason, times = pod.reason or "NotInitialized", case.status.setbacks
    if pod.fault:
        case.fail(message, reason=reason, keeps=False)
    elif reason in NODES_REFUSE:
        # The platform leaves that node out for some time, so it is another one or none.
        case.step_back(reason, message, 0.0)
    elif pod.stuck and times >= case.rules.most_setbacks:
        case.end(Event.FAILED, reason, f"{message}; it was tried {times + 1} times")
    else:
        case.set_back(reason, message, ran=False, keeps=False)
    _say_of_pods(case, reason, message)
    return True


def _say_of_pods(case: Case, reason: str, message: str) -> None:
    said = Condition(ConditionType.INITIALIZED, status=False, reason=reason, message=message)
    case.status = case.status.with_condition(said, case.now)


def _is_late(case: Case, job_pod: JobPod) -> bool:
    if job_pod.has_ended or job_pod.contact.reachable or job_pod.pod.phase is PodPhase.LOST:
        return False
    since = case.status.booked_at if job_pod.fresh else job_pod.contact.since
    return case.now - since > patience_with(job_pod.pod, case.rules)


def judge_falling_apart(case: Case) -> bool:
    """Some of its processes or containers are gone, and the others would wait for ever."""
    if any(
        not job_pod.is_stamped(case.scene.epoch) and not job_pod.fresh for job_pod in case.job_pods
    ):
        return False  # A command of a former controller may be on its way, and complete the start.
    is_incomplete, foreign = case.latest.is_incomplete, case.latest.foreign_generation
    if not (is_incomplete or foreign or case.latest.is_undone):
        return False
    status = case.status
    if is_incomplete:
        status = replace(status, broken=max(case.latest.generation, status.broken))
    # A command that SideCars have got counts, even if its record was lost.
    case.status = replace(status, generation=max(status.generation, DecisionNumber(foreign // 2)))
    if status.placement is None or 0 < case.latest.generation < status.run_generation:
        return False  # It will have a new start anyway.
    if not is_incomplete:
        case.set_back("Restarted", "its start was interrupted", ran=True, keeps=True)
        return True
    loss = explain_loss(
        case.scene,
        case.all_job_pods,
        placement=status.placement,
        generation=case.latest.generation,
    )
    if loss.fault:
        case.fail(loss.what, reason=loss.reason, keeps=loss.keeps)
    else:
        case.set_back(loss.reason, loss.what, ran=True, keeps=loss.keeps)
    _say_of_pods(case, loss.reason, loss.what)
    return True
