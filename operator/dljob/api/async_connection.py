"""
The place where jobs run, for programs with an event loop: what :class:`~dljob.api.connection.Connection` does, as coroutines.

Backends wait where they ask, so the questions of one connection are asked one after another in a thread of its own while
the loop goes on. Each log that is read has a thread and a connection of its own. Waiting for a job occupies no thread: between two
looks the loop sleeps. No time-out, no ``close`` and no exit waits for a question whose caller has gone.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from os import PathLike
from typing import Self, TypeVar

from dljob.api.connection import Awaited, Connection, Logs, Named, choose_backend
from dljob.api.jobs import Gpus, Job
from dljob.api.lines import Line
from dljob.api.refusals import NotFound
from dljob.api.timelines import Timeline
from dljob.api.values import Event, Explanation, Plan
from dljob.client.backend import Backend, Json
from dljob.client.goals import FINISHED, LOOK_S
from dljob.client.jobviews import JobView

T = TypeVar("T")

CLOSE_S = 5.0
"""The limit for ``close`` to wait for questions whose callers still wait."""


def connect_async(
    state: str | PathLike[str] | None = None,
    *,
    kubeconfig: str = "",
    context: str = "",
    namespace: str = "",
) -> "AsyncConnection":
    """Find the place where jobs run, as :func:`~dljob.api.connection.connect` does."""
    return AsyncConnection(
        choose_backend(state, kubeconfig=kubeconfig, context=context, namespace=namespace)
    )


class AsyncConnection:
    """Asks one place; use it with ``async with``, or close it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._line: Line | None = None
        self._logs: set[Line] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections and end followed logs, without waiting for unanswered questions."""
        lines = [*self._logs, *([self._line] if self._line else [])]
        # First, so that a question during the wait below opens another line.
        self._line = None
        closing = [line.hang_up() for line in lines]
        # The thread of a line that is held up may wait for an answer that never comes.
        waited = [each for each, line in zip(closing, lines, strict=True) if not line.is_held_up]
        if waited:
            await asyncio.wait(waited, timeout=CLOSE_S)

    async def submit(self, job: Job) -> JobView:
        return await self._ask(lambda here: here.submit(job))

    async def submit_all(self, jobs: list[Job]) -> list[JobView]:
        return await self._ask(lambda here: here.submit_all(jobs))

    async def plan(self, *jobs: Job) -> Plan:
        return await self._ask(lambda here: here.plan(*jobs))

    async def what_if(self, **differences: str | int) -> Json:
        return await self._ask(lambda here: here.what_if(**differences))

    async def jobs(self, selector: str = "") -> list[JobView]:
        return await self._ask(lambda here: here.jobs(selector))

    async def get(self, job: Named) -> JobView:
        return await self._ask(lambda here: here.get(job))

    async def why(self, job: Named) -> Explanation:
        return await self._ask(lambda here: here.why(job))

    async def events(self, job: Named = "") -> list[Event]:
        return await self._ask(lambda here: here.events(job))

    async def history(self, job: Named, limit: int = 100) -> list[Event]:
        return await self._ask(lambda here: here.history(job, limit))

    async def timeline(self, since: float = 0.0) -> Timeline:
        return await self._ask(lambda here: here.timeline(since))

    async def logs(self, job: Named, which: Logs | None = None) -> AsyncIterator[str]:
        """Yield the lines of a training; other questions are answered meanwhile, and ``close`` ends it."""
        line = Line(self._backend.open_another())
        self._logs.add(line)
        try:
            async for text in line.read(job, which or Logs()):
                yield text
        finally:
            # A thread cannot be cancelled: `hang_up` lets the backend end the log at its next look.
            self._logs.discard(line)
            line.hang_up()

    async def wait(
        self, job: Named, goal: str = FINISHED, *, timeout: float | None = None
    ) -> JobView:
        found = await self._until(Awaited.of(job, goal, timeout))
        assert found is not None
        return found

    async def wait_until_gone(self, job: Named, *, timeout: float | None = None) -> None:
        await self._until(Awaited.gone(job, timeout))

    async def scale(self, job: Named, gpus: Gpus) -> JobView:
        return await self._ask(lambda here: here.scale(job, gpus))

    async def suspend(self, job: Named) -> JobView:
        return await self._ask(lambda here: here.suspend(job))

    async def resume(self, job: Named) -> JobView:
        return await self._ask(lambda here: here.resume(job))

    async def cancel(self, job: Named, *, keep_checkpoints: bool | None = None) -> None:
        await self._ask(lambda here: here.cancel(job, keep_checkpoints=keep_checkpoints))

    async def _until(self, awaited: Awaited) -> JobView | None:
        """Poll until the goal holds; the error names the limit of the whole wait."""
        end = None if awaited.timeout is None else time.monotonic() + awaited.timeout
        while True:
            job = await self._look(awaited.name)
            if awaited.holds(job):
                return job
            if end is not None and time.monotonic() >= end:
                raise awaited.late(job)
            await asyncio.sleep(LOOK_S)

    async def _look(self, name: str) -> JobView | None:
        try:
            return await self.get(name)
        except NotFound:
            return None

    async def _ask(self, question: Callable[[Connection], T]) -> T:
        # No await from here to the new line, so that two callers never open one each.
        line = self._line
        if line is not None and line.is_held_up:
            line.hang_up()
            line = None
        if line is None:
            line = self._line = Line(self._backend.open_another())
        connection = line.connection
        return await line.ask(lambda: question(connection))
