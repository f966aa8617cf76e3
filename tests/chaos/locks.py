"""A lock on a database file for a while."""

import sqlite3
from pathlib import Path
from threading import Timer


class Lock:
    """Keeps other processes from writing into a file until it is released or the time is over."""

    def __init__(self, path: Path, seconds: float) -> None:
        """Take the lock; raises :class:`sqlite3.Error` if another process has it."""
        self._db = sqlite3.connect(path, isolation_level=None, timeout=0.2, check_same_thread=False)
        try:
            self._db.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error:
            self._db.close()
            raise
        # A timer: the holder may wait for another process that wants to write.
        self._timer = Timer(seconds, self._db.close)
        self._timer.start()

    @property
    def is_over(self) -> bool:
        return not self._timer.is_alive()

    def release(self) -> None:
        self._timer.cancel()
        self._timer.join(60.0)
        self._db.close()
