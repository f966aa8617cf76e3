"""
A tool of ``dljob mcp``: what the agent reads of it, which arguments it takes, and what it asks.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from dljob.cli.verbs.agents.calls import Halt
from dljob.cli.verbs.agents.protocol import ToolRefused
from dljob.client.backend import Backend, Json
from dljob.core import forms
from dljob.local.folders import Folders

Schema = Mapping[str, Any]
"""The JSON Schema of an argument."""

LONGEST_TEXT: Final = 1000

JOB: Final[Schema] = {
    "type": "string",
    "pattern": rf"^([^/.][^/]*/)?{forms.LABEL.pattern}$",
    "maxLength": 320,
    "description": "The name of the job, as list_jobs has it.",
}
DOCUMENT: Final[Schema] = {
    "type": "object",
    "description": "A DLJob as a job file has it: apiVersion, kind, metadata and spec.",
}

TYPES: Final[Mapping[str, type]] = {"string": str, "integer": int, "object": dict, "array": list}


def text(description: str) -> Schema:
    return {"type": "string", "maxLength": LONGEST_TEXT, "description": description}


def whole(description: str, *, least: int, most: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most, "description": description}


class Asked(NamedTuple):
    """A call of a tool."""

    backend: Backend
    folders: Folders | None
    """The folders of the ``dljob up``; ``None`` on a cluster."""
    traces: Sequence[Path]
    """The folders whose traces may be played; relative paths begin in the first one."""
    given: Mapping[str, Any]
    halt: Halt


Ask = Callable[[Asked], Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool: its description for agents, and its function."""

    name: str
    does: str
    ask: Ask
    arguments: Mapping[str, Schema]
    required: tuple[str, ...] = ()
    plays: bool = False
    """True if it takes minutes, in its own process."""
    changes: bool = False
    destroys: bool = False
    """True if it can remove or overwrite something, and not only add."""
    repeats: bool = True
    """True if a second call with the same arguments changes nothing."""

    def describe(self) -> Json:
        return {
            "name": self.name,
            "description": self.does,
            "inputSchema": {
                "type": "object",
                "properties": dict(self.arguments),
                "required": list(self.required),
                "additionalProperties": False,
            },
            "annotations": {
                "readOnlyHint": not self.changes,
                "destructiveHint": self.destroys,
                "idempotentHint": self.repeats,
                "openWorldHint": False,
            },
        }

    def check(self, given: Mapping[str, Any]) -> None:
        for name in self.required:
            if name not in given:
                raise ToolRefused(f"{name}: is missing; {self.arguments[name]['description']}")
        for name, value in given.items():
            schema = self.arguments.get(name)
            if schema is None:
                known = ", ".join(self.arguments) or "none"
                raise ToolRefused(
                    f"{name[:LONGEST_TEXT]}: there is no such argument; there are: {known}"
                )
            _check_value(name, value, schema=schema)


def _check_value(name: str, value: Any, *, schema: Schema) -> None:
    # A bool is an int to Python, and not to JSON.
    if not isinstance(value, TYPES[schema["type"]]) or isinstance(value, bool):
        raise ToolRefused(f"{name}: is no {schema['type']}")
    if isinstance(value, str):
        _check_text(name, value, schema=schema)
    elif isinstance(value, int):
        least, most = schema["minimum"], schema["maximum"]
        if not least <= value <= most:
            raise ToolRefused(f"{name}: is not from {least} to {most}")
    elif isinstance(value, list):
        if len(value) > schema["maxItems"]:
            raise ToolRefused(f"{name}: has more than {schema['maxItems']} items")
        for each in value:
            _check_value(name, each, schema=schema["items"])


def _check_text(name: str, value: str, *, schema: Schema) -> None:
    longest = schema.get("maxLength", LONGEST_TEXT)
    if len(value) > longest:
        raise ToolRefused(f"{name}: is longer than {longest} characters")
    if "enum" in schema and value not in schema["enum"]:
        raise ToolRefused(f"{name}: {value!r} is none of {', '.join(schema['enum'])}")
    if "pattern" in schema and not re.fullmatch(schema["pattern"], value):
        raise ToolRefused(f"{name}: {value!r} is no such name; {schema['description']}")
