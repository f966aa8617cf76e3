"""
The latest decisions about a job, as its status shows them: ``dljob history`` on Kubernetes.

The whole history is in the operator's store, which users do not see. The status holds the last few entries,
so that every user that may see a job may see them. The operator derives them from the old and the new
status when it writes the new one, so they cost no write of their own. No decision depends on them.

Pure.
"""

from collections.abc import Sequence
from typing import Any, Final

from dlcontrol.situation.status_schema import KEPT_HISTORY, LONGEST_HISTORY_MESSAGE
from dlkube.documents import Json

Entry = dict[str, Any]

MOST_SLICES: Final = 16
"""The entry of a decision for more nodes has only the number of its GPUs, and not which they are."""

WAIT: Final = "wait"
_FINAL: Final = ("Completed", "Failed")


def continued(before: Json, after: Json) -> list[Entry]:
    """Return the history of a job whose status was one and becomes the other."""
    kept: list[Entry] = [dict(entry) for entry in before.get("history", ())]
    if kept and (cost := _cost(before, after)):
        kept[-1]["costSeconds"] = round(kept[-1].get("costSeconds", 0.0) + cost, 3)
    entry = _entry(before, after)
    if entry is None:
        return kept
    if kept and entry["kind"] == WAIT == kept[-1]["kind"]:
        # Why it waits changes with every job that comes and goes; the latest reason is what counts.
        entry["at"] = kept.pop()["at"]
    return [*kept, entry][-KEPT_HISTORY:]


def _cost(before: Json, after: Json) -> float:
    """
    Say how much longer the job is known to have done nothing new because of its latest change.

    A decision that comes in the same status has cost nothing yet, so it is the change before it that has.
    """
    return max(0.0, _lost_by_changes(after) - _lost_by_changes(before))


def _lost_by_changes(status: Json) -> float:
    """The time without training, and that for what it did once more."""
    again: float = status.get("checkpoint", {}).get("lostSeconds", 0.0)
    still: float = status.get("reshapeSeconds", 0.0)
    return still + again


def _entry(before: Json, after: Json) -> Entry | None:
    phase = after.get("phase", "")
    if phase in _FINAL and before.get("phase") != phase:
        return _made(after, phase.lower(), after.get("finishedAt"))
    allocation = after.get("allocation", {})
    if _generation(before) != _generation(after):
        old, new = _nodes(before), _nodes(after)
        entry = _made(after, _kind(old, new), allocation.get("decidedAt"))
        given = {"gpusBefore": before.get("allocation", {}).get("gpus", 0)}
        given["gpus"] = allocation.get("gpus", 0)
        return entry | given | _slices("nodesBefore", old) | _slices("nodes", new)
    if not _nodes(after) and _cause(before) != _cause(after):
        return _made(after, WAIT, _since(after))
    return None


def _made(status: Json, kind: str, at: str | None) -> Entry:
    entry = {
        "at": at or status.get("submittedAt"),
        "kind": kind,
        "message": status.get("message", "")[:LONGEST_HISTORY_MESSAGE],
        "generation": _generation(status),
        "cause": _cause(status),
    }
    return {name: value for name, value in entry.items() if value}


def _kind(old: Sequence[Json], new: Sequence[Json]) -> str:
    """Name what was decided, as the plan does."""
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


def _since(status: Json) -> str | None:
    """Since when the job waits for this reason, as its condition says."""
    conditions = status.get("conditions", ())
    return next(
        (each.get("lastTransitionTime") for each in conditions if each["type"] == "Scheduled"), None
    )
