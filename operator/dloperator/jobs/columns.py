"""
The columns of ``kubectl get``, and the texts of the columns that are not plain fields.

Kubernetes prints a value as the document holds it. People do not easily read a share of 0.31 or a duration of
5120 seconds, so the status holds these values a second time as text.
"""

from collections.abc import Mapping
from typing import Any, Final

from dlcontrol.reporting import formatting
from dlcontrol.situation.status_schema import STATUS
from dlcore.model import Phase
from dlkube.documents import JsonObject
from dloperator.jobs.truncating import bounded


def _column(
    name: str, path: str, *, description: str, kind: str = "string", wide: bool
) -> JsonObject:
    column = {"name": name, "type": kind, "jsonPath": path, "description": description}
    # Only -o wide shows columns of priority 1.
    return {**column, "priority": 1} if wide else column


COLUMNS: Final[tuple[JsonObject, ...]] = (
    _column("Phase", ".status.phase", description="The phase of the job.", wide=False),
    _column(
        "GPUs",
        ".status.allocation.gpus",
        description="How many GPUs it has.",
        kind="integer",
        wide=False,
    ),
    _column(
        "Progress",
        ".status.shown.progress",
        description="Which part of the training is done.",
        wide=False,
    ),
    _column("Speed", ".status.shown.speed", description="How fast it trains.", wide=False),
    _column(
        "ETA", ".status.shown.eta", description="The expected time until it is done.", wide=False
    ),
    _column(
        "Reshapes",
        ".status.reshapes",
        description="How often its GPUs were changed.",
        kind="integer",
        wide=False,
    ),
    _column(
        "Age",
        ".metadata.creationTimestamp",
        description="When it was created.",
        kind="date",
        wide=False,
    ),
    _column(
        "Priority",
        ".spec.priority",
        description="Higher ones come first.",
        kind="integer",
        wide=True,
    ),
    _column("Options", ".spec.gpus.options", description="On how many GPUs it can run.", wide=True),
    _column("Max", ".spec.gpus.max", description="Or up to how many.", kind="integer", wide=True),
    _column(
        "Ahead",
        ".status.queue.ahead",
        description="How many jobs in the queue start before this one.",
        kind="integer",
        wide=True,
    ),
    _column(
        "Starts",
        ".status.queue.expectedStart",
        description="When it is expected to start.",
        wide=True,
    ),
    _column(
        "Failures",
        ".status.failures",
        description="How often it has failed.",
        kind="integer",
        wide=True,
    ),
    _column("Allocation", ".status.shown.allocation", description="Which GPUs it has.", wide=True),
    _column(
        "Reason", ".status.message", description="Its present activity and the reason.", wide=True
    ),
)


def with_columns(status: Mapping[str, Any]) -> JsonObject:
    """
    Add the texts of the columns to a status, and make all values fit the schema.

    The API server must never refuse a status, because the job could not go on.
    """
    shown = {"shown": _shown(status)} if status.get("phase") else {}
    fitting: JsonObject = bounded(STATUS, {**status, **shown})
    return fitting


def _shown(status: Mapping[str, Any]) -> dict[str, str]:
    progress = status.get("progress", {})
    phase = Phase(status["phase"])
    eta = None if phase in (Phase.COMPLETED, Phase.FAILED) else progress.get("etaSeconds")
    nodes = status.get("allocation", {}).get("nodes", ())
    places = [f"{node['name']}[{formatting.in_ranges(node['gpuIds'])}]" for node in nodes]
    return {
        "progress": formatting.progress(
            progress.get("fraction"),
            progress.get("iteration", 0),
            is_completed=formatting.did_all(status),
        ),
        "speed": formatting.speed(progress.get("iterationsPerSecond", 0.0)),
        "eta": formatting.NOTHING if eta is None else formatting.duration(eta),
        "allocation": " ".join(places) or formatting.NOTHING,
    }
