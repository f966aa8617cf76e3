"""The problems that a SideCar reports: each is logged once and removed when it is solved."""

from __future__ import annotations

import asyncio
import logging

from dljob_sidecar.contract import Changed
from dljob_sidecar.remedies import make_problem
from dljob_wire.messages import Problem

log = logging.getLogger(__name__)


class Problems:
    """The present problems by name, in the order of their reports."""

    def __init__(self, changed: Changed) -> None:
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._problems: dict[str, Problem] = {}

    def all(self) -> tuple[Problem, ...]:
        return tuple(self._problems.values())

    def complain(self, name: str, message: str) -> None:
        """Report a problem; log it once."""
        # No lock is needed: only the event loop calls this, also with results of threads.
        problem = make_problem(name, message)
        if self._problems.get(name) != problem:
            log.warning("%s: %s", name, message)
            self._problems[name] = problem
            self._loop.call_soon(self._changed)

    def solve(self, name: str) -> None:
        if self._problems.pop(name, None) is not None:
            self._loop.call_soon(self._changed)

    def complain_again(self, name: str, message: str) -> None:
        """Report a problem with a changing message; log it again only under a new name."""
        if name in self._problems:
            self._problems[name] = make_problem(name, message)
        else:
            self.complain(name, message)
