"""
Looking at files from a thread of its own, because a file system may never answer.

A file server that does not respond blocks every program that reads from it, for minutes or for
ever. So a thread, the scout, does the reading, and the caller gets the result when it is ready. A
scout that hangs is left alone (it ends with the process), and gets no further work. Each place has
a scout of its own, so that no place waits for another.
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
Errand = Optional[Callable[[], None]]
"""None ends the thread."""


class Scout:
    """One who looks, and can do one thing at a time."""

    patience_seconds = 5.0
    """A scout that has been away for this time counts as lost."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._errands: SimpleQueue[Errand] = SimpleQueue()
        self._out_since: float | None = None
        self._is_overdue = False
        """Whether it was waited for in vain, and is not back yet."""
        self._thread = threading.Thread(target=self._work, name=f"scout-{name}", daemon=True)
        self._thread.start()

    # --- on the loop ------------------------------------------------------------------------

    def send(self, look: Callable[[], T], hear: Callable[[T, float], None]) -> bool:
        """
        Have it look, and call back with what it found and how long that took.

        Returns whether it could be sent: it could not while it is still out.
        """
        if self._out_since is not None:
            return False
        began = self._out_since = self._loop.time()

        def come_back(found: T) -> None:
            # Back first, because `hear` may send it out again at once.
            self._return()
            hear(found, self._loop.time() - began)

        self._errands.put(lambda: self._call(come_back, look()))
        return True

    def post(self, errand: Callable[[], object]) -> None:
        """Have it do something as soon as it can, and wait for nothing."""

        def do() -> None:
            errand()

        # It does not count as out: what is sent or run next waits in the queue behind this.
        self._errands.put(do)

    def run(self, errand: Callable[[], None], *, limit_seconds: float) -> bool:
        """
        Let it do something, and wait for it at most ``limit_seconds``; returns whether it was done.

        Its earlier work is done by then as well. The caller does not wait again for a scout that
        hangs until it is back.
        """
        if self._is_overdue:
            return False
        done = threading.Event()

        def do() -> None:
            errand()
            done.set()

        self._errands.put(do)
        if done.wait(limit_seconds):
            return True
        # From here on it counts as away, even though it was not sent to bring anything back.
        self._is_overdue = True
        self._out_since = self._out_since or self._loop.time()
        # Behind the errand that hangs, and so done when that is over.
        self._errands.put(self._say_back)
        return False

    def _return(self, _: None = None) -> None:
        self._out_since = None
        self._is_overdue = False

    @property
    def is_lost(self) -> bool:
        if self._out_since is None:
            return False
        return self._loop.time() - self._out_since >= self.patience_seconds

    def close(self) -> None:
        """Send it nowhere any more."""
        self._errands.put(None)

    # --- on the thread ----------------------------------------------------------------------

    def _work(self) -> None:
        errand = self._errands.get()
        while errand is not None:
            try:
                errand()
            except Exception:  # the caller must not wait for ever
                log.exception("reading a file failed")
                self._say_back()
            errand = self._errands.get()

    def _say_back(self) -> None:
        self._call(self._return, None)

    def _call(self, hear: Callable[[T], None], found: T) -> None:
        # A loop that was closed in between no longer takes the result.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(hear, found)


def rest_after(took_seconds: float, *, at_least: float) -> float:
    """Say how long to rest after a look: in proportion to what it took, so as to be no burden."""
    return max(at_least, min(took_seconds * REST_FACTOR, LONGEST_REST_SECONDS))
