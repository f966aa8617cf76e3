"""
Threads for looks at files that users name, because a file system may never answer.

A thread whose look hangs is kept until the file system answers. The event loop's own threads are too few for
that, because the history, the queue and the rotation of logs need them as well, and Python waits for
all of them at the end of the process. These here are bounded in number and end with the process.
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
"""How long a look waits for a thread. The command waits longer for its answer, and so shows the reason."""


class AllBusyError(Exception):
    """No thread has become free in time."""


class FileThreads:
    """Those of one server. To be used on its event loop."""

    def __init__(self, most: int = MOST, *, patience_s: float = PATIENCE_S) -> None:
        self._free = asyncio.Semaphore(most)
        self._patience_s = patience_s

    async def run(self, look: Callable[[], T]) -> T:
        """
        Return what a look finds, or raise its error; raises :class:`AllBusyError` if no thread can have it.

        A caller that is cancelled leaves the look to its thread.
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
            # The system has no thread left.
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
        # A caller that is gone has cancelled it.
        if not answer.done():
            settle()
