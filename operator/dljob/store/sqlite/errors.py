"""Turns errors of SQLite and of the system into errors of the store with a remedy."""

import errno
import sqlite3
from pathlib import Path

from dljob.store.sqlite.database import name_of
from dljob.store.store import StoreError, StoreUnavailableError, StoreUnusableError


class SqliteErrors:
    def __init__(self, path: Path, *, busy_seconds: float) -> None:
        self.path = path
        self._busy_seconds = busy_seconds

    def translate(self, error: sqlite3.Error) -> StoreError:
        name = name_of(error)
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return self._away(
                f"is locked by another process since {self._busy_seconds:g} s",
                f"end the process that holds it (fuser {self.path})",
            )
        if name.startswith("SQLITE_FULL"):
            return self._away("cannot grow, because its disk is full", "make room there")
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            return self.damaged(str(error))
        if name.startswith("SQLITE_IOERR"):
            return self._away(f"cannot be read or written ({error}, {name})", "look at its disk")
        return self.unusable(
            f"cannot be used ({error}, {name})",
            "let the user that runs dljob write it and its folder",
        )

    def cannot_open(self, error: OSError) -> StoreError:
        why = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return self._away(f"cannot be created ({why})", "make room there")
        remedy = "name a writable file in a writable folder"
        return self.unusable(f"cannot be opened ({why})", remedy)

    def damaged(self, how: str) -> StoreError:
        return self.unusable(
            f"is damaged, or not a database ({' '.join(how.split())})",
            "restore a copy, or move it away: profiles are then learnt again",
        )

    def _away(self, message: str, remedy: str) -> StoreError:
        return StoreUnavailableError(str(self.path), message, remedy)

    def unusable(self, message: str, remedy: str) -> StoreError:
        return StoreUnusableError(str(self.path), message, remedy)
