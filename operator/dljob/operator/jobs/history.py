"""
The latest decisions about a job in its status, for ``dljob history`` on Kubernetes.

The whole history is in the operator's store, which users cannot read. Every user who may read a job can read
the last entries in its status. The operator derives them from the old and the new status, so they cost no write
of their own. No decision depends on them.

Pure.
"""

from collections.abc import Sequence
from typing import Any, Final

from dljob.control.situation.status_schema import KEPT_HISTORY, LONGEST_HISTORY_MESSAGE
from dljob.core.recording.record import LIVE, RESTARTED
from dljob.kube.documents import Json

Entry = dict[str, Any]

MOST_SLICES: Final = 16
"""The entry of a decision about more nodes does not list the GPUs."""

WAIT: Final = "wait"
_FINAL: Final = ("Completed", "Failed")


def continued(before: Json, after: Json) -> list[Entry]:
    """Return the history of a job after a change of its status."""
    kept: list[Entry] = [dict(entry) for entry in before.get("history", ())]
    # A decision in the same status has cost nothing yet, so the cost belongs to the change before it.
    cost = _lost_by_changes(after) - _lost_by_changes(before)
    if kept and cost > 0.0:
        kept[-1]["costSeconds"] = round(kept[-1].get("costSeconds", 0.0) + cost, 4)
        if kept[-1].get("gpusBefore"):
            is_live = _live_changes(after) > _live_changes(before)
            kept[-1].setdefault("how", LIVE if is_live else RESTARTED)
    entry = _entry(before, after)
    if entry is None:
        return kept
    if kept and entry["kind"] == WAIT == kept[-1]["kind"]:
        # The reason to wait changes with every job that comes and goes, so only the latest is kept.
        entry["at"] = kept.pop()["at"]
    return [*kept, entry][-KEPT_HISTORY:]


def _lost_by_changes(status: Json) -> float:
    """Return the time without training, and the time of repeated iterations."""
    again: float = status.get("checkpoint", {}).get("lostSeconds", 0.0)
    still: float = status.get("reshapeSeconds", 0.0)
    return still + again


def _live_changes(status: Json) -> int:
    times: int = status.get("live", {}).get("changes", 0)
    return times


def _entry(before: Json, after: Json) -> Entry | None:
    phase = after.get("phase", "")
    if phase in _FINAL and before.get("phase") != phase:
        return _made(after, phase.lower(), at=after.get("finishedAt"))
    allocation = after.get("allocation", {})
    if _generation(before) != _generation(after):
        old, new = _nodes(before), _nodes(after)
        entry = _made(after, _kind(old, new), at=allocation.get("decidedAt"))
        given = {"gpusBefore": before.get("allocation", {}).get("gpus", 0)}
        given["gpus"] = allocation.get("gpus", 0)
        return entry | given | _slices("nodesBefore", old) | _slices("nodes", new)
    if not _nodes(after) and _cause(before) != _cause(after):
        conditions = (each for each in after.get("conditions", ()) if each["type"] == "Scheduled")
        scheduled: Json = next(conditions, {})
        return _made(after, WAIT, at=scheduled.get("lastTransitionTime"))
    return None


def _made(status: Json, kind: str, *, at: str | None) -> Entry:
    entry = {
        "at": at or status.get("submittedAt"),
        "kind": kind,
        "message": status.get("message", "")[:LONGEST_HISTORY_MESSAGE],
        "generation": _generation(status),
        "cause": _cause(status),
    }
    return {name: value for name, value in entry.items() if value}


def _kind(old: Sequence[Json], new: Sequence[Json]) -> str:
    if not new:
        return "stop"
    if not old:
        return "start"
    if list(old) == list(new):
        return "restart"
    kept = {node["name"] for node in old} & {node["name"] for node in new}
    return "reshape" if kept else "move"


def _generation(status: Json) -> int:
    generation: int = status.get("allocation", {}).get("generation", 0)
    return generation


def _nodes(status: Json) -> Sequence[Json]:
    nodes: Sequence[Json] = status.get("allocation", {}).get("nodes", ())
    return nodes


def _slices(name: str, nodes: Sequence[Json]) -> Entry:
    return {name: list(nodes)} if 0 < len(nodes) <= MOST_SLICES else {}


def _cause(status: Json) -> str:
    return str(status.get("cause", {}).get("code", ""))
