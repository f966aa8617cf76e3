"""
The jobs of one machine and what was decided about them: the truth of this platform, in one file.

What Kubernetes' API server is on a cluster. A record is on the disk when :meth:`Registry.record`
returns. The profile store is another file, because that may be lost or away without any harm.
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from dlcontrol.documents import read_status, write_status
from dlcontrol.platforms import Entry, Fenced
from dlcontrol.records import Status
from dlcore import jobfile
from dlcore.model import GpuDemand, Job, JobId, Phase, Training
from dllocal.changes import Changes
from dllocal.environments import Origin, Submitter
from dllocal.folders import StateError

_SCHEMA = """
CREATE TABLE leader (epoch INTEGER NOT NULL);
INSERT INTO leader VALUES (0);
CREATE TABLE jobs (
    name TEXT PRIMARY KEY,
    "order" INTEGER NOT NULL,
    document TEXT NOT NULL,
    status TEXT NOT NULL,
    cancelled INTEGER NOT NULL DEFAULT 0,
    spec_generation INTEGER NOT NULL DEFAULT 1
);
CREATE TABLE cordons (node TEXT, gpu INTEGER, reason TEXT NOT NULL, PRIMARY KEY (node, gpu));
"""
_ORIGINS = "CREATE TABLE origins (name TEXT PRIMARY KEY, origin TEXT NOT NULL);"
"""Whose jobs they are, and their environments: apart from the documents, which are shown."""
_VERSION = 2
_CANCELLED, _CANCELLED_KEEPING = 1, 2
"""In the column of that name: with the job's own folder of checkpoints, or without it; else 0."""

OPENING_S = 30.0
"""So long may take what another controller writes last."""
LOCKED_S = 0.05
"""So long is waited for somebody else who has locked the file. No longer, because nothing else is done
meanwhile: whoever wants to write tries again."""


class Registry:
    """One for the life of a controller. Not for several threads."""

    def __init__(self, path: Path, *, epoch: int, db: sqlite3.Connection) -> None:
        self._path = path
        self._db = db
        self.epoch = epoch
        self._entries: dict[JobId, Entry] = {
            entry.job.id: entry for entry in (_entry(row, path) for row in self._rows())
        }
        self._origins = {name: _origin(name, text, path) for name, text in self._origin_rows()}
        self._next_order = 1 + max((e.order for e in self._entries.values()), default=-1)
        self.changes = Changes(self._entries)
        """For whoever watches."""

    @classmethod
    def open(cls, path: Path) -> "Registry":
        """Begin a new epoch: whoever wrote here before can do so no longer."""
        try:
            db = sqlite3.connect(path, isolation_level=None, timeout=OPENING_S)
            path.chmod(0o600)
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            _migrate(db, path)
            db.execute("BEGIN IMMEDIATE")
            db.execute("UPDATE leader SET epoch = epoch + 1")
            (epoch,) = db.execute("SELECT epoch FROM leader").fetchone()
            db.execute("COMMIT")
            db.execute(f"PRAGMA busy_timeout = {LOCKED_S * 1000:.0f}")
        except sqlite3.Error as error:
            raise StateError(
                f"{path}: cannot be used as the list of jobs ({error}); make room or mend the file,"
                " or name another folder with --state"
            ) from error
        return cls(path, epoch=epoch, db=db)

    def close(self) -> None:
        self._db.close()

    @property
    def entries(self) -> Mapping[JobId, Entry]:
        """All jobs, in order of arrival. A new mapping whenever one has changed."""
        return self._entries

    def origin(self, job: JobId) -> Origin:
        """Whose job it is, and its environment. Of a job of before: its server's user, and a login's."""
        return self._origins.get(job) or Origin.of(Submitter.of_this_process(), None)

    # --- written by users

    def submit(
        self, document: Mapping[str, Any], now: float, *, origin: Origin | None = None
    ) -> Entry:
        """Take a job in whose document was checked before."""
        return self.submit_all([document], now, origin=origin)[0]

    def submit_all(
        self,
        documents: Sequence[Mapping[str, Any]],
        now: float,
        *,
        origin: Origin | None = None,
    ) -> tuple[Entry, ...]:
        """Take several jobs in, all or none. Those without an origin are this process's own."""
        kept = origin or Origin.here()
        text = json.dumps(kept.written())
        entries = tuple(
            Entry(
                job=replace(jobfile.parse(document, require_template=True), submitted_at=now),
                order=self._next_order + place,
                status=Status(submitted_at=now),
                document=document,
                spec_generation=1,
            )
            for place, document in enumerate(documents)
        )
        with self._transaction():
            self._db.executemany(
                'INSERT INTO jobs (name, "order", document, status) VALUES (?, ?, ?, ?)',
                [
                    (e.job.id, e.order, json.dumps(e.document), _status_text(e.status))
                    for e in entries
                ],
            )
            self._db.executemany(
                "INSERT OR REPLACE INTO origins VALUES (?, ?)", [(e.job.id, text) for e in entries]
            )
        self._next_order += len(entries)
        self._origins.update(dict.fromkeys([entry.job.id for entry in entries], kept))
        self._set(*entries)
        return entries

    def change(self, entry: Entry, document: Mapping[str, Any]) -> Entry:
        """Give a job another spec, which was checked to be a possible change of what it is now."""
        # What was decided since the entry was read stays decided.
        entry = self._entries[entry.job.id]
        job = jobfile.parse(document, require_template=True)
        changed = replace(
            entry,
            job=replace(job, submitted_at=entry.job.submitted_at),
            document=document,
            spec_generation=entry.spec_generation + 1,
        )
        with self._transaction():
            self._db.execute(
                "UPDATE jobs SET document = ?, spec_generation = ? WHERE name = ?",
                (json.dumps(document), changed.spec_generation, job.id),
            )
        self._set(changed)
        return changed

    def cancel(self, job: JobId, *, keep_checkpoints: bool = False) -> None:
        """
        Let a job be removed as soon as nothing of it is left but, if so wished, its checkpoints.

        A later request can still save the checkpoints, and no later one can give them up again.
        """
        if self._entries[job].cancelled and (self.keeps_checkpoints(job) or not keep_checkpoints):
            return
        how = _CANCELLED_KEEPING if keep_checkpoints else _CANCELLED
        with self._transaction():
            self._db.execute("UPDATE jobs SET cancelled = ? WHERE name = ?", (how, job))
        self._set(replace(self._entries[job], cancelled=True))

    def keeps_checkpoints(self, job: JobId) -> bool:
        """Whether the checkpoints of a job outlive it: unless its user cancelled it without that wish."""
        row = self._db.execute("SELECT cancelled FROM jobs WHERE name = ?", (job,)).fetchone()
        return row is not None and row[0] != _CANCELLED

    # --- written by the loop

    def record(self, statuses: Mapping[JobId, Status]) -> None:
        """Keep what was decided; on the disk when this returns."""
        rows = [(_status_text(status), job) for job, status in statuses.items()]
        with self._transaction():
            self._db.executemany("UPDATE jobs SET status = ? WHERE name = ?", rows)
        entries = dict(self._entries)
        for job, status in statuses.items():
            if job in entries:
                entries[job] = replace(entries[job], status=status)
        self._entries = entries
        self.changes.note(statuses.keys() & entries.keys())

    def forget(self, job: JobId) -> None:
        """Remove a job of which nothing is left."""
        with self._transaction():
            self._db.execute("DELETE FROM jobs WHERE name = ?", (job,))
            self._db.execute("DELETE FROM origins WHERE name = ?", (job,))
        self._origins.pop(job, None)
        self._entries = {name: entry for name, entry in self._entries.items() if name != job}
        self.changes.note_removed(job)

    # --- GPUs that were taken out by hand

    def cordons(self) -> dict[tuple[str, int], str]:
        """Which GPUs are not to be given away, and why."""
        rows = self._db.execute("SELECT node, gpu, reason FROM cordons")
        return {(node, gpu): reason for node, gpu, reason in rows}

    def cordon(self, node: str, gpu: int, reason: str) -> None:
        """Give this GPU to nobody from now on; an empty reason takes that back."""
        with self._transaction():
            self._db.execute("DELETE FROM cordons WHERE node = ? AND gpu = ?", (node, gpu))
            if reason:
                self._db.execute("INSERT INTO cordons VALUES (?, ?, ?)", (node, gpu, reason))

    # --- the file

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Write as the one that leads, or not at all."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._insist_on_leading()
            yield
            self._db.execute("COMMIT")
        except BaseException:
            # Where the disk is full, it was taken back already.
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def still_leads(self) -> bool:
        """Look into the file whether no other controller has begun; one that cannot be read says nothing."""
        try:
            self._insist_on_leading()
        except Fenced:
            return False
        except sqlite3.Error:
            return True  # Each write looks once more, so that nothing is decided against another.
        return True

    def _insist_on_leading(self) -> None:
        (epoch,) = self._db.execute("SELECT epoch FROM leader").fetchone()
        if epoch != self.epoch:
            raise Fenced(f"{self._path}: another controller has begun (epoch {epoch})")

    def _rows(self) -> list[tuple[Any, ...]]:
        return self._db.execute(
            'SELECT name, "order", document, status, cancelled, spec_generation'
            ' FROM jobs ORDER BY "order"'
        ).fetchall()

    def _origin_rows(self) -> list[tuple[JobId, str]]:
        return self._db.execute("SELECT name, origin FROM origins").fetchall()

    def _set(self, *entries: Entry) -> None:
        self._entries = {**self._entries, **{entry.job.id: entry for entry in entries}}
        self.changes.note([entry.job.id for entry in entries])


def _migrate(db: sqlite3.Connection, path: Path) -> None:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > _VERSION:
        raise StateError(
            f"{path}: was written by a newer dljob (version {version} of the file, this one knows"
            f" {_VERSION}); use that one, or name another folder with --state"
        )
    if version == 0:
        db.executescript(f"BEGIN; {_SCHEMA} {_ORIGINS} PRAGMA user_version = {_VERSION}; COMMIT;")
    elif version == 1:
        db.executescript(f"BEGIN; {_ORIGINS} PRAGMA user_version = {_VERSION}; COMMIT;")


def _origin(name: str, text: str, path: Path) -> Origin:
    try:
        return Origin.read(json.loads(text))
    except Exception as error:
        # Without it the job could run as another user than its own.
        raise StateError(
            f"{path}: whose job {name} is cannot be read ({error}); use the dljob that has written"
            " it, or name another folder with --state"
        ) from error


def _entry(row: tuple[Any, ...], path: Path) -> Entry:
    name, order, text, status_text, cancelled, spec_generation = row
    try:
        status = read_status(json.loads(status_text))
    except Exception as error:
        # Without it nobody knows what the job may hold.
        raise StateError(
            f"{path}: what was decided about job {name} cannot be read ({error}); use the dljob that"
            " has written it, or name another folder with --state"
        ) from error
    job, document, problem = _read_document(JobId(name), text)
    return Entry(
        job=replace(job, submitted_at=status.submitted_at),
        order=order,
        status=status,
        document=document,
        cancelled=bool(cancelled),
        problem=problem,
        spec_generation=spec_generation,
    )


def _read_document(name: JobId, text: str) -> tuple[Job, Mapping[str, Any], str]:
    """Read what a user has written; what cannot be read any more keeps nobody else from training."""
    try:
        document = json.loads(text)
        return jobfile.parse(document, require_template=True), document, ""
    except jobfile.JobFileError as error:
        why = error.lines()[0]
    except ValueError as error:
        why = str(error)
    namespace, _, own = name.rpartition("/")
    metadata = {"name": own, **({"namespace": namespace} if namespace else {})}
    unread = Job(id=name, gpus=GpuDemand(options=(1,), requested=1), training=Training())
    problem = f"its spec can no longer be read ({why}); cancel it, and submit it anew"
    return unread, {"metadata": metadata, "spec": {}}, problem


def _status_text(status: Status) -> str:
    return json.dumps(write_status(status))


def is_over(entry: Entry) -> bool:
    """Whether a job has ended, and all that it had is proven to be gone."""
    ended = entry.status.phase in (Phase.COMPLETED, Phase.FAILED) or entry.cancelled
    return ended and not entry.status.pods


def why_not_written(error: sqlite3.Error) -> str:
    """Say why the list of jobs cannot be written, and what to do."""
    if is_locked(error):
        return f"cannot be written ({error}); end whatever else uses it"
    return f"cannot be written ({error}); make room on its disk"


def is_locked(error: sqlite3.Error) -> bool:
    """Whether somebody else has the file at the moment, and it may be tried again."""
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
