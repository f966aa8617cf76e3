"""Failures of pods: lost, not coming up, or gone in part."""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from dljob.control.judging.ends_and_retries import Case, Happening, Then
from dljob.control.judging.silence import is_lost
from dljob.control.judging.unchanged_pods import NODES_REFUSE, patience_with
from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.ports import PodPhase
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import Condition, ConditionType, DecisionNumber, Status
from dljob.core.model import Placement


def find_lost_pod(case: Case) -> Happening | None:
    """Find pods on which neither the platform nor the SideCar has reported for too long."""
    lost = [pod for pod in case.job_pods if is_lost(pod, case.scene)]
    if not lost or case.status.placement is None:
        return None
    status = case.broken_status() if len(case.started) > 1 else case.status
    where = ", ".join(sorted(pod.key.node for pod in lost))
    message = (
        f"waits: its SideCar on {where} does not answer; it restarts once it is proven that"
        " no process of it is left there"
    )
    return Happening(Then.WAIT, status, reason="PodLost", message=message)


def find_failed_start(case: Case) -> Happening | None:
    """Find a pod that ended before anything ran in it, or that takes too long to come up."""
    placement = case.status.placement
    if placement is None or case.now < case.status.retry_at:
        return None
    needed = [pod for pod in case.all_job_pods if pod.key.node in placement.nodes]
    ended = [pod for pod in needed if pod.has_ended and pod.fresh]
    late = [pod for pod in needed if _is_late(case, pod)]
    pod = next((found.pod for found in (*ended, *late)), None)
    if pod is None:
        return None
    why = pod.message or pod.reason
    how = "ended before it could be used" if ended else "does not start"
    message = f"its SideCar on {pod.key.node} {how}{f': {why}' if why else ''}"
    reason, times = pod.reason or "NotInitialized", case.status.setbacks
    condition = _not_initialized(reason, message)
    then = Then.RESTART
    if pod.fault:
        then = Then.RETRY
    elif reason in NODES_REFUSE:
        # The platform leaves that node out for some time, so the job gets another one or none.
        then = Then.STEP_BACK
    elif pod.stuck and times >= case.rules.most_setbacks:
        then, message = Then.GIVE_UP, f"{message}; it was tried {times + 1} times"
    return Happening(
        then,
        case.status,
        reason=reason,
        message=message,
        ran=False,
        keeps=False,
        condition=condition,
    )


def _not_initialized(reason: str, message: str) -> Condition:
    return Condition(ConditionType.INITIALIZED, status=False, reason=reason, message=message)


def _is_late(case: Case, job_pod: JobPod) -> bool:
    if job_pod.has_ended or job_pod.contact.reachable or job_pod.pod.phase is PodPhase.LOST:
        return False
    since = case.status.booked_at if job_pod.fresh else case.scene.silent_since(job_pod)
    return case.now - since > patience_with(job_pod.pod, case.rules)


def find_falling_apart(case: Case) -> Happening | None:
    """Find a start that lost some of its processes or containers, for which the others would wait for ever."""
    status = note_falling_apart(case)
    if status is case.status:
        return None
    if status.placement is None or 0 < case.latest.generation < status.run_generation:
        return None  # A new start follows in any case.
    if not case.latest.is_incomplete:
        message = "its start was interrupted"
        return Happening(Then.RESTART, status, reason="Restarted", message=message)
    loss = explain_loss(
        case.scene, case.all_job_pods, placement=status.placement, generation=case.latest.generation
    )
    return Happening(
        Then.RETRY if loss.fault else Then.RESTART,
        status,
        reason=loss.reason,
        message=loss.what,
        keeps=loss.keeps,
        condition=_not_initialized(loss.reason, loss.what),
    )


def note_falling_apart(case: Case) -> Status:
    """Return the status with the broken start and the newest generation; the same object if nothing is broken."""
    if any(not pod.is_stamped(case.scene.epoch) and not pod.fresh for pod in case.job_pods):
        return (
            case.status
        )  # A command of a former controller may be on its way, and complete the start.
    is_incomplete, foreign = case.latest.is_incomplete, case.latest.foreign_generation
    if not (is_incomplete or foreign or case.latest.is_undone):
        return case.status
    status = case.broken_status() if is_incomplete else case.status
    # A command that SideCars have received counts, even if its record was lost.
    generation = max(case.status.generation, DecisionNumber(foreign // 2))
    return replace(status, generation=generation)


class Loss(NamedTuple):
    """The reason of a loss, for people, and its consequences."""

    reason: str = "Restarted"
    what: str = "one of its SideCars was started again"
    fault: bool = False
    """The loss counts as a failure of the job."""
    keeps: bool = True
    """The job can start again on its GPUs."""


def explain_loss(
    scene: Scene, job_pods: Iterable[JobPod], *, placement: Placement, generation: int
) -> Loss:
    """Return why the latest start of a job, of this generation (0: nothing is left of it), is incomplete."""
    lost = [
        job_pod
        for job_pod in job_pods
        if job_pod.key.node in placement.nodes and _is_lost(job_pod, max(generation, 1))
    ]
    lost.sort(
        key=lambda job_pod: (not job_pod.pod.fault, not job_pod.has_ended, not job_pod.pod.reason)
    )
    if not lost or not lost[0].pod.reason:
        return Loss(keeps=all(_may_return(scene, job_pod, placement=placement) for job_pod in lost))
    first = lost[0].pod
    # The restart of a container is the news, not the failure before it.
    reason = first.reason if first.fault or lost[0].has_ended else Loss().reason
    return Loss(
        reason,
        first.message or f"its SideCar on {first.key.node} is gone ({first.reason})",
        fault=first.fault,
        keeps=all(_may_return(scene, job_pod, placement=placement) for job_pod in lost),
    )


def _is_lost(job_pod: JobPod, generation: int) -> bool:
    """Return True if the pod took part in the start and no longer does; a fresh pod never did."""
    return job_pod.has_ended or (not job_pod.fresh and job_pod.start < generation)


def _may_return(scene: Scene, job_pod: JobPod, *, placement: Placement) -> bool:
    """Return True if the node can take a new pod of the job at once."""
    if not job_pod.has_ended:
        return True
    node = scene.nodes.get(job_pod.key.node)
    if node is None or job_pod.pod.unwelcome:
        return False
    needed = {ref.number for ref in placement.refs() if ref.node == job_pod.key.node}
    return needed <= set(node.usable)
