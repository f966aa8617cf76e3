"""
A value that one thread reads for all threads; :class:`dljob_web.renewing.Renewed` does the same for coroutines.
"""

import threading
import time
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from dljob_web.renewing import pause_after

T = TypeVar("T")


class Known(NamedTuple, Generic[T]):
    """The result of the latest reading."""

    values: tuple[T, ...]
    """One, or none where it failed."""
    problem: Exception | None = None


class Shared(Generic[T]):
    """
    The value, which is read again when it is old.

    Other threads get the former value meanwhile. A failure is kept as well, so that each viewer does not ask an API server
    again that does not answer.
    """

    def __init__(self, read: Callable[[], T], *, every_s: float) -> None:
        self._read = read
        self._every_s = every_s
        self._reading = threading.Lock()
        self._known: Known[T] | None = None
        self._due = 0.0

    def get(self) -> T:
        """Return the value, or raise the error of reading it."""
        known = self._known
        # The first value is waited for, because there is nothing else to answer with.
        if self._is_due() and self._reading.acquire(blocking=known is None):
            try:
                # Another thread may have read it while this one waited.
                known = self._renew() if self._is_due() else self._known
            finally:
                self._reading.release()
        known = known or self._known
        assert known is not None
        if known.problem is not None:
            # Otherwise each raise would extend the traceback.
            raise known.problem.with_traceback(None)
        return known.values[0]

    def _is_due(self) -> bool:
        return time.monotonic() >= self._due

    def _renew(self) -> Known[T]:
        began = time.thread_time()
        pause = self._every_s
        try:
            known = Known((self._read(),))
            pause = pause_after(time.thread_time() - began, self._every_s)
        except Exception as problem:  # noqa: BLE001 - each thread learns of it
            known = Known((), problem)
        # Set the value before its due time, because a thread that finds it not due reads the value without the lock.
        self._known = known
        self._due = time.monotonic() + pause
        return known
