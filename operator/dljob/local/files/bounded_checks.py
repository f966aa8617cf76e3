"""
Checks of files that users name, for callers that cannot await the answer.

A network file system may never answer. So a thread makes each check, and the caller waits for a moment at most.
:mod:`dljob.local.files.file_threads` has checks that can be awaited.
"""

import threading
from collections.abc import Callable
from typing import Final

WAIT_S: Final = 1.0
"""The time limit of a check. The event loop does nothing else meanwhile."""
WAIT_BESIDE_S: Final = 0.05
"""The time limit while other checks hang, because all paths of a file system hang together."""
STEPS: Final = 5
MOST: Final = 64
"""The most checks that hang at the same time. Each has a thread."""

Look = Callable[[str], bool]


class NoAnswerError(OSError):
    """The file system of a path does not answer in time; a later attempt may succeed."""


class BoundedChecks:
    def __init__(self) -> None:
        self._asked: dict[tuple[str, Look], _Asked] = {}
        """Checks whose answer no caller has received."""

    def ask(self, path: str, look: Look) -> bool:
        """Return the answer of a check; raises :class:`NoAnswerError` if that takes too long."""
        key = (path, look)
        asked = self._asked.get(key)
        if asked is None:
            seconds = self._find_limit()
            asked = self._asked[key] = _Asked(path, look)
            # Only the first caller waits for a check that hangs.
            asked.wait(seconds)
        if not asked.is_done.is_set():
            raise NoAnswerError(f"{path}: its file system does not answer")
        del self._asked[key]
        return asked.found

    def _find_limit(self) -> float:
        """Return the time limit of one more check; raises :class:`NoAnswerError` if too many hang."""
        hanging = {key: each for key, each in self._asked.items() if not each.is_done.is_set()}
        if len(hanging) >= MOST:
            raise NoAnswerError(f"{MOST} looks at files hang already")
        if len(self._asked) > MOST:
            # Drop answers that no caller asked for again.
            self._asked = hanging
        return WAIT_BESIDE_S if hanging else WAIT_S


class _Asked:
    """A check, and its answer."""

    def __init__(self, path: str, look: Look) -> None:
        self.is_done = threading.Event()
        self.found = False
        # A daemon does not delay the end of the process.
        thread = threading.Thread(target=self._work, args=(path, look), name="looks", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise NoAnswerError(f"{path}: no thread is left that could look there") from error

    def wait(self, seconds: float) -> None:
        # In steps: a pause of the whole machine, in which the thread does not run either, costs one step.
        for _ in range(STEPS):
            if self.is_done.wait(seconds / STEPS):
                return

    def _work(self, path: str, look: Look) -> None:
        self.found = look(path)
        self.is_done.set()


ask = BoundedChecks().ask
