"""
The file of the list of jobs: opened, checked, restored from its copy, and written by one controller.

SQLite's rollback journal makes each change complete and durable: a controller that is killed leaves all of a change or
nothing. It costs several writes to the disk for each change, which is little here because jobs change rarely. Unlike a
write-ahead log it holds no committed change, so its loss never turns the list into an earlier one.

If the file is damaged or missing, its copy takes its place. :mod:`dljob.local.jobs.relisting` completes it from the folders
of the jobs.
"""

import json
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from dljob.control.situation.clocks import Reading, Stamp
from dljob.control.situation.ports import Fenced
from dljob.local.folders import StateError
from dljob.store.sqlite.database import connect, transaction

log = logging.getLogger(__name__)

OPENING_S: Final = 30.0
"""How long another controller may take for its last write."""
LOCKED_S: Final = 0.05
"""How long to wait while another process has locked the file. The loop does nothing else meanwhile, and tries again later."""
ROOM_BYTES: Final = 1 << 18
"""The free space that the file and its rollback journal each keep for changes on a full disk."""
LEAST_BYTES, LEAST_INODES = 1 << 20, 16
"""With less free space or fewer free inodes on the disk no job is accepted."""
LONGEST_JOURNAL: Final = 1 << 20

VERSION: Final = 5
_COLUMNS = ("order", "document", "status", "cancelled", "spec_generation", "origin")
_SCHEMA = (
    "CREATE TABLE leader (epoch INTEGER NOT NULL, reading TEXT NOT NULL, restored INTEGER NOT NULL)",
    """
    CREATE TABLE jobs (
        name TEXT PRIMARY KEY,
        "order" INTEGER NOT NULL,
        document TEXT NOT NULL,
        status TEXT NOT NULL,
        cancelled INTEGER NOT NULL,
        spec_generation INTEGER NOT NULL,
        origin TEXT NOT NULL
    )
    """,
    "CREATE TABLE cordons (node TEXT, gpu INTEGER, reason TEXT NOT NULL, PRIMARY KEY (node, gpu))",
    "CREATE TABLE holds (namespace TEXT PRIMARY KEY, reason TEXT NOT NULL)",
)


class _DamagedError(Exception):
    """The file is damaged; the message holds the reason."""


class JobsFile:
    """The file, for the life of a controller."""

    def __init__(self, path: Path, db: sqlite3.Connection, *, least_epoch: int) -> None:
        self.path = path
        self.db = db
        self.former_epoch, reading, restored = db.execute("SELECT * FROM leader").fetchone()
        """0 for a new list."""
        boot, since_boot, at = json.loads(reading)
        self.former_reading = Reading(Stamp(boot, since_boot), at)
        """The clocks when the last controller began."""
        self.is_restored = bool(restored)
        """True if the list is a copy to which nothing was added that has happened since."""
        self.epoch = max(int(self.former_epoch), least_epoch) + 1
        self._identity = _identify(path)
        self._copied = -1

    @classmethod
    def open(cls, path: Path, reading: Reading, *, least_epoch: int = 0) -> "JobsFile":
        """Begin an epoch above ``least_epoch``, in which no earlier controller can write.

        Raises :class:`StateError`.
        """
        try:
            # Version 0.1.0 kept free space and inodes in these.
            path.with_name("reserve").unlink(missing_ok=True)
            shutil.rmtree(path.with_name("reserved-inodes"), ignore_errors=True)
            try:
                return _open(path, reading, least_epoch=least_epoch)
            except _DamagedError as error:
                _restore(path, str(error))
            return _open(path, reading, least_epoch=least_epoch)
        except (sqlite3.Error, OSError, _DamagedError) as error:
            raise StateError(
                f"{path}: cannot be used as the list of jobs ({error}); make room or repair the"
                " file, or name another folder with --state"
            ) from error

    def close(self) -> None:
        self.back_up()
        self.db.close()

    def commit(self, statement: str, *rows: Sequence[object]) -> None:
        """Execute a statement for each of these rows; raises :class:`Fenced` or :class:`sqlite3.Error`."""
        with self.leading():
            self.db.executemany(statement, rows)

    def insist_on_room(self) -> None:
        """Refuse a new job on a full disk, and leave the room in the file to changes of other jobs."""
        found = os.statvfs(self.path.parent)
        # A file system that makes inodes as it needs them reports none.
        has_inodes = not found.f_files or found.f_favail >= LEAST_INODES
        if found.f_bavail * found.f_frsize < LEAST_BYTES or not has_inodes:
            raise sqlite3.OperationalError("database or disk is full")
        _keep_room(self.db, self.path)

    def back_up(self) -> None:
        """Renew the copy if the list has changed. An error leaves the former copy until the next change."""
        copy = _copy_of(self.path)
        try:
            if self._copied == self.db.total_changes:
                return
            self._copied = self.db.total_changes
            # Take the lock here, because the backup of sqlite3 would wait for it without end.
            with transaction(self.db, writes=False):
                self.insist_on_leading()
                _write_copy(self.db, copy).replace(copy)
        except Fenced:
            pass
        except (sqlite3.Error, OSError, _DamagedError) as error:
            log.warning("%s: was not renewed (%s)", copy, error)

    @contextmanager
    def leading(self) -> Iterator[None]:
        """Act while no other controller can begin; raise :class:`Fenced` if one has begun.

        A controller that is suspended in here, and resumes an hour later, still leads then.
        """
        with transaction(self.db, writes=True):
            self.insist_on_leading()
            yield

    def still_leads(self) -> bool:
        """Return whether no other controller has begun, as far as the file can be read."""
        try:
            self.insist_on_leading()
        except Fenced:
            return False
        except sqlite3.Error:
            return True  # Each write checks again, so that nothing is decided against another controller.
        return True

    def insist_on_leading(self) -> None:
        with suppress(FileNotFoundError):
            if _identify(self.path) != self._identity:
                raise Fenced(f"{self.path}: was replaced by the file of another controller")
        (epoch,) = self.db.execute("SELECT epoch FROM leader").fetchone()
        if epoch != self.epoch:
            raise Fenced(f"{self.path}: another controller has started (epoch {epoch})")


# --- opening


def _open(path: Path, reading: Reading, *, least_epoch: int) -> JobsFile:
    """Check the file and begin an epoch in it; raises :class:`_DamagedError`."""
    may_be_new = not (_copy_of(path).exists() or _journal_of_version_4(path).exists())
    db = connect(path, patience_seconds=OPENING_S, creates=True)
    try:
        path.chmod(0o600)
        _insist_on_integrity(db, may_be_new=may_be_new)
        with transaction(db, writes=True):
            _upgrade(db, path)
        for pragma in (
            "synchronous = FULL",
            # The journal keeps its space and inode, which a full disk may lack.
            "journal_mode = PERSIST",
            f"journal_size_limit = {LONGEST_JOURNAL}",
            # The environments of jobs may hold secrets.
            "secure_delete = ON",
        ):
            db.execute(f"PRAGMA {pragma}")
        with transaction(db, writes=True):
            file = JobsFile(path, db, least_epoch=least_epoch)
            begun = file.epoch, json.dumps([*reading.stamp, reading.at])
            db.execute("UPDATE leader SET epoch = ?, reading = ?", begun)
        _journal_of_version_4(path).unlink(missing_ok=True)
        _keep_room(db, path)
    except BaseException as error:
        db.close()
        # An OperationalError is one of the disk, of rights or of locks.
        is_damage = isinstance(error, (sqlite3.DatabaseError, LookupError, TypeError, ValueError))
        if is_damage and not isinstance(error, sqlite3.OperationalError):
            raise _DamagedError(f"is damaged ({error})") from error
        raise
    return file


def _insist_on_integrity(db: sqlite3.Connection, *, may_be_new: bool = False) -> None:
    (damage,) = db.execute("PRAGMA integrity_check(1)").fetchone()
    if damage != "ok":
        raise _DamagedError(f"is damaged ({' '.join(str(damage).split())})")
    if not may_be_new and db.execute("PRAGMA user_version").fetchone() == (0,):
        raise _DamagedError("is gone or empty")


def _upgrade(db: sqlite3.Connection, path: Path) -> None:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version == VERSION:
        return
    if version not in (0, 4):
        raise StateError(
            f"{path}: was written by another version of dljob (version {version} of the file, this"
            f" one knows 4 and {VERSION}); use that one, or name another folder with --state"
        )
    for statement in _SCHEMA:
        db.execute(statement)
    if version:
        _insist_on_all_of_version_4(db, path)
        _read_version_4(db)
    else:
        db.execute("INSERT INTO leader VALUES (0, ?, 0)", ('["", 0.0, 0.0]',))
    db.execute(f"PRAGMA user_version = {VERSION}")


def _insist_on_all_of_version_4(db: sqlite3.Connection, path: Path) -> None:
    """Refuse a file of version 4 that lacks changes of its journal.

    If only the last one is missing, the controller was killed between the two writes, before it acted.
    """
    journal = _journal_of_version_4(path)
    # After the last line feed comes an unfinished line.
    lines = journal.read_bytes().split(b"\n")[:-1] if journal.exists() else []
    ((revision,),) = db.execute("SELECT revision FROM seal").fetchall()
    with suppress(ValueError, LookupError, TypeError):
        if json.loads(lines[-1].partition(b" ")[2])["revision"] > revision + 1:
            raise StateError(_restorable(path, f"lacks changes that {journal.name} has"))


def _read_version_4(db: sqlite3.Connection) -> None:
    """Take over a file with a row for each value of a job, and of the list under an empty name."""
    jobs: dict[str, dict[str, object]] = {"": {}}
    for name, column, value in db.execute("SELECT * FROM cells"):
        jobs.setdefault(name, {})[column] = value
    facts = jobs.pop("")
    db.execute("INSERT INTO leader VALUES (?, ?, 0)", (facts.pop("epoch"), facts.pop("reading")))
    db.executemany(
        "INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?)",
        ((name, *(columns[each] for each in _COLUMNS)) for name, columns in jobs.items()),
    )
    for column, reason in facts.items():
        if column.startswith("hold "):
            db.execute("INSERT INTO holds VALUES (?, ?)", (column.removeprefix("hold "), reason))
        else:
            node, _, gpu = column.rpartition("/")
            db.execute("INSERT INTO cordons VALUES (?, ?, ?)", (node, int(gpu), reason))
    db.execute("DROP TABLE cells")
    db.execute("DROP TABLE seal")


def _keep_room(db: sqlite3.Connection, path: Path) -> None:
    """Keep free pages in the file and its journal, so that a full disk prevents no start and no cancellation."""
    with suppress(sqlite3.OperationalError, OSError):
        (free,) = db.execute("PRAGMA freelist_count").fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
        journal = path.with_name(f"{path.name}-journal").stat().st_size
        if min(free * size, journal) < ROOM_BYTES // 2:
            db.execute("DROP TABLE IF EXISTS room")
            db.execute(f"CREATE TABLE room AS SELECT zeroblob({ROOM_BYTES})")
            # The journal keeps the pages, as of any row that is deleted securely.
            db.execute("DROP TABLE room")


# --- the copy


def _write_copy(db: sqlite3.Connection, target: Path, *, restores: bool = False) -> Path:
    """Write a copy that may take the place of ``target``; raises :class:`_DamagedError`."""
    new = target.with_name(f"{target.name}.new")
    new.unlink(missing_ok=True)
    os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        with closing(connect(new, patience_seconds=0.0, creates=False)) as copy:
            # Without a journal: an unfinished copy is removed.
            copy.execute("PRAGMA journal_mode = OFF")
            db.backup(copy)
            _insist_on_integrity(copy)
            if restores:
                copy.execute("UPDATE leader SET restored = 1")
    except BaseException:
        new.unlink()
        raise
    return new


def _restore(path: Path, why: str) -> None:
    """Put the damaged file aside, and a copy of its copy in its place; raises :class:`StateError`."""
    if _journal_of_version_4(path).exists():
        raise StateError(_restorable(path, why))
    copy = _copy_of(path)
    try:
        made = time.localtime(copy.stat().st_mtime)
        with closing(connect(copy, patience_seconds=OPENING_S, creates=False)) as db:
            new = _write_copy(db, path, restores=True)
    except (_DamagedError, sqlite3.DatabaseError, FileNotFoundError) as error:
        if isinstance(error, sqlite3.OperationalError):
            raise
        raise StateError(
            f"{path}: {why}, and {copy.name} {'as well' if copy.exists() else 'is gone'}; put a copy of"
            " it back, or move both away: then the list begins empty, and jobs that live keep their GPUs"
        ) from error
    # The journal first: SQLite would apply it to the file that takes the place.
    for end in ("-journal", ""):
        with suppress(FileNotFoundError):
            path.with_name(f"{path.name}{end}").replace(path.with_name(f"{path.name}.damaged{end}"))
    new.replace(path)
    log.warning(
        "%s: %s; its copy of %s takes its place, with all that the folders of the jobs show; submit jobs"
        " again that are missing, cancel those again that are back; the damaged file is %s.damaged",
        *(path, why, time.strftime("%Y-%m-%d %H:%M:%S", made), path.name),
    )


def _copy_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.copy")


def _journal_of_version_4(path: Path) -> Path:
    return path.with_name(f"{path.name}.journal")


def _restorable(path: Path, why: str) -> str:
    return (
        f"{path}: {why}; start dljob 0.1.0 there once, which restores it from {path.name}.journal"
    )


def _identify(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino
