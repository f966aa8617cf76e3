"""
Threads for reads of logs, which nodes that do not answer hold for minutes.

The event loop's own threads are few and serve all other reads, so logs have threads of their own. All servers of a process
share them. A viewer waits for a bounded time, and a read goes on without its viewer until the node answers or the
connection ends. These threads end with the process.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from dljob_web.answering import SourceError

LONGEST_S: Final = 10.0
"""How long a viewer waits for the output of a job."""
MOST: Final = 16
"""The most logs that are read at the same time."""
MOST_EACH: Final = 4
"""The most of them for one user."""


class LogThreads:
    """Used on one event loop."""

    def __init__(self, *, most: int = MOST, longest_s: float = LONGEST_S) -> None:
        self._most = most
        self._longest_s = longest_s
        self._reading: list[str] = []
        """The users of the reads under way."""

    async def read(self, user: str, read: Callable[[], Any]) -> Any:
        """Return the result of a read, or raise its error; raises :class:`SourceError` if it takes too long."""
        if self._reading.count(user) >= MOST_EACH or len(self._reading) >= self._most:
            raise SourceError(
                "other logs are being read from nodes that do not answer; ask again in some seconds",
                status=503,
            )
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def settle(act: Callable[[Any], None], result: object) -> None:
            self._reading.remove(user)
            if not answer.done():
                act(result)

        def work() -> None:
            act: Callable[[Any], None] = answer.set_result
            try:
                result = read()
            except Exception as error:  # noqa: BLE001 - the viewer gets it
                act, result = answer.set_exception, error
            with suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(settle, act, result)

        self._reading.append(user)
        threading.Thread(target=work, name="log", daemon=True).start()
        try:
            async with asyncio.timeout(self._longest_s):
                return await answer
        except TimeoutError as error:
            raise SourceError(
                f"the node does not answer for the output within {self._longest_s:g} s; ask again later,"
                " or see the state of its kubelet",
                status=504,
            ) from error
