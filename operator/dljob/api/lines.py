"""
One connection with a thread of its own, for the questions that an event loop asks.

:mod:`dljob.api.async_connection` has one of these for its short questions and one for each log that is read. The thread
is a daemon, so that no program waits for an answer at its exit. A question under way cannot be taken back from a
thread: where its caller no longer waits, the line is held up, and the next question needs another line.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any, TypeVar

from dljob.api.connection import Connection, Logs, Named
from dljob.client.backend import Backend

T = TypeVar("T")


class _Question:
    """A question, and the future of its answer."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._act = act
        self._loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Any] = self._loop.create_future()
        self.has_begun = False

    def ask(self) -> None:
        """Ask it in the thread of the line, unless its caller has left."""
        # Before the look at the caller: one that leaves after that look has to see that this has begun,
        # because its line is held up. A caller that left before it saw too much only costs a line.
        self.has_begun = True
        if self.answer.cancelled():
            return
        found: Any = None
        error: BaseException | None = None
        try:
            found = self._act()
        except BaseException as raised:  # noqa: BLE001 - it is handed to the event loop
            error = raised
        with contextlib.suppress(RuntimeError):  # The event loop is closed.
            self._loop.call_soon_threadsafe(self._settle, found, error)

    def _settle(self, found: Any, error: BaseException | None) -> None:
        # The caller may have gone since the thread posted this; a cancelled future takes no answer.
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(found)
        else:
            self.answer.set_exception(error)


class Line:
    """Asks one backend, one question after another, until it is hung up."""

    def __init__(self, backend: Backend) -> None:
        self._is_over = threading.Event()
        self.connection = Connection(backend, is_over=self._is_over.is_set)
        self.is_held_up = False
        """True while a question is under way whose caller no longer waits."""
        self._texts: Generator[str] | None = None
        self._closing: asyncio.Future[Any] | None = None
        self._questions: queue.SimpleQueue[_Question | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="dljob", daemon=True).start()

    @property
    def is_open(self) -> bool:
        return self._closing is None

    async def ask(self, act: Callable[[], T]) -> T:
        """Return the answer; cancellation ends the wait, not the question."""
        question = _Question(act)
        self._questions.put(question)
        try:
            found: T = await question.answer
        except asyncio.CancelledError:
            # The thread skips a question that has not begun.
            self.is_held_up = self.is_held_up or question.has_begun
            raise
        return found

    async def read(self, job: Named, which: Logs) -> AsyncIterator[str]:
        """Yield the lines of a training until they end or the line is hung up."""
        texts = self._texts = self.connection.logs(job, which)
        # `next` has a default, because a future refuses a StopIteration.
        while self.is_open and (text := await self.ask(lambda: next(texts, None))) is not None:
            yield text

    def hang_up(self) -> "asyncio.Future[Any]":
        """Close the connection after earlier questions, and end a followed log; return the future of the end."""
        if self._closing is None:
            # Before the queue: `_close` waits in it behind
            # a followed log, which ends by this alone.
            self._is_over.set()
            question = _Question(self._close)
            self._closing = question.answer
            self._questions.put(question)
            self._questions.put(None)
        return self._closing

    def _close(self) -> None:
        # Before its connection, and in the thread that has read it.
        if self._texts is not None:
            self._texts.close()
        self.connection.close()

    def _work(self) -> None:
        while (question := self._questions.get()) is not None:
            question.ask()
