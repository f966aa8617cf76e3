"""A file that somebody else has locked, for a while."""

import sqlite3
from pathlib import Path
from threading import Timer


class Lock:
    """Nobody else writes into this file until it is released, or the time is over."""

    def __init__(self, path: Path, seconds: float) -> None:
        """Take it; raises :class:`sqlite3.Error` if somebody else has it."""
        self._db = sqlite3.connect(path, isolation_level=None, timeout=0.2, check_same_thread=False)
        try:
            self._db.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error:
            self._db.close()
            raise
        # By itself: who has locked it may be waiting for what somebody else wants to write.
        self._timer = Timer(seconds, self._db.close)
        self._timer.start()

    @property
    def is_over(self) -> bool:
        return not self._timer.is_alive()

    def release(self) -> None:
        self._timer.cancel()
        self._timer.join()
        self._db.close()
