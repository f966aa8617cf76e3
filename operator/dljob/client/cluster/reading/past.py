"""
The decisions about a job and the events of its life: its status and the Events about it, in order.

The status has the last decisions. Kubernetes keeps Events for an hour or so; where they go
farther back than the status does, they also show the decisions before.

Pure.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from dljob.client.backend import Json
from dljob.client.jobviews import FINAL, read_time

_KINDS_BY_EVENT: Final = {
    "Scheduled": "start",
    "Reshaping": "reshape",
    "Moving": "move",
    "Stopping": "stop",
    "Waiting": "wait",
    "Finished": "completed",
}
"""Events of decisions that the status has as well, by their kinds there; a test compares them with the operator's."""
_KINDS: Final = frozenset(_KINDS_BY_EVENT.values())
_ENDS: Final = frozenset(phase.lower() for phase in FINAL)


def list_events(found: Iterable[Json], job: str) -> list[Json]:
    """Convert Events of Kubernetes to the documents of the verbs, oldest first."""
    ordered = sorted(
        found,
        key=lambda event: (_time_of(event), int(event["metadata"].get("resourceVersion") or 0)),
    )
    return [
        {
            "number": number,
            "at": _time_of(event),
            "job": job,
            "type": event.get("type", "Normal"),
            "reason": event.get("reason", ""),
            "message": event.get("message", "")
            + (f" ({times} times)" if (times := event.get("count") or 1) > 1 else ""),
        }
        for number, event in enumerate(ordered, 1)
    ]


def _time_of(event: Json) -> str:
    series = event.get("series") or {}
    at = (
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"]["creationTimestamp"]
    )
    return str(at)


def list_history(status: Mapping[str, Any], events: Iterable[Json], *, job: str) -> list[Json]:
    """Merge decisions and events, oldest first."""
    decided = [_decision(entry, job) for entry in status.get("history", ())]
    begins = int(_seconds(decided[0])) if decided else float("inf")
    happened = []
    for event in events:
        reason = event["reason"]
        kind = _KINDS_BY_EVENT.get(reason, reason[:1].lower() + reason[1:])
        happened.append({"at": event["at"], "job": job, "kind": kind, "message": event["message"]})
    # From there on the status has the decisions, with more detail.
    happened = [
        each for each in happened if each["kind"] not in _KINDS or _seconds(each) < begins - 1
    ]
    # The times of Events are whole seconds: what came of a decision comes after it, and the end of
    # the job after all that came to pass in its second.
    merged = [(int(_seconds(each)), 2 if each["kind"] in _ENDS else 0, each) for each in decided]
    merged += [(int(_seconds(each)), 1, each) for each in happened]
    return [each for _, _, each in sorted(merged, key=lambda each: each[:2])]


def _seconds(entry: Json) -> float:
    return read_time(entry["at"]) or 0.0


def _decision(entry: Mapping[str, Any], job: str) -> Json:
    told = {name: entry[name] for name in ("message", "cause", "generation") if name in entry}
    document: Json = {"at": entry["at"], "job": job, "kind": entry["kind"], **told}
    for name, gpus, nodes in (("old", "gpusBefore", "nodesBefore"), ("new", "gpus", "nodes")):
        if entry.get(gpus):
            document[name] = {"gpus": entry[gpus], "nodes": entry.get(nodes, [])}
    return document | {name: entry[name] for name in ("costSeconds", "how") if name in entry}
