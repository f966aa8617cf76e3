"""
Makes values fit the schema of a status before they are written into it.

Much of a status comes from elsewhere: metrics and iterations from a user's program, problems from a SideCar
that runs as that user, termination messages of containers from their kubelets. The API server would refuse
the whole status for one value that is out of bounds, and the operator cannot act on a status that it cannot
record. So this module makes every number and sentence fit: it writes the largest allowed value in place of
a larger one, and cuts long texts.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from dlcore.documents.language.records import Many, Record
from dlcore.documents.language.schemas import Node, Number, Text

CUT: Final = "…"
_NO_LETTER: Final = re.compile(r"[^A-Za-z0-9_,:]+")
_NAMELESS: Final = "Unnamed"
"""Stands for a reason that has no letters to keep."""


def bounded(schema: Node, value: Any) -> Any:
    """Return what comes nearest to a value of the right type and is allowed; None if nothing does."""
    match schema:
        case Record() if isinstance(value, Mapping):
            return _bounded_record(schema, value)
        case Many() if isinstance(value, list):
            items = (bounded(schema.items, item) for item in value[: schema.max_items])
            return [item for item in items if item is not None]
        case Number() if isinstance(value, int | float) and not isinstance(value, bool):
            return _bounded_number(schema, value)
        case Text() if isinstance(value, str) and not schema.choices:
            return _bounded_text(schema, value)
        case _:
            return value


def _bounded_record(schema: Record, value: Mapping[str, Any]) -> dict[str, Any]:
    fields = {
        name: bounded(schema.fields[name], part) if name in schema.fields else part
        for name, part in value.items()
    }
    return {name: part for name, part in fields.items() if part is not None}


def _bounded_number(schema: Number, value: float) -> float | None:
    if value != value:  # noqa: PLR0124 - no number is, and a large whole one fits no float
        return None
    nearest = min(max(value, schema.minimum), schema.maximum)
    return int(nearest) if schema.whole else nearest


def _bounded_text(schema: Text, value: str) -> str | None:
    if len(value) > schema.max_length:
        value = f"{value[: schema.max_length - len(CUT)]}{CUT}"
    if schema.form is None or schema.form.matches(value):
        return value
    for other in (_NO_LETTER.sub("", value), _NAMELESS):
        if schema.form.matches(other):
            return other
    return None
