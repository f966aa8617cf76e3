"""
Questions to a backend, in the thread that asks or, where an event loop runs in it, in another one.

The backend of a cluster runs an event loop while it asks, and Python refuses a second one in a thread
that runs one already, such as that of the kernel of a notebook.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from dljob.api.refusals import refusing

T = TypeVar("T")


class Questions:
    def __init__(self) -> None:
        self._apart: ThreadPoolExecutor | None = None

    def ask(self, question: Callable[[], T]) -> T:
        """Return the answer, or raise a refusal of :mod:`dljob.api.refusals`."""
        with refusing():
            if not _has_event_loop():
                return question()
            if self._apart is None:
                # One thread: the backend of a cluster is not made for several at once.
                self._apart = ThreadPoolExecutor(1, thread_name_prefix="dljob")
            return self._apart.submit(question).result()

    def close(self) -> None:
        if self._apart is not None:
            self._apart.shutdown()


def _has_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
