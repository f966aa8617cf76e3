"""
A coroutine on its own thread and event loop.

It continues while the main event loop is busy, because Python switches between threads every few milliseconds.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any

Activity = Callable[[], Coroutine[Any, Any, None]]


class OwnThread:
    """One run of a coroutine; create it on the event loop that waits for its end."""

    def __init__(self, name: str, activity: Activity) -> None:
        self._activity = activity
        self._waiting = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._waiting.create_future()
        """Done when the coroutine has ended, with its exception if it raised one."""
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        # A daemon, so that a process that ends by an exception does not wait for it.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """Cancel the coroutine, and wait for its end; its exception is dropped."""
        with contextlib.suppress(RuntimeError):  # Its loop is closed already.
            self._loop.call_soon_threadsafe(self._cancel)
        with contextlib.suppress(Exception, asyncio.CancelledError):
            # Shield the future, because our own cancellation would also cancel it.
            await asyncio.shield(self.ended)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(self._activity())
        error: BaseException | None = None
        try:
            self._loop.run_until_complete(self._task)
        except BaseException as raised:  # noqa: BLE001 - it is handed to the waiting event loop
            error = raised
        finally:
            self._loop.close()
        with contextlib.suppress(RuntimeError):  # The waiting event loop is closed.
            self._waiting.call_soon_threadsafe(self._settle, error)

    def _settle(self, error: BaseException | None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        elif isinstance(error, asyncio.CancelledError):
            self.ended.cancel()
        else:
            self.ended.set_exception(error)
