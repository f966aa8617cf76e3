"""Writes a :class:`~dljob.control.situation.status.Status` as a DLJob's ``status``, and reads it.

``get -o json`` shows the same document that the controller reads at its next start, on one machine
and on Kubernetes. :mod:`dljob.control.situation.status_schema` has the fields in their order. Times are
RFC 3339 in UTC. Derived fields (the ETA, the fraction done) are written for readers, and ignored
when read back.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Final

from dljob.control.situation.status import Booking, Condition, ConditionType, Ended, Status, Trust
from dljob.control.situation.status_schema import STATUS
from dljob.core.model import Cause, CauseCode, GpuRef, JobId, NodeName, Phase, Placement
from dljob.core.predicting.predictor import Span
from dljob_wire.kinds import Record, snake

Json = dict[str, Any]

_NAMES: Final = {
    "iterationsPerSecond": "speed",
    "gpuSeconds": "service",
    "checkpoint.iteration": "saved",
    "live.trust": "live",
    "live.tried": "live_tried",
    "live.failures": "live_failures",
    "live.failedIn": "live_failed_in",
    "live.changes": "live_changes",
    "live.seconds": "live_seconds",
    "podsBooked": "booked",
    "podsBookedAt": "booked_at",
}
"""The attributes that are named differently in the document."""
_PARTS: Final = ("allocation", "progress", "checkpoint", "live")


def write_status(status: Status, *, remaining: Span | None = None) -> Json:
    """Write a status; ``remaining`` are the seconds until the expected end of the job, if known."""
    derived = _placement(status.placement) | _expectation(status, remaining)
    document: Json = {}
    parts = {"": document}
    for part, name, attribute in _FIELDS:
        if not attribute:
            value = derived.get(name)
        elif (value := getattr(status, attribute)) == _OMITTED[attribute]:
            continue
        elif (write := _WRITERS.get(attribute)) is not None:
            value = write(value)
        if value is not None:
            if part not in parts:
                parts[part] = document[part] = {}
            parts[part][name] = value
    if status.metric is None:
        del document["progress"]["reached"]
    for pod in document.get("pods", ()):
        if pod["serial"] in status.used:
            pod["used"] = True
    return document


def read_status(document: Mapping[str, Any]) -> Status:
    """Read a status of :func:`write_status`; an empty one is that of a newly submitted job."""
    values: dict[str, Any] = {}
    parts = {"": document} | {part: document.get(part, {}) for part in _PARTS}
    for part, name, attribute in _FIELDS:
        value = parts[part].get(name) if attribute else None
        if value is not None and (read := _READERS.get(attribute)) is not None:
            value = read(value)
        if value is not None:
            values[attribute] = value
    return Status(
        **values,
        placement=_read_placement(parts["allocation"]),
        used=frozenset(each["serial"] for each in document.get("pods", ()) if each.get("used")),
    )


# --- the parts ----------------------------------------------------------------------------


def _placement(placement: Placement | None) -> Json:
    if placement is None:
        return {"gpus": 0}
    nodes = [{"name": part.node, "gpuIds": list(part.gpus)} for part in placement.slices]
    return {"gpus": placement.gpus, "nodes": nodes, "gpuType": placement.gpu_type}


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


def _expectation(status: Status, remaining: Span | None) -> Json:
    total = status.iterations_total
    known = 0 < total < math.inf
    expected: Json = {"fraction": round(min(1.0, status.iteration / total), 4)} if known else {}
    # A job that has failed may fail again, until it trains.
    if remaining is not None and (status.speed > 0.0 or not (status.failures or status.setbacks)):
        named = zip(("etaSeconds", "etaLowSeconds", "etaHighSeconds"), remaining, strict=True)
        expected |= {name: round(seconds) for name, seconds in named if math.isfinite(seconds)}
    return expected


def _cause(cause: Cause) -> Json:
    return {"code": cause.code.value, "job": cause.job or "", "gpus": cause.gpus}


_CODES = frozenset(code.value for code in CauseCode)
_TYPES = frozenset(kind.value for kind in ConditionType)
"""Codes and types outside these sets come from another version or writer, and are ignored."""


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
    """Write a time; 0 means never and is left out."""
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
        # The schema checks the form of a time, but not the number of days of a month.
        return None


_TIMES: Final = [each.name for each in fields(Status) if each.name.endswith("_at")]
_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(_TIMES, read_time),
    "phase": Phase,
    "trust": Trust,
    "live": Trust,
    "ended": lambda ended: Ended(**ended),
    "pods": lambda pods: tuple(
        Booking(NodeName(each["node"]), each["serial"], each.get("shaped", 0)) for each in pods
    ),
    "leftover": lambda slices: frozenset(
        GpuRef(NodeName(part["name"]), n) for part in slices for n in part["gpuIds"]
    ),
    "cause": _read_cause,
    "bound_to": tuple,
    "conditions": lambda given: tuple(
        _read_condition(each) for each in given if each["type"] in _TYPES
    ),
}
_WRITERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(_TIMES, write_time),
    "phase": str,
    "trust": str,
    "live": str,
    "speed": lambda speed: round(speed, 6),
    "service": lambda seconds: round(seconds, 3),
    "reshape_seconds": lambda seconds: round(seconds, 3),
    "live_seconds": lambda seconds: round(seconds, 4),
    "iterations_total": lambda total: total if math.isfinite(total) else None,
    "ended": Ended._asdict,
    "pods": lambda pods: [pod._asdict() for pod in pods],
    "leftover": _slices,
    "cause": _cause,
    "bound_to": list,
    "conditions": lambda conditions: list(map(_condition, conditions)),
}
_ALWAYS: Final = frozenset(
    {
        *("phase", "generation", "saves", "iteration", "speed", "service", "reached", "booked"),
        *("failures", "restarts", "setbacks", "reshapes", "reshape_seconds"),
    }
)
"""The attributes that the document has while they are the default, too."""
_OMITTED: Final = {
    each.name: ... if each.name in _ALWAYS else each.default for each in fields(Status)
}
"""The value of each attribute that is left out of the document."""


def _iter_fields() -> Iterator[tuple[str, str, str]]:
    """Name the part, the name and the attribute of each field; a derived field has no attribute."""
    for name, node in STATUS.fields.items():
        inner = node.fields if name in _PARTS and isinstance(node, Record) else {"": node}
        for each in inner:
            part, field = (name, each) if each else ("", name)
            attribute = _NAMES.get(f"{part}.{field}") or _NAMES.get(field) or snake(field)
            yield part, field, attribute if attribute in _OMITTED else ""


_FIELDS: Final = tuple(_iter_fields())
