"""
The file of the embedded store: created, opened and upgraded.

In write-ahead mode a process that is killed leaves the file as it was after the last transaction, and readers do not wait
for a writer. Each change of the schema is a step of :data:`STEPS`; the file has the number of its steps.
"""

import errno
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from threading import RLock

from dljob.store.sqlite.database import (
    Steps,
    connect,
    enter_write_ahead_mode,
    name_of,
    transaction,
)
from dljob.store.store import StoreError, StoreUnavailableError, StoreUnusableError

APPLICATION_ID = 0x444C4A42
"""Marks a file of DLJob: "DLJB"."""

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
    (
        """
        CREATE TABLE record (
            id TEXT PRIMARY KEY,
            at REAL NOT NULL,
            kind TEXT NOT NULL,
            line TEXT NOT NULL,
            job TEXT NOT NULL,
            place INTEGER NOT NULL,
            epoch INTEGER NOT NULL
        ) WITHOUT ROWID
        """,
        """
        INSERT INTO record
        SELECT id, at, kind, line, coalesce(json_extract(line, '$.job'), ''), 0, 0 FROM timeline
        """,
        """
        INSERT INTO record
        SELECT id, at, 'decided', json_object(
            'kind', 'decided', 'at', at, 'job', job, 'step', kind, 'generation', generation,
            'cause', cause, 'forJob', for_job, 'sentence', sentence, 'old', json(old),
            'new', json(new), 'expected', json(expected), 'costSeconds', cost_seconds
        ), job, place, epoch
        FROM history WHERE kind IN ('start', 'reshape', 'move', 'stop', 'wait')
        """,
        """
        INSERT INTO record
        SELECT id, at, 'happened', json_object(
            'kind', 'happened', 'at', at, 'job', job,
            'name', upper(substr(kind, 1, 1)) || substr(kind, 2), 'message', sentence,
            'warning', json(iif(warning, 'true', 'false'))
        ), job, place, epoch
        FROM history WHERE kind NOT IN ('start', 'reshape', 'move', 'stop', 'wait')
        """,
        "DROP TABLE history",
        "DROP TABLE timeline",
        "CREATE INDEX record_by_kind ON record (kind, at)",
        "CREATE INDEX record_by_job ON record (job, kind, at)",
        """
        CREATE VIEW history AS
        SELECT
            id, at, place, job, epoch,
            coalesce(json_extract(line, '$.step'), json_extract(line, '$.name')) AS kind,
            json_extract(line, '$.generation') AS generation,
            json_extract(line, '$.cause') AS cause,
            json_extract(line, '$.forJob') AS for_job,
            json_extract(line, '$.old') AS old,
            json_extract(line, '$.new') AS new,
            json_extract(line, '$.expected') AS expected,
            json_extract(line, '$.costSeconds') AS cost_seconds,
            coalesce(json_extract(line, '$.sentence'), json_extract(line, '$.message')) AS sentence
        FROM record WHERE kind IN ('decided', 'happened')
        """,
    ),
)

_OUR_FAULT = (
    sqlite3.DataError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
)
"""Errors that are defects of this program."""


class SqliteErrors:
    """Turns errors of SQLite and of the system into errors of the store with a remedy."""

    def __init__(self, path: Path, *, busy_seconds: float) -> None:
        self.path = path
        self._busy_seconds = busy_seconds

    def translate(self, error: sqlite3.Error) -> StoreError:
        name = name_of(error)
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return self.away(
                f"is locked by another process since {self._busy_seconds:g} s",
                f"end the process that holds it (fuser {self.path})",
            )
        if name.startswith("SQLITE_FULL"):
            return self.away("cannot grow, because its disk is full", "make room there")
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            return self.damaged(str(error))
        if name.startswith("SQLITE_IOERR"):
            return self.away(f"cannot be read or written ({error}, {name})", "look at its disk")
        return self.unusable(
            f"cannot be used ({error}, {name})",
            "let the user that runs dljob write it and its folder",
        )

    def damaged(self, how: str) -> StoreError:
        return self.unusable(
            f"is damaged, or not a database ({' '.join(how.split())})",
            "restore a copy, or move it away: profiles are then learnt again",
        )

    def away(self, message: str, remedy: str) -> StoreError:
        return StoreUnavailableError(str(self.path), message, remedy)

    def unusable(self, message: str, remedy: str) -> StoreError:
        return StoreUnusableError(str(self.path), message, remedy)


class SqliteFile:
    """A connection to the file, which threads share. It is opened again if the file was replaced."""

    def __init__(self, path: Path, *, busy_seconds: float) -> None:
        self.path = path.absolute()
        self._busy_seconds = busy_seconds
        self._errors = SqliteErrors(self.path, busy_seconds=busy_seconds)
        self._lock = RLock()
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self.opened = 0
        """The number of connections so far, each of which counts the versions of the file from 0."""

    @contextmanager
    def transaction(self, *, writes: bool) -> Iterator[sqlite3.Connection]:
        """Commit all or nothing; raises :class:`StoreError`."""
        with self._lock:
            try:
                with transaction(self._connected(), writes=writes) as db:
                    yield db
            except _OUR_FAULT:
                raise
            except sqlite3.Error as error:
                translated = self._errors.translate(error)
                if isinstance(translated, StoreUnusableError):
                    # A user may replace the file.
                    self._drop()
                raise translated from error

    def close(self) -> None:
        with self._lock:
            self._drop()

    # --- opening

    def _connected(self) -> sqlite3.Connection:
        # Before the file is opened, so that the next transaction notices a replacement in between.
        identity = self._find()
        if self._connection is not None and identity == self._identity:
            return self._connection
        # Writes to a removed file would be lost.
        self._drop()
        db = connect(self.path, patience_seconds=self._busy_seconds, creates=False)
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
        Identify the file; create it for its owner alone if there is none.

        Only SQLite opens an existing file: closing another descriptor would drop all locks of this process.
        """
        try:
            with suppress(FileNotFoundError):
                return self._identify()
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            return self._identify()
        except OSError as error:
            why = error.strerror or str(error)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise self._errors.away(f"cannot be created ({why})", "make room there") from error
            remedy = "name a writable file in a writable folder"
            raise self._errors.unusable(f"cannot be opened ({why})", remedy) from error

    def _identify(self) -> tuple[int, int]:
        found = self.path.stat()
        if stat.S_ISDIR(found.st_mode):
            remedy = f"name a file in it, such as {self.path / 'dljob.db'}"
            raise self._errors.unusable("is a folder", remedy)
        if not stat.S_ISREG(found.st_mode):
            raise self._errors.unusable("is no file", "name a file")
        return found.st_dev, found.st_ino

    def _prepare(self, db: sqlite3.Connection) -> None:
        # The check comes first, so that the file of another program is not changed.
        with transaction(db, writes=False):
            version = self._version(db)
        # In write-ahead mode a power cut may cost the last transactions, but not the file.
        db.execute("PRAGMA synchronous = NORMAL")
        enter_write_ahead_mode(db, patience_seconds=self._busy_seconds)
        if version < len(STEPS):
            with transaction(db, writes=True):
                # Read again, because another process may have upgraded the file meanwhile.
                for statement in chain.from_iterable(STEPS[self._version(db) :]):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {len(STEPS)}")
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
