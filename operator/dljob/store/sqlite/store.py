"""
The embedded store, one file of SQLite: the default.

Profiles are kept as the documents that ``dljob profiles export`` writes; views in the file show them as the paper's tables.
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from dljob.core.documents import profilefile
from dljob.core.model import JobId
from dljob.core.profiles import JobType
from dljob.store.rows import HISTORY, PRUNE_EVERY, SAMPLE, RecordRow, prune_every
from dljob.store.sqlite.file import SqliteFile
from dljob.store.store import (
    USUAL_BOUNDS,
    Bounds,
    Change,
    ProfileDocuments,
    StoredProfile,
    StoreUnavailableError,
    Ticket,
)
from dljob.store.tables import (
    GpuRow,
    JobRow,
    Key,
    R,
    Record,
    Row,
    differences,
    read_rows,
    to_record,
)

Cells = dict[str, Any]
Version = tuple[int, int]
"""The number of a connection, and its count of changes by other connections."""

_JSON = frozenset({"placement", "type", "options"})
"""Columns with JSON."""

_KEYS = {"gpus": ("node", "gpu"), "jobs": ("job",)}

_PROFILE = "model = ? AND dataset = ? AND batch_size = ?"


class _Shown(NamedTuple):
    """The rows that this store wrote last into a table, and the version of the file."""

    rows: dict[Key, GpuRow | JobRow]
    version: Version


class SqliteStore:
    def __init__(
        self, path: Path, *, bounds: Bounds = USUAL_BOUNDS, busy_seconds: float = 5.0
    ) -> None:
        self._bounds = bounds
        self._writer = SqliteFile(path, busy_seconds=busy_seconds)
        # Another connection, so that readers do not wait for writes.
        self._reader = SqliteFile(path, busy_seconds=busy_seconds)
        self._documents = ProfileDocuments(self.address)
        self._replacing = Lock()
        self._shown: dict[str, _Shown] = {}
        self._unpruned = PRUNE_EVERY
        """The rows since the last pruning."""
        # A file that cannot be used is reported now.
        with suppress(StoreUnavailableError):
            self.revisions()

    @property
    def address(self) -> str:
        return str(self._writer.path)

    def close(self) -> None:
        self._reader.close()
        self._writer.close()

    # --- profiles

    def profiles(self, types: Iterable[JobType] | None = None) -> Mapping[JobType, StoredProfile]:
        with self._reader.transaction(writes=False) as db:
            if types is None:
                rows = db.execute(f"SELECT {_STORED} FROM profiles").fetchall()
            else:
                query = f"SELECT {_STORED} FROM profiles WHERE {_PROFILE}"
                found = (db.execute(query, kind).fetchone() for kind in types)
                rows = [row for row in found if row is not None]
        stored = dict(map(self._read, rows))
        return {kind: each for kind, each in stored.items() if each.profile is not None}

    def revisions(self) -> Mapping[JobType, int]:
        with self._reader.transaction(writes=False) as db:
            query = (
                "SELECT model, dataset, batch_size, revision FROM profiles"
                " WHERE document IS NOT NULL"
            )
            return {JobType(*kind): revision for *kind, revision in db.execute(query)}

    def change(self, kind: JobType, change: Change, ticket: Ticket | None = None) -> StoredProfile:
        with self._writer.transaction(writes=True) as db:
            query = f"SELECT {_STORED} FROM profiles WHERE {_PROFILE}"
            row = db.execute(query, kind).fetchone()
            old = StoredProfile(None) if row is None else self._read(row)[1]
            new = old.changed(change, ticket)
            if new is not old:
                document = None
                if new.profile is not None:
                    document = json.dumps(profilefile.render(new.profile), allow_nan=False)
                # If the commit fails, the text in the file differs and is parsed again.
                self._documents.remember(kind, document, profile=new.profile)
                tickets = Ticket.write_all(new.tickets)
                db.execute(
                    "INSERT OR REPLACE INTO profiles VALUES (?, ?, ?, ?, ?, ?)",
                    (*kind, new.revision, tickets, document),
                )
            return new

    def _read(self, row: Sequence[Any]) -> tuple[JobType, StoredProfile]:
        *key, revision, tickets, document = row
        kind = JobType(*key)
        profile = None
        if document is not None:
            profile = self._documents.read(kind, document)
        return kind, StoredProfile(profile, revision, Ticket.read_all(tickets))

    # --- what policies remember

    def keep_policy_state(self, policy: str, document: str) -> None:
        with self._writer.transaction(writes=True) as db:
            db.execute("INSERT OR REPLACE INTO policy_states VALUES (?, ?)", (policy, document))

    def policy_states(self) -> Mapping[str, str]:
        with self._reader.transaction(writes=False) as db:
            return dict(db.execute("SELECT policy, document FROM policy_states"))

    # --- the record

    def record(self, rows: Sequence[RecordRow]) -> None:
        if not rows:
            return
        with self._writer.transaction(writes=True) as db:
            _insert(db, "record", rows=map(asdict, rows))
            for job in {row.job for row in rows if row.is_history}:
                which = f"{_HISTORY} AND job = ?"
                _prune(db, which, (job,), most=self._bounds.entries_per_job)
            self._unpruned += len(rows)
            if self._unpruned >= self._bounds.prune_every:
                self._unpruned = 0
                if self._bounds.days:
                    db.execute("DELETE FROM record WHERE at < ?", (self._bounds.oldest,))
                entries = self._bounds.entries - prune_every(self._bounds.entries)
                _prune(db, _HISTORY, most=entries)
                _prune(db, f"kind NOT IN {(*HISTORY, SAMPLE)}", most=self._bounds.moments)
                _prune(db, f"kind = '{SAMPLE}'", most=self._bounds.samples)

    def history(self, job: JobId | None = None, *, limit: int = 100) -> tuple[RecordRow, ...]:
        which, values = (_HISTORY, ()) if job is None else (f"{_HISTORY} AND job = ?", (job,))
        return self._read_record(f"WHERE {which} {_NEWEST_FIRST} LIMIT ?", (*values, limit))

    def rows(self) -> tuple[RecordRow, ...]:
        return self._read_record("ORDER BY at, place, id")

    def _read_record(self, rest: str, values: Sequence[Any] = ()) -> tuple[RecordRow, ...]:
        with self._reader.transaction(writes=False) as db:
            found = _select(db, "record", rest=rest, values=values)
        return tuple(RecordRow(**cells) for cells in found)

    # --- the tables

    def replace_gpus(self, rows: Sequence[GpuRow]) -> None:
        self._replace("gpus", rows)

    def replace_jobs(self, rows: Sequence[JobRow]) -> None:
        self._replace("jobs", rows)

    def gpus(self) -> tuple[GpuRow, ...]:
        return self._read_rows(GpuRow, "gpus", rest="ORDER BY node, gpu")

    def jobs(self) -> tuple[JobRow, ...]:
        return self._read_rows(JobRow, "jobs", rest="ORDER BY job")

    def _replace(self, table: str, rows: Sequence[GpuRow] | Sequence[JobRow]) -> None:
        wanted: dict[Key, GpuRow | JobRow] = {row.key: row for row in rows}
        with self._replacing:
            shown = self._shown.pop(table, None)
            with self._writer.transaction(writes=False) as db:
                version = self._version(db)
            if shown is None or shown != _Shown(wanted, version):
                version = self._write(table, shown, wanted=wanted)
            self._shown[table] = _Shown(wanted, version)

    def _write(
        self, table: str, shown: _Shown | None, *, wanted: Mapping[Key, GpuRow | JobRow]
    ) -> Version:
        with self._writer.transaction(writes=True) as db:
            # Again with the write lock, because another connection may have written.
            version = self._version(db)
            if shown is not None and shown.version == version:
                rows, gone = differences(shown.rows, wanted)
                changed = list(map(_cells, rows))
            else:
                there: dict[Key, Cells] = {
                    tuple(cells[name] for name in _KEYS[table]): cells
                    for cells in _select(db, table)
                }
                changed, gone = differences(there, {key: _cells(wanted[key]) for key in wanted})
            _insert(db, table, rows=changed)
            which = " AND ".join(f"{name} = ?" for name in _KEYS[table])
            db.executemany(f"DELETE FROM {table} WHERE {which}", gone)
        return version

    def _version(self, db: sqlite3.Connection) -> Version:
        """Return a value that changes when another connection has changed the file, or the file was replaced."""
        return self._writer.opened, int(db.execute("PRAGMA data_version").fetchone()[0])

    def _read_rows(
        self, kind: type[R], table: str, *, rest: str, values: Sequence[Any] = ()
    ) -> tuple[R, ...]:
        with self._reader.transaction(writes=False) as db:
            found = _select(db, table, rest=rest, values=values)
        return tuple(read_rows(kind, found, as_record=_record, address=self.address))


_STORED = "model, dataset, batch_size, revision, tickets, document"
_HISTORY = f"kind IN {HISTORY}"
_NEWEST_FIRST = "ORDER BY at DESC, place DESC, id DESC"


def _prune(db: sqlite3.Connection, which: str, values: Sequence[Any] = (), *, most: int) -> None:
    old = f"SELECT id FROM record WHERE {which} {_NEWEST_FIRST} LIMIT -1 OFFSET ?"
    db.execute(f"DELETE FROM record WHERE id IN ({old})", (*values, most))


def _insert(db: sqlite3.Connection, table: str, *, rows: Iterable[Cells]) -> None:
    for cells in rows:
        names, places = ", ".join(cells), ", ".join("?" for _ in cells)
        statement = f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({places})"
        db.execute(statement, tuple(cells.values()))


def _select(
    db: sqlite3.Connection, table: str, *, rest: str = "", values: Sequence[Any] = ()
) -> list[Cells]:
    found = db.execute(f"SELECT * FROM {table} {rest}", values)
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found]


def _cells(row: Row) -> Cells:
    return {
        name: json.dumps(value) if name in _JSON and value is not None else value
        for name, value in to_record(row).items()
    }


def _record(cells: Cells) -> Record:
    return {
        name: json.loads(value) if name in _JSON and value is not None else value
        for name, value in cells.items()
    }
