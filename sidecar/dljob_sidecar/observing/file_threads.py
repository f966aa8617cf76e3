"""
Threads that read files, because a file system may never answer.

A file server that does not respond blocks every program that reads from it, for minutes or for
ever. So a thread does the reading, and the caller gets the result when it is ready. A thread that
hangs gets no further work, and ends with the process. Each path has a thread of its own, so that no
path waits for another.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from queue import SimpleQueue
from typing import Callable, Optional, TypeVar

log = logging.getLogger(__name__)

REST_FACTOR = 4.0
LONGEST_REST_SECONDS = 5.0

T = TypeVar("T")
Task = Optional[Callable[[], None]]
"""None ends the thread."""


class FileThread:
    """A thread that runs one task at a time."""

    patience_seconds = 5.0
    """A task that runs for longer counts as lost."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: SimpleQueue[Task] = SimpleQueue()
        self._busy_since: float | None = None
        self._is_overdue = False
        """True from a timeout in :meth:`run` until the thread answers again."""
        self._thread = threading.Thread(target=self._work, name=f"file-{name}", daemon=True)
        self._thread.start()

    # --- on the loop ------------------------------------------------------------------------

    def send(self, look: Callable[[], T], hear: Callable[[T, float], None]) -> bool:
        """
        Run ``look`` on the thread, and call ``hear`` with its result and its duration.

        Returns False without doing anything while the thread is busy.
        """
        if self._busy_since is not None:
            return False
        began = self._busy_since = self._loop.time()

        def finish(found: T) -> None:
            # Become idle first, because `hear` may send the next task at once.
            self._become_idle()
            hear(found, self._loop.time() - began)

        self._tasks.put(lambda: self._call(finish, look()))
        return True

    def post(self, task: Callable[[], object]) -> None:
        """Queue a task without a result."""

        def do() -> None:
            task()

        # The thread does not count as busy, because the next task waits in the queue.
        self._tasks.put(do)

    def run(self, task: Callable[[], None], *, limit_seconds: float) -> bool:
        """
        Run a task after the queued ones, for at most ``limit_seconds``; return True if it is done.

        After a timeout further calls return False at once, until the thread answers again.
        """
        if self._is_overdue:
            return False
        done = threading.Event()

        def do() -> None:
            task()
            done.set()

        self._tasks.put(do)
        if done.wait(limit_seconds):
            return True
        # The thread counts as busy from here on, although nothing was sent.
        self._is_overdue = True
        self._busy_since = self._busy_since or self._loop.time()
        # Queue the report after the task that hangs.
        self._tasks.put(self._report_idle)
        return False

    def _become_idle(self, _: None = None) -> None:
        self._busy_since = None
        self._is_overdue = False

    @property
    def is_lost(self) -> bool:
        if self._busy_since is None:
            return False
        return self._loop.time() - self._busy_since >= self.patience_seconds

    def close(self) -> None:
        """End the thread after its queued tasks."""
        self._tasks.put(None)

    # --- on the thread ----------------------------------------------------------------------

    def _work(self) -> None:
        task = self._tasks.get()
        while task is not None:
            try:
                task()
            except Exception:  # the caller must not wait forever
                log.exception("reading a file failed")
                self._report_idle()
            task = self._tasks.get()

    def _report_idle(self) -> None:
        self._call(self._become_idle, None)

    def _call(self, hear: Callable[[T], None], found: T) -> None:
        # A loop that was closed meanwhile accepts no result.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(hear, found)


def rest_after(took_seconds: float, *, at_least: float) -> float:
    """Return the pause after a read, in proportion to its duration, to limit the load."""
    return max(at_least, min(took_seconds * REST_FACTOR, LONGEST_REST_SECONDS))
