"""
A :class:`~dlcontrol.situation.status.Status` as the ``status`` of a DLJob document, and back.

People and programs read with ``get -o json`` the same document that the controller itself reads at its next
start, on one machine as on Kubernetes. Times are RFC 3339 in UTC. Derived fields (the ETA, the share that is
done) are written for readers, and ignored when read back.
"""

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from dlcontrol.situation.status import (
    Booking,
    Condition,
    ConditionType,
    Ended,
    Status,
    Trust,
)
from dlcore.model import Cause, CauseCode, GpuRef, JobId, NodeName, Phase, Placement
from dlcore.predicting.predictor import Span

Json = dict[str, Any]


def write_status(status: Status, *, remaining: Span | None = None) -> Json:
    """Write it; ``remaining`` are the seconds until the job is expected to end, if that is known."""
    document: Json = {
        "phase": status.phase.value,
        "message": status.message,
        "allocation": _allocation(status),
        "progress": _progress(status, remaining),
        "pods": [_booking(pod, status) for pod in status.pods],
        "podsBooked": status.booked,
        "podsBookedAt": write_time(status.booked_at),
        "leftover": _slices(status.leftover),
        "cause": _cause(status.cause),
        "submittedAt": write_time(status.submitted_at),
        "startedAt": write_time(status.started_at),
        "finishedAt": write_time(status.finished_at),
        "retryAt": write_time(status.retry_at),
        "boundTo": list(status.bound_to),
        "checkpoint": _checkpoint(status),
        "failures": status.failures,
        "restarts": status.restarts,
        "setbacks": status.setbacks,
        "reshapes": status.reshapes,
        "reshapeSeconds": round(status.reshape_seconds, 3),
        "pausedAt": write_time(status.paused_at),
        "exitCode": status.exit_code,
        "conditions": [_condition(each) for each in status.conditions],
    }
    return {name: value for name, value in document.items() if value not in (None, "", [], {})}


def read_status(document: Mapping[str, Any]) -> Status:
    """Read what :func:`write_status` wrote; an empty one is a job that was just submitted."""
    allocation, progress = document.get("allocation", {}), document.get("progress", {})
    return Status(
        phase=Phase(document.get("phase", Phase.SUBMITTED.value)),
        generation=allocation.get("generation", 0),
        placement=_read_placement(allocation),
        gang=allocation.get("gang", 0),
        batch_size=allocation.get("batchSize"),
        saves=allocation.get("saves", True),
        decided_at=read_time(allocation.get("decidedAt")) or 0.0,
        cause=_read_cause(document.get("cause")),
        adopted=allocation.get("adopted", 0),
        shaped=allocation.get("shaped", 0),
        running=allocation.get("running", 0),
        containers=allocation.get("containers", 0),
        broken=allocation.get("broken", 0),
        ended=Ended(**allocation.get("ended", {})),
        pods=tuple(_read_booking(each) for each in document.get("pods", ())),
        used=frozenset(each["serial"] for each in document.get("pods", ()) if each.get("used")),
        booked=document.get("podsBooked", 0),
        booked_at=read_time(document.get("podsBookedAt")) or 0.0,
        leftover=frozenset(_read_refs(document.get("leftover", ()))),
        submitted_at=read_time(document.get("submittedAt")) or 0.0,
        started_at=read_time(document.get("startedAt")),
        finished_at=read_time(document.get("finishedAt")),
        retry_at=read_time(document.get("retryAt")) or 0.0,
        iteration=progress.get("iteration", 0),
        iterated_at=read_time(progress.get("iteratedAt")) or 0.0,
        iterations_total=progress.get("iterationsTotal", 0.0),
        speed=progress.get("iterationsPerSecond", 0.0),
        metric=progress.get("metric"),
        reached=progress.get("reached", 0),
        service=progress.get("gpuSeconds", 0.0),
        counted_at=read_time(progress.get("countedAt")) or 0.0,
        bound_to=tuple(NodeName(node) for node in document.get("boundTo", ())),
        failures=document.get("failures", 0),
        **_read_checkpoint(document.get("checkpoint", {})),
        restarts=document.get("restarts", 0),
        setbacks=document.get("setbacks", 0),
        reshapes=document.get("reshapes", 0),
        reshape_seconds=document.get("reshapeSeconds", 0.0),
        paused_at=read_time(document.get("pausedAt")),
        exit_code=document.get("exitCode"),
        message=document.get("message", ""),
        conditions=tuple(
            _read_condition(each)
            for each in document.get("conditions", ())
            if each["type"] in _TYPES
        ),
    )


# --- the parts ----------------------------------------------------------------------------


def _allocation(status: Status) -> Json:
    placement = status.placement
    allocation: Json = {
        "generation": status.generation,
        "gpus": placement.gpus if placement is not None else 0,
        "decidedAt": write_time(status.decided_at),
        "saves": status.saves,
    }
    if placement is not None:
        allocation["nodes"] = [
            {"name": part.node, "gpuIds": list(part.gpus)} for part in placement.slices
        ]
        allocation["gpuType"] = placement.gpu_type
    for name in ("gang", "adopted", "shaped", "running", "containers", "broken"):
        if getattr(status, name):
            allocation[name] = getattr(status, name)
    if status.ended.start:
        allocation["ended"] = status.ended._asdict()
    if status.batch_size is not None:
        allocation["batchSize"] = status.batch_size
    return {name: value for name, value in allocation.items() if value is not None}


_CHECKPOINT = {
    "judged": "judged",
    "trials": "trials",
    "tried": "tried",
    "triable": "triable",
    "ends": "ends",
    "saved": "iteration",
    "heard": "heard",
    "pace": "pace",
    "lost_iterations": "lostIterations",
    "lost_seconds": "lostSeconds",
}
"""The fields about checkpoints and lost work, with their names in a document."""


def _checkpoint(status: Status) -> Json:
    known = {name: getattr(status, ours) for ours, name in _CHECKPOINT.items()}
    document = {name: value for name, value in known.items() if value}
    if status.trust is not Trust.UNTRIED:
        document["trust"] = status.trust.value
    if status.failed_at:
        document["failedAt"] = write_time(status.failed_at)
    if status.saved_at:
        document["savedAt"] = write_time(status.saved_at)
    return document


def _read_checkpoint(document: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {
        ours: document[name] for ours, name in _CHECKPOINT.items() if name in document
    }
    fields["trust"] = Trust(document.get("trust", Trust.UNTRIED.value))
    fields["failed_at"] = read_time(document.get("failedAt")) or 0.0
    fields["saved_at"] = read_time(document.get("savedAt")) or 0.0
    return fields


def _booking(pod: Booking, status: Status) -> Json:
    return pod._asdict() | ({"used": True} if pod.serial in status.used else {})


def _read_booking(document: Mapping[str, Any]) -> Booking:
    return Booking(NodeName(document["node"]), document["serial"], document.get("shaped", 0))


def _read_placement(allocation: Mapping[str, Any]) -> Placement | None:
    if not allocation.get("nodes"):
        return None
    # A list that another writer has changed may name a GPU twice, or none.
    gpus = {
        NodeName(part["name"]): tuple(dict.fromkeys(part["gpuIds"]))
        for part in allocation["nodes"]
        if part["gpuIds"]
    }
    return Placement.of(gpus, allocation.get("gpuType", "")) if gpus else None


def _progress(status: Status, remaining: Span | None) -> Json:
    total = status.iterations_total
    progress: Json = {
        "iteration": status.iteration,
        "iteratedAt": write_time(status.iterated_at),
        "iterationsPerSecond": round(status.speed, 6),
        "gpuSeconds": round(status.service, 3),
        "countedAt": write_time(status.counted_at),
    }
    if 0 < total < math.inf:
        progress["iterationsTotal"] = total
        progress["fraction"] = round(min(1.0, status.iteration / total), 4)
    if remaining is not None:
        named = zip(("etaSeconds", "etaLowSeconds", "etaHighSeconds"), remaining, strict=True)
        progress |= {name: round(seconds) for name, seconds in named if math.isfinite(seconds)}
    if status.metric is not None:
        progress["metric"] = status.metric
        progress["reached"] = status.reached
    return {name: value for name, value in progress.items() if value is not None}


def _cause(cause: Cause | None) -> Json | None:
    if cause is None:
        return None
    return {"code": cause.code.value, "job": cause.job or "", "gpus": cause.gpus}


_CODES = frozenset(code.value for code in CauseCode)
_TYPES = frozenset(kind.value for kind in ConditionType)
"""Codes and types that are not among these come from another version of DLJob or another writer, and are ignored."""


def _read_cause(document: Mapping[str, Any] | None) -> Cause | None:
    if not document or document["code"] not in _CODES:
        return None
    job = JobId(document["job"]) if document.get("job") else None
    return Cause(CauseCode(document["code"]), job, document.get("gpus", 0))


def _slices(refs: Iterable[GpuRef]) -> list[Json]:
    nodes: dict[NodeName, list[int]] = {}
    for ref in sorted(refs):
        nodes.setdefault(ref.node, []).append(ref.number)
    return [{"name": node, "gpuIds": numbers} for node, numbers in nodes.items()]


def _read_refs(slices: Iterable[Mapping[str, Any]]) -> list[GpuRef]:
    return [GpuRef(NodeName(part["name"]), n) for part in slices for n in part["gpuIds"]]


def _condition(condition: Condition) -> Json:
    return {
        "type": condition.type.value,
        "status": "True" if condition.status else "False",
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": write_time(condition.since),
    }


def _read_condition(document: Mapping[str, Any]) -> Condition:
    return Condition(
        type=ConditionType(document["type"]),
        status=document["status"] == "True",
        reason=document["reason"],
        message=document["message"],
        since=read_time(document.get("lastTransitionTime")) or 0.0,
    )


def write_time(seconds: float | None) -> str | None:
    """Write a time; nothing happened at the beginning of time, so 0 says that it never did."""
    if not seconds:
        return None
    return (
        datetime.fromtimestamp(seconds, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def read_time(text: str | None) -> float | None:
    """Read a time of :func:`write_time`. An invalid time counts as absent."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except (ValueError, OverflowError):
        # A schema can hold the form of a time, and not the number of days of a month.
        return None
