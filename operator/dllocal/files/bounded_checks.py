"""
Looks at files that users name, where the event loop cannot await the answer.

A file system may never answer, such as a network file system whose server is down. So a thread makes each look,
and the caller waits for it a moment at most. :mod:`dllocal.files.file_threads` has the looks that can be awaited.
"""

import threading
from collections.abc import Callable
from typing import Final

WAIT_S: Final = 1.0
"""The time limit of a look. The event loop does nothing else meanwhile."""
WAIT_BESIDE_S: Final = 0.05
"""The same while other looks hang, because mostly all paths of one file system hang together."""
STEPS: Final = 5
MOST: Final = 64
"""The most looks that hang at the same time. Each has a thread."""

Look = Callable[[str], bool]


class NoAnswerError(OSError):
    """The file system of a path does not answer in time; a later try may succeed."""


class BoundedChecks:
    """Those of one event loop."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, Look], _Asked] = {}
        """The looks whose answer no caller has got: they hang, or came back after their caller had given up."""

    def ask(self, path: str, look: Look) -> bool:
        """Return what a look at a path finds; raises :class:`NoAnswerError` if that takes too long."""
        key = (path, look)
        asked = self._asked.get(key)
        if asked is None:
            seconds = self._find_limit()
            asked = self._asked[key] = _Asked(path, look)
            # Only the first caller waits. A look that hangs would hold up the event loop at each question.
            asked.wait(seconds)
        if not asked.is_done.is_set():
            raise NoAnswerError(f"{path}: its file system does not answer")
        # The next caller looks again, because files come and go.
        del self._asked[key]
        return asked.found

    def _find_limit(self) -> float:
        """Return how long one more look may take; raises :class:`NoAnswerError` if too many hang already."""
        hanging = {key: each for key, each in self._asked.items() if not each.is_done.is_set()}
        if len(hanging) >= MOST:
            raise NoAnswerError(f"{MOST} looks at files hang already")
        if len(self._asked) > MOST:
            # Answers that no caller came back for.
            self._asked = hanging
        return WAIT_BESIDE_S if hanging else WAIT_S


class _Asked:
    """A look, and its answer once there is one."""

    def __init__(self, path: str, look: Look) -> None:
        self.is_done = threading.Event()
        self.found = False
        # A daemon, because the end of the process waits for all other threads.
        thread = threading.Thread(target=self._work, args=(path, look), name="looks", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise NoAnswerError(f"{path}: no thread is left that could look there") from error

    def wait(self, seconds: float) -> None:
        # In steps, so that a pause of the whole machine, in which the thread did nothing either,
        # takes no more than one of them.
        for _ in range(STEPS):
            if self.is_done.wait(seconds / STEPS):
                return

    def _work(self, path: str, look: Look) -> None:
        self.found = look(path)
        self.is_done.set()


ask = BoundedChecks().ask
