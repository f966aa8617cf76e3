"""
Threads for calls that may never return, such as checks of files on a network file system, or calls into a driver.

The event loop's own threads are too few for that, and Python waits for them at the end of the process. These threads are
bounded in number and end with the process.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

T = TypeVar("T")

MOST: Final = 16
PATIENCE_S: Final = 5.0
"""How long a call waits for a thread. The command waits longer, and so shows the reason."""


class AllBusyError(Exception):
    """No thread was free in time."""


class FileThreads:
    """A bounded number of threads, used on one event loop."""

    def __init__(self, most: int = MOST, *, patience_s: float = PATIENCE_S) -> None:
        self._free = asyncio.Semaphore(most)
        self._patience_s = patience_s

    async def run(self, look: Callable[[], T]) -> T:
        """
        Return the result of a call, or raise its error; raises :class:`AllBusyError` without a free thread.

        If the caller is cancelled, the thread goes on.
        """
        try:
            async with asyncio.timeout(self._patience_s):
                await self._free.acquire()
        except TimeoutError as error:
            raise AllBusyError from error
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        work = partial(self._work, answer, look)
        try:
            threading.Thread(target=work, name="files", daemon=True).start()
        except RuntimeError as error:
            self._free.release()
            raise AllBusyError from error
        return await answer

    def _work(self, answer: "asyncio.Future[T]", look: Callable[[], T]) -> None:
        settle: Callable[[], None]
        try:
            settle = partial(answer.set_result, look())
        except Exception as error:  # noqa: BLE001 - the caller gets it
            settle = partial(answer.set_exception, error)
        with contextlib.suppress(RuntimeError):  # The loop was closed meanwhile.
            answer.get_loop().call_soon_threadsafe(self._return, answer, settle)

    def _return(self, answer: "asyncio.Future[T]", settle: Callable[[], None]) -> None:
        self._free.release()
        if not answer.done():
            settle()
