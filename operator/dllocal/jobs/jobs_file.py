"""
The file of the list of jobs, with its journal: opened, checked, restored, and written by one controller.

:mod:`dllocal.jobs.registry` gives it changes and gets all rows at the start. Both witnesses are read at each opening:

- the file holds a seal, a sum over all that it keeps, so that a flipped bit or a lost row is seen;
- the journal (:mod:`dllocal.jobs.journal`) holds every transaction with a checksum, and is written first.

Where the file is damaged, gone or older than its journal, it is restored from that; where the journal is, it is
written afresh from the file. Where neither can be trusted, no controller begins: it would give out GPUs
that jobs still have.
"""

import logging
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from dlcontrol.situation.clocks import Reading, Stamp
from dlcontrol.situation.ports import Fenced
from dllocal.folders import StateError
from dllocal.jobs import journal
from dllocal.jobs.jobs_schema import COLUMNS, STEPS
from dllocal.jobs.journal import (
    Change,
    Found,
    Journal,
    Kept,
    Row,
)
from dllocal.jobs.reserve import Reserve
from dllocal.jobs.sealing import Key, Seal

log = logging.getLogger(__name__)

VERSION: Final = 3

OPENING_S = 30.0
"""How long another controller may take for its last write."""
LOCKED_S = 0.05
"""How long to wait for another process that has locked the file. It is short, because the loop does nothing else
meanwhile: the writer tries again later."""


_NO_DAMAGE = ("BUSY", "LOCKED", "FULL", "READONLY", "CANTOPEN", "PERM", "AUTH", "NOMEM")
"""Errors of SQLite that say nothing about what is in the file."""


class _Damaged(Exception):
    """The file cannot be what a controller has written last: why."""


class Opened(NamedTuple):
    """A list of jobs, and what was the matter with it."""

    file: "JobsFile"
    kept: Kept
    """As it was found, before this controller began."""
    mended: str
    """The damage that was restored, in one line; empty if all was well."""


class JobsFile:
    """The file and its journal, for the life of a controller."""

    def __init__(self, path: Path, db: sqlite3.Connection, *, log_of_changes: Journal) -> None:
        self.path = path
        self.epoch = 0
        self.reserve = Reserve(path)
        self._db = db
        self._journal = log_of_changes
        self._revision = 0
        self._seal = Seal()
        self._identity = _identity(path)

    @classmethod
    def open(cls, path: Path, reading: Reading, *, least_epoch: int = 0) -> Opened:
        """
        Begin a new epoch, above ``least_epoch``: a controller of before can write no longer.

        Raises :class:`StateError` where that cannot be.
        """
        try:
            try:
                opened = _open(path, reading, least_epoch)
            except (sqlite3.Error, OSError):
                if not Reserve(path).release():
                    raise
                log.warning("%s: its disk is full; the room that is kept for it is used", path)
                opened = _open(path, reading, least_epoch)
            opened.file.reserve.make()
            return opened
        except (sqlite3.Error, OSError) as error:
            raise StateError(
                f"{path}: cannot be used as the list of jobs ({error}); make room or repair the"
                " file, or name another folder with --state"
            ) from error

    def close(self) -> None:
        self._db.close()
        self._journal.close()

    def commit(self, changes: Iterable[Change]) -> None:
        """Write these as one, on the disk when this returns; raises :class:`Fenced` or :class:`sqlite3.Error`."""
        changes = list(changes)
        with self.leading():
            length = self._journal.length
            try:
                parts = self._write(changes)
                self._db.execute("COMMIT")
            except BaseException:
                self._journal.take_back(length)
                raise
        self._seal.accept(parts)
        self._revision += 1
        if self._journal.is_long:
            with suppress(sqlite3.Error):
                # Where that cannot be, the journal just stays long.
                self._journal.write_afresh(_load(self._db))

    def insist(self, changes: Iterable[Change]) -> None:
        """Commit what frees room, also on a full disk."""
        changes = list(changes)
        try:
            self.commit(changes)
        except sqlite3.Error:
            if not self.reserve.release():
                raise
            self.commit(changes)

    def begin(self, kept: Kept) -> None:
        """Write all of this as the first transaction of an epoch, in both."""
        self.epoch, self._revision = kept.epoch, kept.revision
        self._seal = Seal(kept.changes())
        seal = self._seal.text(kept.revision)
        for change in kept.changes()[:1]:
            _apply(self._db, change)
        self._db.execute("UPDATE leader SET revision = ?, seal = ?", (kept.revision, seal))
        self._journal.write_afresh(kept)

    def _write(self, changes: list[Change]) -> dict["Key", int]:
        for change in changes:
            _apply(self._db, change)
        revision, parts = self._revision + 1, self._seal.prepare(changes)
        seal = self._seal.text(revision, parts)
        self._db.execute("UPDATE leader SET revision = ?, seal = ?", (revision, seal))
        self._journal.append(revision, changes)
        return parts

    @contextmanager
    def leading(self) -> Iterator[None]:
        """
        Do something while no other controller can begin; raises :class:`Fenced` if one has.

        A controller that is stopped in here, and wakes an hour later, still leads when it goes on.
        """
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self.insist_on_leading()
            yield
        finally:
            # Also where the disk is full, and it was taken back already.
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def still_leads(self) -> bool:
        """Whether no other controller has begun; a file that cannot be read says nothing."""
        try:
            self.insist_on_leading()
        except Fenced:
            return False
        except sqlite3.Error:
            return True  # Each write looks once more, so that nothing is decided against another.
        return True

    def insist_on_leading(self) -> None:
        """Raise :class:`Fenced` if another controller has begun."""
        with suppress(FileNotFoundError):
            if _identity(self.path) != self._identity:
                raise Fenced(f"{self.path}: was replaced by the file of another controller")
        (epoch,) = self._db.execute("SELECT epoch FROM leader").fetchone()
        if epoch != self.epoch:
            raise Fenced(f"{self.path}: another controller has started (epoch {epoch})")


# --- opening


def _open(path: Path, reading: Reading, least_epoch: int) -> Opened:
    log_of_changes = path.with_name(f"{path.name}.journal")
    found, mended = journal.read(log_of_changes), ""
    try:
        db, kept = _read(path, found)
    except _Damaged as error:
        if found.kept is None or not found.is_whole:
            raise StateError(_hopeless(path, str(error), found=found)) from error
        mended = f"{path}: {error}; it was restored from its journal, and the damaged file is {_aside(path)}"
        _move_aside(path)
        db, kept = _make(path, found.kept)
    if kept.revision and not found.exists:
        mended = f"{log_of_changes}: was missing; it was written again from {path.name}"
    elif found.damage:
        mended = f"{log_of_changes}: {found.damage}; it was written again from {path.name}"
    try:
        file = JobsFile(path, db, log_of_changes=Journal(log_of_changes))
        epoch = max(kept.epoch, found.kept.epoch if found.kept else 0, least_epoch) + 1
        leader = journal.leader(epoch, reading)
        file.begin(kept.after(kept.revision + 1, [leader]))
        db.execute("COMMIT")
        db.execute(f"PRAGMA busy_timeout = {LOCKED_S * 1000:.0f}")
    except BaseException:
        db.close()
        raise
    return Opened(file, kept, mended)


def _read(path: Path, found: Found) -> tuple[sqlite3.Connection, Kept]:
    """Open the file within a transaction that writes, and read it; raises :class:`_Damaged`."""
    if found.exists and (not path.exists() or path.stat().st_size == 0):
        raise _Damaged("is gone" if not path.exists() else "is empty")
    db = _connect(path)
    try:
        kept = _read_checked(db, path)
        if found.kept is not None and kept.revision < found.kept.revision:
            _insist_on_age(kept, found.kept)
            # Its controller was killed between the two, and had not acted upon it.
            _replace_all(db, found.kept)
            kept = found.kept
    except sqlite3.Error as error:
        db.close()
        if _says_damage(error):
            raise _Damaged(f"is damaged ({error})") from error
        raise
    except BaseException:
        db.close()
        raise
    return db, kept


def _insist_on_age(kept: Kept, other: Kept) -> None:
    if kept.revision + 1 < other.revision:
        raise _Damaged(
            f"is older than its journal (revision {kept.revision}, and not {other.revision})"
        )


def _read_checked(db: sqlite3.Connection, path: Path) -> Kept:
    was_sealed = _migrate(db, path)
    damage = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if damage != "ok":
        raise _Damaged(f"is damaged ({' '.join(str(damage).split())})")
    try:
        kept = _load(db)
        seal = Seal(kept.changes()).text(kept.revision)
    except (TypeError, ValueError) as error:
        raise _Damaged(f"is damaged ({error})") from error
    if was_sealed and db.execute("SELECT seal FROM leader").fetchone()[0] != seal:
        raise _Damaged("is damaged (its content does not match its seal)")
    return kept


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, timeout=OPENING_S)
    try:
        path.chmod(0o600)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        db.close()
        if _says_damage(error):
            raise _Damaged(f"is damaged ({error})") from error
        raise
    return db


def _migrate(db: sqlite3.Connection, path: Path) -> bool:
    """Bring the file up to date; tells whether it had a seal before."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise StateError(
            f"{path}: was written by a newer dljob (version {version} of the file, this one knows"
            f" {VERSION}); use that one, or name another folder with --state"
        )
    for step in STEPS[max(0, version) :]:
        for statement in step:
            db.execute(statement)
    db.execute(f"PRAGMA user_version = {VERSION}")
    return bool(version >= VERSION)


def _make(path: Path, kept: Kept) -> tuple[sqlite3.Connection, Kept]:
    """Make the file from its journal."""
    db = _connect(path)
    _migrate(db, path)
    _replace_all(db, kept)
    return db, kept


def _hopeless(path: Path, why: str, *, found: Found) -> str:
    journal_name = f"{path.name}.journal"
    other = (
        f"{journal_name} as well ({found.damage})" if found.exists else f"{journal_name} is gone"
    )
    return (
        f"{path}: {why}, and {other}; put copies of both back, or move both away: then the list begins"
        " empty, and pods that live keep their GPUs"
    )


def _aside(path: Path) -> str:
    return f"{path.name}.damaged"


def _move_aside(path: Path) -> None:
    """Keep the damaged file for inspection; of each file the last one."""
    for end in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(f"{path.name}{end}").replace(path.with_name(f"{path.name}.damaged{end}"))


def _says_damage(error: sqlite3.Error) -> bool:
    name = str(getattr(error, "sqlite_errorname", "")).removeprefix("SQLITE_")
    if name.startswith("IOERR"):
        return name.startswith("IOERR_SHORT_READ")
    return not name.startswith(_NO_DAMAGE)


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


# --- rows and changes


def _load(db: sqlite3.Connection) -> Kept:
    """Read all that is kept; raises :class:`ValueError` or :class:`TypeError` where it is no such thing."""
    ((epoch, revision, boot, since_boot, at),) = db.execute(
        "SELECT epoch, revision, boot, since_boot, at FROM leader"
    ).fetchall()
    origins = dict(db.execute("SELECT name, origin FROM origins"))
    rows = db.execute(
        'SELECT name, "order", document, status, cancelled, spec_generation'
        ' FROM jobs ORDER BY "order"'
    )
    return Kept(
        revision=int(revision),
        epoch=int(epoch),
        reading=Reading(Stamp(str(boot), float(since_boot)), float(at)),
        rows={row[0]: Row(*row[1:])._replace(origin=origins.get(row[0], "")) for row in rows},
        cordons={
            (node, gpu): reason
            for node, gpu, reason in db.execute("SELECT node, gpu, reason FROM cordons")
        },
    )


def _replace_all(db: sqlite3.Connection, kept: Kept) -> None:
    for table in ("jobs", "origins", "cordons"):
        db.execute(f"DELETE FROM {table}")  # noqa: S608 - one of three names
    for change in kept.changes():
        _apply(db, change)


def _apply(db: sqlite3.Connection, change: Change) -> None:
    match change["what"]:
        case "job":
            _insert(db, change["name"], row=Row(*change["row"]))
        case "fields":
            for column, value in change["fields"].items():
                db.execute(COLUMNS[column], (value, change["name"]))
        case "gone":
            db.execute("DELETE FROM jobs WHERE name = ?", (change["name"],))
            db.execute("DELETE FROM origins WHERE name = ?", (change["name"],))
        case "cordon":
            place = change["node"], change["gpu"]
            db.execute("DELETE FROM cordons WHERE node = ? AND gpu = ?", place)
            if change["reason"]:
                db.execute("INSERT INTO cordons VALUES (?, ?, ?)", (*place, change["reason"]))
        case "leader":
            db.execute(
                "UPDATE leader SET epoch = ?, boot = ?, since_boot = ?, at = ?",
                (change["epoch"], *change["reading"]),
            )


def _insert(db: sqlite3.Connection, name: str, *, row: Row) -> None:
    db.execute(
        'INSERT INTO jobs (name, "order", document, status, cancelled, spec_generation)'
        " VALUES (?, ?, ?, ?, ?, ?)",
        (name, *row[:-1]),
    )
    if row.origin:
        db.execute(COLUMNS["origin"], (row.origin, name))
