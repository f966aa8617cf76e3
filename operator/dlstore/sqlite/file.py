"""
The file of the embedded store: how it is created, opened, brought up to date and complained about.

:mod:`dlstore.sqlite.store` asks it for transactions. The file is opened in write-ahead mode: a
process that is killed at any instant leaves it as it was after its last transaction, and readers
never wait for a writer. Each change of the schema is a step of :data:`STEPS`; the file itself says
how many of them it has seen.
"""

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock

from dlstore.sqlite.database import (
    Steps,
    enter_write_ahead_mode,
    transaction,
    upgrade,
)
from dlstore.sqlite.errors import SqliteErrors
from dlstore.store import StoreUnusableError

APPLICATION_ID = 0x444C4A42
"""By this a file of ours is known from the database of another program: "DLJB"."""

STEPS: Steps = (
    (
        """
        CREATE TABLE profiles (
            model TEXT NOT NULL,
            dataset TEXT NOT NULL,
            batch_size INTEGER NOT NULL,
            revision INTEGER NOT NULL,
            tickets TEXT NOT NULL,
            document TEXT,
            PRIMARY KEY (model, dataset, batch_size)
        )
        """,
        """
        CREATE TABLE history (
            id TEXT PRIMARY KEY,
            at REAL NOT NULL,
            place INTEGER NOT NULL,
            job TEXT NOT NULL,
            epoch INTEGER NOT NULL,
            generation INTEGER NOT NULL,
            kind TEXT NOT NULL,
            cause TEXT NOT NULL,
            for_job TEXT,
            old TEXT,
            new TEXT,
            cost_seconds REAL,
            sentence TEXT NOT NULL
        ) WITHOUT ROWID
        """,
        "CREATE INDEX history_by_time ON history (at, place, id)",
        "CREATE INDEX history_by_job ON history (job, at, place, id)",
        """
        CREATE TABLE gpus (
            node TEXT NOT NULL,
            gpu INTEGER NOT NULL,
            uuid TEXT NOT NULL,
            gpu_type TEXT NOT NULL,
            state TEXT NOT NULL,
            job TEXT,
            worker INTEGER,
            since REAL,
            reason TEXT NOT NULL,
            PRIMARY KEY (node, gpu)
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE jobs (
            job TEXT PRIMARY KEY,
            phase TEXT NOT NULL,
            gpus INTEGER NOT NULL,
            placement TEXT,
            type TEXT NOT NULL,
            options TEXT NOT NULL,
            priority INTEGER NOT NULL,
            submitted_at REAL,
            started_at REAL,
            finished_at REAL,
            generation INTEGER NOT NULL,
            iteration REAL NOT NULL,
            iterations_total REAL,
            iterations_per_second REAL NOT NULL,
            eta_seconds REAL,
            reshapes INTEGER NOT NULL,
            reason TEXT NOT NULL
        ) WITHOUT ROWID
        """,
    ),
    (
        """
        CREATE VIEW speed_profile AS
        SELECT
            model,
            dataset,
            batch_size,
            coalesce(json_extract(speed.value, '$.gpuType'), '') AS gpu_type,
            json_extract(speed.value, '$.gpus') AS gpus,
            json_extract(speed.value, '$.nodes') AS nodes,
            1.0 / json_extract(speed.value, '$.iterationsPerSecond') AS seconds_per_iteration,
            json_extract(speed.value, '$.weight') AS observations
        FROM profiles, json_each(document, '$.speeds') AS speed
        WHERE document IS NOT NULL
        """,
        """
        CREATE VIEW accuracy_profile AS
        SELECT
            model,
            dataset,
            batch_size,
            json_extract(point.value, '$.iteration') AS iterations,
            json_extract(point.value, '$.value') AS metric
        FROM profiles, json_each(document, '$.accuracy') AS point
        WHERE document IS NOT NULL
        """,
        """
        CREATE VIEW cost_profile AS
        SELECT
            model,
            dataset,
            batch_size,
            cost.key AS cost,
            cost.value AS seconds
        FROM profiles, json_each(document, '$.costs') AS cost
        WHERE document IS NOT NULL
        """,
        """
        CREATE VIEW gpu_table AS
        SELECT node || '/' || gpu AS gpu_id, state, job AS job_id, worker AS worker_id
        FROM gpus
        """,
        """
        CREATE VIEW job_table AS
        SELECT
            job AS job_id,
            phase AS state,
            gpus AS number_of_gpus,
            (
                SELECT group_concat(
                    json_extract(node.value, '$.name') || json_extract(node.value, '$.gpuIds'), ' '
                )
                FROM json_each(placement, '$.nodes') AS node
            ) AS gpu_ids,
            json_extract(type, '$.model') AS model,
            json_extract(type, '$.dataset') AS dataset,
            json_extract(type, '$.batchSize') AS batch_size,
            trim(options, '[]') AS optional_numbers_of_gpus
        FROM jobs
        """,
    ),
    ("ALTER TABLE history ADD COLUMN warning INTEGER NOT NULL DEFAULT 0",),
    ("CREATE TABLE policy_states (policy TEXT PRIMARY KEY, document TEXT NOT NULL)",),
    (
        "ALTER TABLE history ADD COLUMN expected TEXT",
        """
        CREATE TABLE timeline (
            id TEXT PRIMARY KEY,
            at REAL NOT NULL,
            kind TEXT NOT NULL,
            line TEXT NOT NULL
        ) WITHOUT ROWID
        """,
        "CREATE INDEX timeline_by_kind ON timeline (kind, at)",
    ),
)

_OUR_FAULT = (
    sqlite3.DataError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
)
"""Errors that neither another try nor another disk would cure."""


class SqliteFile:
    """One connection to the file, opened again where that helps; threads take turns."""

    def __init__(self, path: Path, *, busy_seconds: float) -> None:
        self.path = path.absolute()
        self._busy_seconds = busy_seconds
        self._errors = SqliteErrors(self.path, busy_seconds=busy_seconds)
        self._lock = RLock()
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self.opened = 0
        """How often it was opened; each connection counts the versions of the file from the beginning."""

    @contextmanager
    def transaction(self, *, writes: bool) -> Iterator[sqlite3.Connection]:
        """Do all of it or nothing; raise a failure as :class:`StoreError`."""
        with self._lock:
            try:
                with transaction(self._connected(), writes=writes) as db:
                    yield db
            except _OUR_FAULT:
                raise
            except sqlite3.Error as error:
                told = self._errors.translate(error)
                if isinstance(told, StoreUnusableError):
                    # A user may repair the file, which then is another one.
                    self._drop()
                raise told from error

    def close(self) -> None:
        """Close the connection; the last one to close tidies the file up."""
        with self._lock:
            self._drop()

    # --- opening

    def _connected(self) -> sqlite3.Connection:
        # Before the file is opened: if it is replaced in between, the next transaction sees that.
        identity = self._find()
        if self._connection is not None and identity == self._identity:
            return self._connection
        # If the file was removed or replaced, writes to the old one would be lost.
        self._drop()
        db = self._connect()
        try:
            self._prepare(db)
        except BaseException:
            db.close()
            raise
        self._connection, self._identity = db, identity
        self.opened += 1
        return db

    def _drop(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
        self._connection = None

    def _find(self) -> tuple[int, int]:
        """
        Tell which file it is, and create it for its owner only if there is none.

        It is never opened but by SQLite: closing it would drop the locks of this whole process.
        """
        try:
            with suppress(FileNotFoundError):
                return self._identify()
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            return self._identify()
        except OSError as error:
            raise self._errors.cannot_open(error) from error

    def _identify(self) -> tuple[int, int]:
        found = self.path.stat()
        if stat.S_ISDIR(found.st_mode):
            remedy = f"name a file in it, such as {self.path / 'dljob.db'}"
            raise self._errors.unusable("is a folder", remedy)
        if not stat.S_ISREG(found.st_mode):
            raise self._errors.unusable("is no file", "name a file")
        return found.st_dev, found.st_ino

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{self.path.as_uri()}?mode=rw",
            uri=True,
            timeout=self._busy_seconds,
            # Transactions begin where we say so.
            isolation_level=None,
            # The lock sees to it that threads take turns.
            check_same_thread=False,
        )

    def _prepare(self, db: sqlite3.Connection) -> None:
        # Check this first, so that the file of another program stays as it is.
        with transaction(db, writes=False):
            version = self._version(db)
        # With a write-ahead log, a power cut may cost the last transactions, but never the file.
        db.execute("PRAGMA synchronous = NORMAL")
        enter_write_ahead_mode(db, patience_seconds=self._busy_seconds)
        if version < len(STEPS):
            with transaction(db, writes=True):
                # Read again, because another process may have upgraded the file meanwhile.
                upgrade(db, STEPS, version=self._version(db))
                db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        damage = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if damage != "ok":
            raise self._errors.damaged(damage)

    def _version(self, db: sqlite3.Connection) -> int:
        version = int(db.execute("PRAGMA user_version").fetchone()[0])
        if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            if version or db.execute("SELECT 1 FROM sqlite_master").fetchone():
                raise self._errors.unusable(
                    "is the database of another program", "name another file"
                )
            return 0
        if version > len(STEPS):
            raise self._errors.unusable(
                f"has schema version {version}, and this dljob knows none above {len(STEPS)}",
                "upgrade dljob, or name another file",
            )
        return version
