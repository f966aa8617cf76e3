"""
The tools that ``dljob mcp`` offers in front of the place where jobs run.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from dljob.cli.output.streams import harmless_document
from dljob.cli.verbs.agents.calls import Halt
from dljob.cli.verbs.agents.changing import CHANGING
from dljob.cli.verbs.agents.protocol import ToolRefused
from dljob.cli.verbs.agents.reading import READING
from dljob.cli.verbs.agents.tools import Asked, Tool
from dljob.client.backend import BackendError, Json
from dljob.client.places import Chosen
from dljob_wire.problems import WrongDocument


class PlacedTools:
    """The tools in front of one place; each call connects to it, since what answers there may start again."""

    def __init__(self, chosen: Chosen, traces: Sequence[Path], *, allow_changes: bool) -> None:
        self._chosen = chosen
        self._traces = traces
        offered = (*READING, *CHANGING) if allow_changes else READING
        self._tools = {tool.name: tool for tool in offered}

    def describe(self) -> Sequence[Json]:
        return [tool.describe() for tool in self._tools.values()]

    def has(self, name: str) -> bool:
        return name in self._tools

    def plays(self, name: str) -> bool:
        return self._tools[name].plays

    def call(self, name: str, arguments: Mapping[str, Any], halt: Halt) -> Json:
        tool = self._tools[name]
        tool.check(arguments)
        try:
            return self._ask(tool, arguments, halt)
        except BackendError as error:
            raise ToolRefused(str(error)) from error
        except WrongDocument as error:
            raise ToolRefused("\n".join(error.lines())) from error
        except click.ClickException as error:
            raise ToolRefused(error.format_message()) from error
        except RecursionError as error:
            raise ToolRefused("the arguments are nested too deeply; nest less") from error

    def _ask(self, tool: Tool, arguments: Mapping[str, Any], halt: Halt) -> Json:
        notices: list[str] = []
        with closing(self._chosen.open(notice=notices.append)) as backend:
            asked = Asked(backend, self._chosen.folders, self._traces, arguments, halt)
            answer = tool.ask(asked)
        if notices:
            # For example that some jobs are hidden: the agent would take a part for the whole.
            answer = {**answer, "notices": [*answer.get("notices", ()), *notices]}
        shown: Json = harmless_document(answer)
        return shown
