"""
A value that takes long to make: it is made once for all viewers, and again after a while if one still asks.

So the cost of the page's server is the same for one viewer and for fifty.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, TypeVar

T = TypeVar("T")

PATIENCE_S: Final = 0.25
"""After this wait for a newer value a caller gets the old one."""

SHARE: Final = 0.02
"""The largest share of a core that making a value takes."""


def pause_after(work_s: float, every_s: float) -> float:
    """Return the lifetime of a value by the processor time that making it took."""
    return max(every_s, work_s / SHARE)


class Renewed(Generic[T]):
    """A value that is made on a thread."""

    def __init__(self, make: Callable[[T | None], T], *, every_s: float) -> None:
        """``make`` takes the previous value, and may return it."""
        self._make = make
        self._every_s = every_s
        self._known: T | None = None
        self._problem: Exception | None = None
        self._due = 0.0
        self._task: asyncio.Task[None] | None = None

    async def get(self) -> T:
        """Return the value, renewed if it is old; raises the errors of ``make``."""
        if self._task is None and time.monotonic() >= self._due:
            self._task = asyncio.create_task(self._renew())
        # Also a caller that has just started it: a first value is needed by all of them.
        if self._task is not None:
            with suppress(TimeoutError):
                # A caller that goes away leaves it to the others.
                waiting = asyncio.shield(self._task)
                await asyncio.wait_for(waiting, None if self._known is None else PATIENCE_S)
        if self._problem is not None:
            # Without a copy each raise would lengthen the traceback.
            raise self._problem.with_traceback(None)
        assert self._known is not None
        return self._known

    async def _renew(self) -> None:
        # A failure is retried soon.
        pause = self._every_s
        try:
            self._known, worked_s = await asyncio.to_thread(self._work)
            pause = pause_after(worked_s, self._every_s)
            self._problem = None
        except Exception as problem:  # noqa: BLE001 - each caller learns of it
            self._problem = problem
        finally:
            self._due = time.monotonic() + pause
            self._task = None

    def _work(self) -> tuple[T, float]:
        """Make the value; returns also its processor time, because waiting for a server costs this one nothing."""
        began = time.thread_time()
        made = self._make(self._known)
        return made, time.thread_time() - began
