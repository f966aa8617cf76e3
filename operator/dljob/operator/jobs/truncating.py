"""
Makes values fit the schema of a status before they are written.

Parts of a status come from a user's program, its SideCar and kubelets. The API server would refuse the whole
status for one value that is out of bounds, and the operator cannot act on a status that it cannot record. So
this module limits numbers and cuts texts.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from dljob_wire.kinds import Kind, Many, Number, Record, Text, Whole

CUT: Final = "…"
_NO_LETTER: Final = re.compile(r"[^A-Za-z0-9_,:]+")
_NAMELESS: Final = "Unnamed"
"""Replaces a reason without letters."""


def bounded(schema: Kind, value: Any) -> Any:
    """Return the allowed value that is nearest to this one; None if there is none."""
    match schema:
        case Record() if isinstance(value, Mapping):
            return _bounded_record(schema, value)
        case Many() if isinstance(value, list):
            items = (bounded(schema.items, item) for item in value[: schema.max_items])
            return [item for item in items if item is not None]
        case Whole() if isinstance(value, int | float) and not isinstance(value, bool):
            return _bounded_number(schema, value)
        case Text() if isinstance(value, str):
            return _bounded_text(schema, value)
        case _:
            return value


def _bounded_record(schema: Record, value: Mapping[str, Any]) -> dict[str, Any]:
    fields = {
        name: bounded(schema.fields[name], part) if name in schema.fields else part
        for name, part in value.items()
    }
    return {name: part for name, part in fields.items() if part is not None}


def _bounded_number(schema: Whole, value: float) -> float | None:
    if value != value:  # noqa: PLR0124 - only NaN is, and a large integer fits no float
        return None
    nearest = min(max(value, schema.minimum), schema.maximum)
    return nearest if isinstance(schema, Number) else int(nearest)


def _bounded_text(schema: Text, value: str) -> str | None:
    if len(value) > schema.max_length:
        value = f"{value[: schema.max_length - len(CUT)]}{CUT}"
    if schema.form is None or schema.form.matches(value):
        return value
    for other in (_NO_LETTER.sub("", value), _NAMELESS):
        if schema.form.matches(other):
            return other
    return None
