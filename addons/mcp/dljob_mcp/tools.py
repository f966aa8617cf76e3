"""
A tool of ``dljob mcp``: what the agent reads of it, which arguments it takes, and what it asks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from jsonschema import Draft4Validator
from jsonschema.exceptions import best_match
from mcp import types

from dljob.client.backend import Backend, Json
from dljob.core import forms
from dljob.local.folders import Folders

Schema = Mapping[str, Any]
"""The JSON Schema of an argument."""

LONGEST_TEXT: Final = 1000

JOB: Final[Schema] = {
    "type": "string",
    # To Python "$" alone matches before a line end, too.
    "pattern": rf"^([^/.][^/]*/)?{forms.LABEL.pattern}$(?!\n)",
    "maxLength": 320,
    "description": "The name of the job, as list_jobs has it.",
}
DOCUMENT: Final[Schema] = {
    "type": "object",
    "description": "A DLJob as a job file has it: apiVersion, kind, metadata and spec.",
}


class ToolRefused(Exception):
    """A tool refuses a request; ``str()`` names the reason and the remedy."""


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


class Game(NamedTuple):
    """A process that plays; it answers with a JSON document."""

    words: Sequence[str]
    """The words after ``python``."""
    read: Callable[[Any, list[str]], Json]
    """Makes the answer of the tool from the document and the lines on standard error."""
    question: str = ""
    """Its standard input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool: its description for agents, and its function."""

    name: str
    does: str
    ask: Callable[[Asked], Json | Game]
    """Answers, or names the game whose process answers."""
    arguments: Mapping[str, Schema]
    required: tuple[str, ...] = ()
    changes: bool = False
    destroys: bool = False
    """True if it can remove or overwrite something, and not only add."""
    repeats: bool = True
    """True if a second call with the same arguments changes nothing."""

    def describe(self) -> types.Tool:
        return types.Tool(
            name=self.name,
            description=self.does,
            input_schema=self._schema(),
            annotations=types.ToolAnnotations(
                read_only_hint=not self.changes,
                destructive_hint=self.destroys,
                idempotent_hint=self.repeats,
                open_world_hint=False,
            ),
        )

    def check(self, given: Mapping[str, Any]) -> None:
        """Raise :class:`ToolRefused` unless the arguments follow the schema."""
        # To later drafts 3.0 is an integer, too.
        error = best_match(Draft4Validator(self._schema()).iter_errors(given))
        if error is None:
            return
        # A message begins with the wrong value, which may be long.
        message = error.message[-LONGEST_TEXT:]
        place = ".".join(map(str, error.absolute_path))
        remedy = error.schema.get(
            "description", f"there are: {', '.join(self.arguments) or 'none'}"
        )
        raise ToolRefused(f"{place or 'arguments'}: {message}; {remedy}")

    def _schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": dict(self.arguments),
            "required": list(self.required),
            "additionalProperties": False,
        }
