"""
Conditions, with remedies, that show a user what the pods of a job wait for and which problems its
SideCars report.
"""

from collections.abc import Iterable
from typing import Final

from dljob.control.gpus.occupancy import REFUSALS
from dljob.control.judging.exits import NOT_STARTED as CANNOT_START
from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.ports import PodPhase
from dljob.control.situation.status import Condition, ConditionType, Status
from dljob.core.model import Ceiling

TOLD_OTHERWISE = CANNOT_START | REFUSALS | {"TrainingStalled"}
"""Problems that are reported elsewhere: as the reason of a new start, or by the condition for progress."""

NOT_STARTED = "NotStarted"
"""The reason of a pod that is not up if no other reason is known."""

UNTRUSTED = "SideCarUntrusted"
"""The reason of a job whose SideCar reports something impossible."""

MOST = 4
"""The most problems that a condition names; a reason and a message have to be short."""


def tell_of_troubles(status: Status, job_pods: Iterable[JobPod], *, now: float) -> Status:
    """Set the condition when the problems that SideCars report change, and when they are over."""
    states = [job_pod.state for job_pod in job_pods if job_pod.state is not None]
    told = status.condition(ConditionType.TROUBLED)
    found = {
        problem.name: f"{problem.message}; {problem.remedy}" if problem.remedy else problem.message
        for state in states
        for problem in state.problems
        if problem.name not in TOLD_OTHERWISE
    }
    if not states or (not found and told is None):
        return status  # There is no problem, or the last message still holds.
    # The wording may change in each cycle, and is no news.
    reason = ",".join(sorted(found)[:MOST]) or "Solved"
    if told is not None and told.reason == reason:
        return status
    message = ". ".join(found[name] for name in sorted(found)[:MOST])
    message = message or "the problem is no longer observed"
    return status.with_condition(
        Condition(ConditionType.TROUBLED, status=bool(found), reason=reason, message=message), now
    )


NOT_QUEUED: Final = "NotQueued"
OWED: Final = "Owed"
BORROWED: Final = "Borrowed"
NOT_KUEUE: Final = frozenset({NOT_QUEUED, OWED, BORROWED})
"""The reasons that are not about a queue of Kueue."""
_NO_QUEUE = Ceiling(
    0, NOT_QUEUED, "the job asks Kueue for no quota: it is suspended, or in no queue"
)


def tell_of_quota(status: Status, ceiling: Ceiling | None, *, now: float) -> Status:
    """Set the condition when the quota of the job's queue changes; ``None``: it has no queue, or not any more."""
    if status.is_final:
        return status
    known = status.condition(ConditionType.QUOTA_RESERVED)
    if ceiling is None and (known is None or known.reason in (OWED, BORROWED)):
        return status if known is None or status.placement is not None else status.without(known)
    ceiling = ceiling or _NO_QUEUE
    condition = Condition(
        ConditionType.QUOTA_RESERVED,
        status=ceiling.gpus > 0,
        reason=ceiling.reason,
        message=ceiling.told,
    )
    if known == condition:
        return status
    return status.with_condition(condition, now)


def say_untrusted(job_pods: Iterable[JobPod]) -> str:
    """Return a sentence about the pods that are ended because their SideCars are not trusted."""
    return "; ".join(
        f"the SideCar on {job_pod.key.node} (number {job_pod.booking.serial} of the job) is not trusted, so"
        f" it is ended: {job_pod.untrusted}"
        for job_pod in job_pods
    )


def tell_of_pods(
    status: Status, job_pods: Iterable[JobPod], *, now: float, quiet: float, start: float
) -> Status:
    """Set the condition that all pods are up, or the platform's reason why not.

    Without a reason, the condition says so after ``quiet`` seconds. A SideCar may take ``start`` seconds until its
    first answer.
    """
    if status.placement is None:
        return status
    there = {job_pod.key.node: job_pod for job_pod in job_pods}
    needed = [there.get(node) for node in status.placement.nodes]
    if all(job_pod is not None and _is_heard(job_pod, now - quiet) for job_pod in needed):
        condition = Condition(
            ConditionType.INITIALIZED, status=True, reason="PodsUp", message="its SideCars answer"
        )
        return status.with_condition(condition, now)
    unheard = [
        job_pod for job_pod in needed if job_pod is not None and not _is_heard(job_pod, now - quiet)
    ]
    found = (
        _why_not_up(
            job_pod,
            now - (start if _is_starting(job_pod) else quiet),
            booked_at=status.booked_at,
        )
        for job_pod in unheard
    )
    reason, message = next(filter(None, found), ("", ""))
    told = status.condition(ConditionType.INITIALIZED)
    is_known = told is not None and not told.status and told.reason == reason
    if not reason or (is_known and told is not None and told.since >= status.booked_at):
        return status  # The wording may change from one attempt of the platform to the next.
    return status.with_condition(
        Condition(ConditionType.INITIALIZED, status=False, reason=reason, message=message), now
    )


def _is_heard(job_pod: JobPod, patient_until: float) -> bool:
    """Return True if the SideCar has reported its state and is not silent since."""
    contact, is_up = job_pod.contact, job_pod.pod.phase is PodPhase.UP
    is_silent = is_up and not contact.reachable and contact.since <= patient_until
    return job_pod.state is not None and not is_silent


def _is_starting(job_pod: JobPod) -> bool:
    """Return True if the container is up and its SideCar may just need more time for its first answer."""
    contact = job_pod.contact
    is_unheard = contact.state is None and contact.foreign is None and not contact.outdated
    return job_pod.pod.phase is PodPhase.UP and is_unheard


def _why_not_up(
    job_pod: JobPod, patient_until: float, *, booked_at: float
) -> tuple[str, str] | None:
    pod, node = job_pod.pod, job_pod.key.node
    if pod.phase is PodPhase.UP:
        problem = job_pod.contact.problem
        if not problem or job_pod.contact.since > patient_until:
            return None
        reason = "CertificateExpired" if job_pod.contact.outdated else "SideCarSilent"
        return reason, f"its SideCar on {node} cannot be reached: {problem}"
    if pod.reason:
        return pod.reason, pod.message or f"its SideCar on {node} is not up: {pod.reason}"
    since = booked_at if job_pod.fresh else job_pod.contact.since
    if since > patient_until:
        return None
    return (
        NOT_STARTED,
        pod.message
        or f"its SideCar on {node} has not started, and no reason has been reported yet",
    )
