"""
One sentence for a job on a cluster, from its status: ``dljob why`` there.

The status holds the operator's sentence from the time of its decision. This module brings it up to date, as
far as that can be seen from outside: how far the job is, what it waits for, that no operator runs.

Pure.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from dljob.client.jobviews import JobView, read_time
from dljob.control.reporting.formatting import duration
from dljob.core.documents.jobnames import manager_of
from dljob.kube.names import HOME

Json = Mapping[str, Any]

WAITING: Final = ("Submitted", "Queued")
ENDED: Final = ("Completed", "Failed")
OUT: Final = "out of service"
MOST_OUTAGES: Final = 4

PATIENCE_S: Final = 30.0
"""A running operator handles a new job within this time."""


def sentence(job: Json, now: float) -> str:
    """Explain what a job does now."""
    status, metadata = job.get("status") or {}, job["metadata"]
    if manager := manager_of(job):
        mirrored = f". Its status says: {status['message']}" if status.get("message") else ""
        return f"is managed by {manager}, so DLJob leaves it alone{mirrored}"
    if metadata.get("deletionTimestamp"):
        # Processes of the job are still ending there.
        nodes = " and ".join(dict.fromkeys(pod["node"] for pod in status.get("pods", ())))
        return f"is cancelled; on {nodes} its pod is ending" if nodes else "is cancelled"
    if not status.get("phase"):
        return _unseen(metadata, now)
    is_newer = metadata.get("generation", 0) > status.get("observedGeneration", 0)
    outdated = "; the latest change of its spec is not read yet" if is_newer else ""
    return _told(status, now) + outdated


def assumptions(job: Json) -> list[str]:
    """List the policy's assumptions in its latest decision about the job."""
    status = job.get("status") or {}
    if status.get("phase") in ENDED:
        return []
    informed = _condition(status, "Informed")
    return [informed["message"]] if informed.get("status") == "False" else []


def outages(job: Json, known: Callable[[], Json]) -> list[str]:
    """
    Say why GPUs are out of service now, where a job waits and its message says that some are.

    Its own sentence is as old as the decision, and what an administrator has put right meanwhile is no
    reason for another one.
    """
    status = job.get("status") or {}
    if status.get("phase") not in WAITING or OUT not in (status.get("message") or ""):
        return []
    told = {
        f"{node}: {why}"
        for node, each in known().items()
        for why in (each.get("out") or {}).values()
    }
    return [f"{OUT} now: {'; '.join(sorted(told)[:MOST_OUTAGES])}"] if told else []


def describe_waiting(jobs: Iterable[dict[str, Any]], now: float) -> str:
    """Count the waiting jobs, and give the expected start of the last one, as the operator does."""
    views = [JobView.of(job) for job in jobs]
    waiting = [each for each in views if each.phase in WAITING and not each.is_suspended]
    if not waiting:
        return "no job that you may see waits now"
    count = f"{len(waiting)} job{'s' if len(waiting) > 1 else ''} that you may see"
    starts = [each.expected_start for each in waiting if each.expected_start is not None]
    told = f"{count} {'wait' if len(waiting) > 1 else 'waits'} now"
    if not starts:
        return f"{told}; when they start is not known"
    known = "the last" if len(starts) == len(waiting) else f"the last of the {len(starts)} known"
    return f"{told}; {known} is expected to start in about {duration(max(starts) - now)}"


def _told(status: Json, now: float) -> str:
    message: str = status.get("message") or "has no entry in its status yet"
    if status["phase"] in ENDED:
        return message
    aside = _condition(status, "SetAside")
    if aside.get("status") == "True":
        return f"is set aside: {aside['message']}"
    pause = (read_time(status.get("retryAt")) or 0.0) - now
    if pause > 0:
        return f"is tried again in about {duration(pause)}: {message}"
    if status["phase"] == "Running" and status.get("allocation", {}).get("nodes"):
        return f"{_training(status)}. Lately: {message}"
    quota = status["phase"] in WAITING and _condition(status, "QuotaReserved")
    if quota and _condition(status, "Scheduled").get("reason") == "QueueQuota":
        # Kueue's reason may be newer than the decision.
        return f"waits: {quota['message']}"
    return message


def _training(status: Json) -> str:
    allocation, progress = status["allocation"], status.get("progress", {})
    gpus, kind = allocation["gpus"], allocation.get("gpuType", "")
    nodes = " and ".join(node["name"] for node in allocation["nodes"])
    told = f"trains on {gpus} {kind + ' ' if kind else ''}GPU{'' if gpus == 1 else 's'} on {nodes}"
    if progress.get("iterationsPerSecond", 0.0) > 0:
        told += f" at {progress['iterationsPerSecond']:.3g} iterations/s"
    if "fraction" in progress:
        told += f"; {min(99.9, 100 * progress['fraction']):.3g} % is done"
        if "etaSeconds" in progress:
            told += f", and about {duration(progress['etaSeconds'])} is left"
    if quota := _condition(status, "QuotaReserved"):
        told += f"; {quota['message']}"
    stalled = _condition(status, "Progressing")
    if stalled.get("status") == "False":
        told += f". It makes no progress: {stalled['message']}"
    return told


def _condition(status: Json, kind: str) -> Json:
    conditions = status.get("conditions", ())
    return next((each for each in conditions if each["type"] == kind), {})


def _unseen(metadata: Json, now: float) -> str:
    age = now - (read_time(metadata.get("creationTimestamp")) or now)
    if age < PATIENCE_S:
        return "was submitted just now, and nothing is decided about it yet"
    return (
        f"was submitted {duration(age)} ago, and no operator has read it; check that one runs"
        f" (kubectl get pods -n {HOME}) and whether it watches this namespace"
    )
