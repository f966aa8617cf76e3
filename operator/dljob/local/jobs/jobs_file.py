"""
The file of the list of jobs, with its journal: opened, checked, restored, and written by one controller.

:mod:`dljob.local.jobs.registry` reads the list once, at the start, and writes each change. Every opening checks both copies:

- the file holds a seal, a checksum of all cells, which shows flipped bits and lost cells;
- the journal (:mod:`dljob.local.jobs.journal`) holds every transaction with a checksum, and is written first.

A file that is damaged, missing or older than its journal is restored from the journal; a damaged journal is rewritten
from the file. If both are damaged no controller starts, because it would assign GPUs that jobs still hold.
"""

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from dljob.control.situation.clocks import Reading
from dljob.control.situation.ports import Fenced
from dljob.local.folders import StateError
from dljob.local.jobs import journal
from dljob.local.jobs.cells import EPOCH, Change, Content, Key, Seal, leader
from dljob.local.jobs.jobs_schema import STEPS
from dljob.local.jobs.journal import Found, Journal
from dljob.local.jobs.reserve import Reserve
from dljob.store.sqlite.database import (
    connect,
    enter_write_ahead_mode,
    name_of,
    transaction,
    upgrade,
)

log = logging.getLogger(__name__)

OPENING_S: Final = 30.0
"""How long another controller may take for its last write."""
LOCKED_S: Final = 0.05
"""How long to wait while another process has locked the file. The loop does nothing else meanwhile, and tries again later."""

_NO_DAMAGE = tuple(
    f"SQLITE_{name}"
    for name in ("BUSY", "LOCKED", "FULL", "READONLY", "CANTOPEN", "PERM", "AUTH", "NOMEM")
)
"""SQLite errors that do not mean that the content of the file is damaged."""


class _DamagedError(Exception):
    """The file is damaged; the message holds the reason."""


class Opened(NamedTuple):
    """A list of jobs that a new controller has opened."""

    file: "JobsFile"
    content: Content
    """The list before this controller began."""
    mended: str
    """The damage that was repaired, in one line; empty if there was none."""


class JobsFile:
    """The file and its journal, for the life of a controller."""

    def __init__(self, path: Path, db: sqlite3.Connection, *, content: Content) -> None:
        self.path = path
        self.epoch = content.epoch
        self.reserve = Reserve(path)
        self._db = db
        self._journal = Journal(_journal_of(path))
        self._revision = content.revision
        self._seal = Seal(content.cells)
        self._identity = _identify(path)

    @classmethod
    def open(cls, path: Path, reading: Reading, *, least_epoch: int = 0) -> Opened:
        """Begin an epoch of at least ``least_epoch``, in which no earlier controller can write.

        Raises :class:`StateError`.
        """
        try:
            try:
                opened = _open(path, reading, least_epoch=least_epoch)
            except (sqlite3.Error, OSError):
                if not Reserve(path).release():
                    raise
                log.warning(
                    "%s: its disk is full; the room and inodes that are kept for it are used", path
                )
                opened = _open(path, reading, least_epoch=least_epoch)
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

    def commit(self, change: Change) -> None:
        """Write a change to the disk; raises :class:`Fenced` or :class:`sqlite3.Error`."""
        length = self._journal.length
        try:
            with self.leading():
                parts = self._write(change)
        except BaseException:
            self._journal.truncate(length)
            raise
        self._seal.accept(parts)
        self._revision += 1
        if self._journal.is_long:
            with suppress(sqlite3.Error):
                self._journal.rewrite(_load(self._db))

    def insist(self, change: Change) -> None:
        """Write a change that frees room, even on a full disk."""
        try:
            self.commit(change)
        except sqlite3.Error:
            if not self.reserve.release():
                raise
            self.commit(change)

    def begin(self, content: Content) -> None:
        """Write the whole list to a new journal, and its seal to the file."""
        self._db.execute("UPDATE seal SET revision = ?, seal = ?", self._sealed(self._revision))
        self._journal.rewrite(content)

    def _write(self, change: Change) -> dict[Key, int]:
        _put(self._db, change)
        parts = self._seal.prepare(change)
        sealed = self._sealed(self._revision + 1, parts)
        self._db.execute("UPDATE seal SET revision = ?, seal = ?", sealed)
        self._journal.append(self._revision + 1, change)
        return parts

    def _sealed(self, revision: int, parts: dict[Key, int] | None = None) -> tuple[int, str]:
        return revision, self._seal.text(revision, parts or {})

    @contextmanager
    def leading(self) -> Iterator[None]:
        """Act while no other controller can begin; raise :class:`Fenced` if one has begun.

        A controller that is suspended in here, and resumes an hour later, still leads then.
        """
        with transaction(self._db, writes=True):
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
        query = """SELECT value FROM cells WHERE name = ? AND "column" = ?"""
        (epoch,) = self._db.execute(query, EPOCH).fetchone()
        if epoch != self.epoch:
            raise Fenced(f"{self.path}: another controller has started (epoch {epoch})")


# --- opening


def _open(path: Path, reading: Reading, *, least_epoch: int) -> Opened:
    found = journal.read(_journal_of(path))
    try:
        _insist_on_existence(path, found)
        return _connect_and_begin(path, found, reading=reading, least_epoch=least_epoch)
    except _DamagedError as error:
        if found.content is None or not found.is_whole:
            raise StateError(_hopeless(path, str(error), found=found)) from error
        _move_aside(path)
        opened = _connect_and_begin(
            path, found, reading=reading, least_epoch=least_epoch, restores=True
        )
        aside = f"the damaged file is {path.name}.damaged"
        return opened._replace(
            mended=f"{path}: {error}; it was restored from its journal, and {aside}"
        )


def _insist_on_existence(path: Path, found: Found) -> None:
    if found.exists and (not path.exists() or path.stat().st_size == 0):
        raise _DamagedError("is gone" if not path.exists() else "is empty")


def _connect_and_begin(
    path: Path, found: Found, *, reading: Reading, least_epoch: int, restores: bool = False
) -> Opened:
    """Read the file and begin an epoch in it, in one transaction; raises :class:`_DamagedError`."""
    db = connect(path, patience_seconds=OPENING_S, creates=True)
    try:
        path.chmod(0o600)
        enter_write_ahead_mode(db, patience_seconds=OPENING_S)
        db.execute("PRAGMA synchronous=FULL")
        with transaction(db, writes=True):
            is_current = _upgrade(db, path)
            content = _newer(db, _read(db, is_sealed=is_current), found=found, restores=restores)
            known = found.content.epoch if found.content is not None else 0
            change = leader(max(content.epoch, known, least_epoch) + 1, reading)
            _put(db, change)
            begun = Content({**content.cells, **change}, content.revision + 1)
            file = JobsFile(path, db, content=begun)
            file.begin(begun)
        db.execute(f"PRAGMA busy_timeout = {LOCKED_S * 1000:.0f}")
    except sqlite3.Error as error:
        db.close()
        if _says_damage(error):
            raise _DamagedError(f"is damaged ({error})") from error
        raise
    except BaseException:
        db.close()
        raise
    return Opened(file, content, _mended(path, found, content=content) if is_current else "")


def _newer(db: sqlite3.Connection, content: Content, *, found: Found, restores: bool) -> Content:
    """Update the file to the state of its journal if the journal is newer."""
    known = found.content
    if known is None or known.revision <= content.revision:
        return content
    # If only the last change is missing, the controller was killed between the two writes, before
    # it acted.
    if not restores and content.revision + 1 < known.revision:
        raise _DamagedError(
            f"is older than its journal (revision {content.revision}, and not {known.revision})"
        )
    db.execute("DELETE FROM cells")
    _put(db, known.cells)
    return known


def _upgrade(db: sqlite3.Connection, path: Path) -> bool:
    """Upgrade the file; return whether it was current already."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > len(STEPS):
        raise StateError(
            f"{path}: was written by a newer dljob (version {version} of the file, this one knows"
            f" {len(STEPS)}); use that one, or name another folder with --state"
        )
    upgrade(db, STEPS, version=max(0, version))
    return bool(version == len(STEPS))


def _read(db: sqlite3.Connection, *, is_sealed: bool) -> Content:
    damage = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if damage != "ok":
        raise _DamagedError(f"is damaged ({' '.join(str(damage).split())})")
    try:
        content = _load(db)
        seal = Seal(content.cells).text(content.revision)
    except (TypeError, ValueError) as error:
        raise _DamagedError(f"is damaged ({error})") from error
    if is_sealed and db.execute("SELECT seal FROM seal").fetchone()[0] != seal:
        raise _DamagedError("is damaged (its content does not match its seal)")
    return content


def _mended(path: Path, found: Found, *, content: Content) -> str:
    name = _journal_of(path)
    if content.revision and not found.exists:
        return f"{name}: was missing; it was written again from {path.name}"
    return f"{name}: {found.damage}; it was written again from {path.name}" if found.damage else ""


def _hopeless(path: Path, why: str, *, found: Found) -> str:
    name = _journal_of(path).name
    other = f"{name} as well ({found.damage})" if found.exists else f"{name} is gone"
    return (
        f"{path}: {why}, and {other}; put copies of both back, or move both away: then the list begins"
        " empty, and jobs that live keep their GPUs"
    )


def _journal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.journal")


def _move_aside(path: Path) -> None:
    """Keep the damaged file for inspection, in place of an earlier one."""
    for end in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(f"{path.name}{end}").replace(path.with_name(f"{path.name}.damaged{end}"))


def _says_damage(error: sqlite3.Error) -> bool:
    # That of our own journal has no name of SQLite's.
    if isinstance(error.__cause__, OSError):
        return False
    name = name_of(error)
    if name.startswith("SQLITE_IOERR"):
        return name.startswith("SQLITE_IOERR_SHORT_READ")
    return not name.startswith(_NO_DAMAGE)


def _identify(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _load(db: sqlite3.Connection) -> Content:
    cells = {(name, column): value for name, column, value in db.execute("SELECT * FROM cells")}
    ((revision,),) = db.execute("SELECT revision FROM seal").fetchall()
    return Content(cells, int(revision))


def _put(db: sqlite3.Connection, change: Change) -> None:
    for key, value in change.items():
        if value is None:
            db.execute("""DELETE FROM cells WHERE name = ? AND "column" = ?""", key)
        else:
            db.execute("INSERT OR REPLACE INTO cells VALUES (?, ?, ?)", (*key, value))
