"""
The base of every SQLite file of DLJob: connections and transactions, and of the store write-ahead mode and upgrades.

:mod:`dljob.store.sqlite.file` uses it for the store, and :mod:`dljob.local.jobs.jobs_file` for the list of jobs.
"""

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

Steps = Sequence[Sequence[str]]
"""The statements that upgrade a file from each version of the schema to the next."""


def connect(path: Path, *, patience_seconds: float, creates: bool) -> sqlite3.Connection:
    """Open a file without implicit transactions; the threads that share the connection take turns."""
    mode = "rwc" if creates else "rw"
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=patience_seconds,
        isolation_level=None,
        check_same_thread=False,
    )


def name_of(error: sqlite3.Error) -> str:
    return str(getattr(error, "sqlite_errorname", ""))


@contextmanager
def transaction(db: sqlite3.Connection, *, writes: bool) -> Iterator[sqlite3.Connection]:
    """Commit all of it, or nothing if an error is raised."""
    # A writer takes the lock now: a reader that begins to write later cannot wait for it.
    db.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
    try:
        yield db
        db.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise


def enter_write_ahead_mode(db: sqlite3.Connection, *, patience_seconds: float) -> None:
    # SQLite does not wait by itself while another process does the same.
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not name_of(error).startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                raise
        time.sleep(0.01)
