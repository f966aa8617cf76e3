"""
The columns of ``kubectl get``, and the texts of the columns that are not plain fields.

Kubernetes prints a value as the document holds it. People do not easily read a share of 0.31 or a duration of
5120 seconds, so the status holds these values a second time as text.

Parts of a status come from a user's program, its SideCar and kubelets. The API server would refuse the whole status for
one value that is out of bounds, and the operator cannot act on a status that it cannot record. So this module limits
numbers and cuts texts.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from dljob.control.reporting import formatting
from dljob.control.situation.status_schema import STATUS
from dljob.core.model import Phase
from dljob.kube.documents import JsonObject
from dljob_wire.kinds import Kind, Many, Number, Record, Text, Whole

_USUAL: Final = (
    ("Phase", "string", ".status.phase", "The phase of the job."),
    ("GPUs", "integer", ".status.allocation.gpus", "How many GPUs it has."),
    ("Progress", "string", ".status.shown.progress", "Which part of the training is done."),
    ("Speed", "string", ".status.shown.speed", "How fast it trains."),
    ("ETA", "string", ".status.shown.eta", "The expected time until it is done."),
    ("Reshapes", "integer", ".status.reshapes", "How often its GPUs were changed."),
    ("Age", "date", ".metadata.creationTimestamp", "When it was created."),
)
_WIDE: Final = (
    ("Priority", "integer", ".spec.priority", "Higher ones come first."),
    ("Options", "string", ".spec.gpus.options", "On how many GPUs it can run."),
    ("Max", "integer", ".spec.gpus.max", "Or up to how many."),
    (
        "Ahead",
        "integer",
        ".status.queue.ahead",
        "How many jobs in the queue start before this one.",
    ),
    ("Starts", "string", ".status.queue.expectedStart", "When it is expected to start."),
    ("Failures", "integer", ".status.failures", "How often it has failed."),
    ("Allocation", "string", ".status.shown.allocation", "Which GPUs it has."),
    ("Reason", "string", ".status.message", "Its present activity and the reason."),
)
"""Only ``-o wide`` shows columns of priority 1."""

_KEYS: Final = ("name", "type", "jsonPath", "description")
COLUMNS: Final[tuple[JsonObject, ...]] = (
    *(dict(zip(_KEYS, column, strict=True)) for column in _USUAL),
    *(dict(zip(_KEYS, column, strict=True)) | {"priority": 1} for column in _WIDE),
)

CUT: Final = "…"
_NO_LETTER: Final = re.compile(r"[^A-Za-z0-9_,:]+")
_NAMELESS: Final = "Unnamed"
"""Replaces a reason without letters."""


def with_columns(status: Mapping[str, Any]) -> JsonObject:
    """Add the texts of the columns to a status, and make all values fit the schema."""
    shown = {"shown": _shown(status)} if status.get("phase") else {}
    fitting: JsonObject = bounded(STATUS, {**status, **shown})
    return fitting


def _shown(status: Mapping[str, Any]) -> dict[str, str]:
    progress = status.get("progress", {})
    phase = Phase(status["phase"])
    expected, low = progress.get("etaSeconds"), progress.get("etaLowSeconds")
    eta = formatting.eta(expected, None if low is None else (low, progress.get("etaHighSeconds")))
    nodes = status.get("allocation", {}).get("nodes", ())
    places = [f"{node['name']}[{formatting.in_ranges(node['gpuIds'])}]" for node in nodes]
    return {
        "progress": formatting.progress(status),
        "speed": formatting.speed(progress.get("iterationsPerSecond", 0.0)),
        "eta": formatting.NOTHING if phase in (Phase.COMPLETED, Phase.FAILED) else eta,
        "allocation": " ".join(places) or formatting.NOTHING,
    }


def bounded(schema: Kind, value: Any) -> Any:
    """Return the allowed value that is nearest to this one; None if there is none."""
    match schema:
        case Record() if isinstance(value, Mapping):
            fields = {
                name: bounded(schema.fields[name], part) if name in schema.fields else part
                for name, part in value.items()
            }
            return {name: part for name, part in fields.items() if part is not None}
        case Many() if isinstance(value, list):
            items = (bounded(schema.items, item) for item in value[: schema.max_items])
            return [item for item in items if item is not None]
        case Whole() if isinstance(value, int | float) and not isinstance(value, bool):
            if value != value:  # noqa: PLR0124 - only NaN is, and a large integer fits no float
                return None
            nearest = min(max(value, schema.minimum), schema.maximum)
            return nearest if isinstance(schema, Number) else int(nearest)
        case Text() if isinstance(value, str):
            return _bounded_text(schema, value)
        case _:
            return value


def _bounded_text(schema: Text, value: str) -> str | None:
    if len(value) > schema.max_length:
        value = f"{value[: schema.max_length - len(CUT)]}{CUT}"
    if schema.form is None or schema.form.matches(value):
        return value
    for other in (_NO_LETTER.sub("", value), _NAMELESS):
        if schema.form.matches(other):
            return other
    return None
