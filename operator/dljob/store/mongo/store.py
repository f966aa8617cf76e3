"""
The store on a server with MongoDB's protocol, for controllers that share what they learn.

It works with simple servers of the protocol: without transactions, change streams, expiry, and conditional updates, which
not every server makes atomic. It relies on one rule: the server refuses a second document with the same ``_id``. So each
revision of a profile is a document, named by type and number. The second writer of a revision reads again and retries.
The highest revision counts, and earlier ones are removed.
"""

import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from threading import Lock
from typing import Any, NamedTuple
from uuid import uuid4

from pymongo.errors import BulkWriteError, DuplicateKeyError

from dljob.core.documents import profilefile
from dljob.core.model import JobId
from dljob.core.profiles import JobType
from dljob.store.addresses import MongoAddress
from dljob.store.mongo.server import NEWEST_FIRST, Document, MongoServer
from dljob.store.rows import HISTORY, PRUNE_EVERY, SAMPLE, RecordRow
from dljob.store.store import USUAL_BOUNDS, Bounds, Change, ProfileDocuments, StoredProfile, Ticket
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
from dljob_wire.kinds import camel

TRUST_SECONDS = 60.0
"""How long this store assumes that it alone writes the tables of GPUs and jobs."""

_OURS = ("_id", "key", "revision", "tickets", "forgotten")
"""The fields of a document other than the profile."""

_DUPLICATE = 11000


class _Shown(NamedTuple):
    """The rows that this store wrote last into a table, and the time."""

    rows: dict[Key, GpuRow | JobRow]
    at: float


class MongoStore:
    """A store on a server. The first request connects; every method gives up after ``patience_seconds``."""

    def __init__(
        self,
        address: MongoAddress,
        *,
        bounds: Bounds = USUAL_BOUNDS,
        patience_seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bounds = bounds
        self._server = MongoServer(address, patience_seconds=patience_seconds)
        self._patience = patience_seconds
        self._clock = clock
        self._documents = ProfileDocuments(address.shown)
        self._shown: dict[str, _Shown] = {}
        self._counting = Lock()
        self._replacing = Lock()
        self._entries: Counter[str] | None = None
        """The number of entries of each job, as far as this process knows."""
        self._unpruned = PRUNE_EVERY
        """How many rows were added since the oldest were removed."""

    @property
    def address(self) -> str:
        return self._server.address

    def close(self) -> None:
        self._server.close()

    # --- profiles

    def profiles(self, types: Iterable[JobType] | None = None) -> Mapping[JobType, StoredProfile]:
        with self._server.asking() as db:
            which = {} if types is None else {"key": {"$in": [key_of(kind) for kind in types]}}
            newest = newest_of(db.profiles.find(which))
        stored = {kind: self._read(kind, document) for kind, document in newest.items()}
        return {kind: each for kind, each in stored.items() if each.profile is not None}

    def revisions(self) -> Mapping[JobType, int]:
        with self._server.asking() as db:
            newest = newest_of(db.profiles.find({}, {"key": 1, "revision": 1, "forgotten": 1}))
        return {
            kind: document["revision"]
            for kind, document in newest.items()
            if not document.get("forgotten")
        }

    def change(self, kind: JobType, change: Change, ticket: Ticket | None = None) -> StoredProfile:
        # The ticket distinguishes this change from others.
        ticket = ticket or Ticket(uuid4().hex, 0)
        deadline = time.monotonic() + self._patience
        with self._server.asking() as db:
            while time.monotonic() < deadline:
                old = self._find(db, kind)
                new = old.changed(change, ticket)
                if new is old:
                    return old
                is_added = self._add(db, kind, new=new)
                if is_added:
                    # Other writers may have dropped the ticket before `_find_made` looks for it.
                    ticket = ticket.tried(old.revision)
                if is_added and (made := self._find_made(db, kind, ticket=ticket)):
                    return made
                time.sleep(random.uniform(0.0, 0.02))
        raise self._server.away(
            f"was too busy to change the profile of {kind} for {self._patience:g} s",
            "look for other writers",
        )

    def _find_made(self, db: Any, kind: JobType, *, ticket: Ticket) -> StoredProfile | None:
        """
        Return the profile if it contains the change, and remove earlier revisions.

        A writer that pauses between reading and adding may add a revision that was already removed; then the highest
        revision lacks the change.
        """
        found = self._find(db, kind)
        if not found.has(ticket):
            return None
        # All of them, because a writer may have been killed before this line.
        db.profiles.delete_many({"key": key_of(kind), "revision": {"$lt": found.revision}})
        return found

    def _find(self, db: Any, kind: JobType) -> StoredProfile:
        ours = {"key": key_of(kind), "revision": {"$gt": 0}}
        document = db.profiles.find_one(ours, sort=[("revision", -1)])
        return StoredProfile(None) if document is None else self._read(kind, document)

    def _add(self, db: Any, kind: JobType, *, new: StoredProfile) -> bool:
        """Write a revision; returns whether no other writer was first."""
        profile = {} if new.profile is None else profilefile.render(new.profile)
        key = key_of(kind)
        try:
            db.profiles.insert_one(
                {
                    "_id": f"{key}#{new.revision}",
                    "key": key,
                    "revision": new.revision,
                    "tickets": Ticket.write_all(new.tickets),
                    "forgotten": new.profile is None,
                    **profile,
                }
            )
        except DuplicateKeyError:
            return False
        self._documents.remember(kind, profile, profile=new.profile)
        return True

    def _read(self, kind: JobType, document: Document) -> StoredProfile:
        tickets = Ticket.read_all(document.get("tickets"))
        profile = None
        if not document.get("forgotten"):
            raw = {name: document[name] for name in document if name not in _OURS}
            profile = self._documents.read(kind, raw)
        return StoredProfile(profile, document["revision"], tickets)

    # --- what policies remember

    def keep_policy_state(self, policy: str, document: str) -> None:
        self._put("policy_states", {"_id": policy, "document": document})

    def policy_states(self) -> Mapping[str, str]:
        with self._server.asking() as db:
            return {each["_id"]: each["document"] for each in db.policy_states.find({})}

    # --- the record

    def record(self, rows: Sequence[RecordRow]) -> None:
        # The last of those with one id counts.
        documents = {row.id: _document(row) for row in rows}
        if not documents:
            return
        # The count is read and written back, so that two writers would lose entries from it.
        with self._counting:
            # If the write fails, it is unknown which entries have arrived, so the next one counts them again.
            entries_of, self._entries = self._entries, None
            with self._server.asking() as db:
                entries_of = entries_of or _count(db)
                known = self._insert(db.record, documents)
            for document in known:
                self._put("record", document)
            fresh = documents.keys() - {document["_id"] for document in known}
            entries_of.update(row.job for row in rows if row.is_history and row.id in fresh)
            self._entries = entries_of
            self._forget(entries_of)
            self._unpruned += len(documents)
            if self._unpruned >= self._bounds.prune_every:
                with self._server.asking() as db:
                    prune(db.record, self._bounds)
                self._unpruned = 0

    @staticmethod
    def _insert(collection: Any, documents: Mapping[str, Document]) -> list[Document]:
        """Add documents; returns those whose id exists."""
        try:
            collection.insert_many(list(documents.values()), ordered=False)
        except BulkWriteError as error:
            wrong = error.details["writeErrors"]
            if any(each["code"] != _DUPLICATE for each in wrong):
                raise
            return [documents[each["op"]["_id"]] for each in wrong]
        return []

    def _put(self, collection: str, document: Document) -> None:
        """
        Replace the document with this id, one at a time, because FerretDB 1.24 hangs with several.
        """
        with self._server.asking() as db:
            db[collection].replace_one({"_id": document["_id"]}, document, upsert=True)

    def _forget(self, entries: Counter[str]) -> None:
        """
        Remove entries beyond the bounds, and a few more, because finding the oldest takes time.
        """
        each, in_all = self._bounds.entries_per_job, self._bounds.entries
        for job in [job for job, count in entries.items() if count > each]:
            self._forget_all_but({"job": job}, each - each // 10)
            entries[job] = each - each // 10
        if entries.total() > in_all:
            self._forget_all_but({}, in_all - in_all // 10)
            self._entries = None

    def _forget_all_but(self, which: Document, newest: int) -> None:
        with self._server.asking() as db:
            found = db.record.find({**_HISTORY, **which}, {"_id": 1})
            old = found.sort(NEWEST_FIRST).skip(newest)
            db.record.delete_many({"_id": {"$in": [each["_id"] for each in old]}})

    def history(self, job: JobId | None = None, *, limit: int = 100) -> tuple[RecordRow, ...]:
        with self._server.asking() as db:
            found = db.record.find(_HISTORY if job is None else {**_HISTORY, "job": job})
            documents = list(found.sort(NEWEST_FIRST).limit(limit)) if limit > 0 else []
        return tuple(map(_row, documents))

    def rows(self) -> tuple[RecordRow, ...]:
        with self._server.asking() as db:
            found = db.record.find({}).sort([("at", 1), ("place", 1), ("_id", 1)])
            return tuple(map(_row, found))

    # --- the tables

    def replace_gpus(self, rows: Sequence[GpuRow]) -> None:
        self._replace("gpus", rows)

    def replace_jobs(self, rows: Sequence[JobRow]) -> None:
        self._replace("jobs", rows)

    def gpus(self) -> tuple[GpuRow, ...]:
        return self._table("gpus", GpuRow, order=["node", "gpu"])

    def jobs(self) -> tuple[JobRow, ...]:
        return self._table("jobs", JobRow, order=["job"])

    def _replace(self, table: str, rows: Sequence[GpuRow] | Sequence[JobRow]) -> None:
        wanted: dict[Key, GpuRow | JobRow] = {row.key: row for row in rows}
        with self._replacing:
            # After an error the next use reads the table again.
            shown = self._shown.pop(table, None)
            if shown is None or self._clock() > shown.at + TRUST_SECONDS:
                # Before the read, after which another program may write.
                at = self._clock()
                with self._server.asking() as db:
                    there = by_id(db[table].find({}))
                written, gone = differences(there, by_id(map(document_of, wanted.values())))
            else:
                # Our writes do not prolong the time, so that other programs' rows are found within TRUST_SECONDS.
                at = shown.at
                changed, gone = differences(shown.rows, wanted)
                written = list(map(document_of, changed))
            self._write(table, written, gone=gone)
            self._shown[table] = _Shown(wanted, at)

    def _write(self, table: str, written: Iterable[Document], *, gone: Sequence[Key]) -> None:
        with self._server.asking() as db:
            if gone:
                db[table].delete_many({"_id": {"$in": list(map(id_of, gone))}})
            documents = {document["_id"]: document for document in written}
            known = self._insert(db[table], documents) if documents else []
        for document in known:
            self._put(table, document)

    def _table(self, table: str, kind: type[R], *, order: Sequence[str]) -> tuple[R, ...]:
        with self._server.asking() as db:
            documents = list(db[table].find({}).sort([(name, 1) for name in order]))
        return tuple(read_rows(kind, documents, as_record=record_of, address=self.address))


_HISTORY: Document = {"kind": {"$in": list(HISTORY)}}


def _document(row: RecordRow) -> Document:
    document = asdict(row)
    return {"_id": document.pop("id"), **document}


def _row(document: Document) -> RecordRow:
    return RecordRow(id=document["_id"], **{name: document[name] for name in _COLUMNS})


_COLUMNS = [each.name for each in fields(RecordRow) if each.name != "id"]


def _count(db: Any) -> Counter[str]:
    groups = db.record.aggregate(
        [{"$match": _HISTORY}, {"$group": {"_id": "$job", "entries": {"$sum": 1}}}]
    )
    return Counter({each["_id"]: each["entries"] for each in groups})


# --- documents


def key_of(kind: JobType) -> str:
    return json.dumps(kind, ensure_ascii=False)


def newest_of(documents: Iterable[Document]) -> dict[JobType, Document]:
    """Return the highest revision of each type."""
    newest: dict[JobType, Document] = {}
    for document in documents:
        kind = _kind_of(document)
        if kind is not None and document["revision"] > newest.get(kind, _NONE)["revision"]:
            newest[kind] = document
    return newest


_NONE: Document = {"revision": 0}


def _kind_of(document: Document) -> JobType | None:
    """Return the type of a document; ``None`` if the document is not ours."""
    match document:
        case {"key": str(key), "revision": int()}:
            with suppress(ValueError, TypeError):
                return JobType(*json.loads(key))
    return None


def id_of(key: Key) -> str:
    return "/".join(map(str, key))


def by_id(documents: Iterable[Document]) -> dict[Key, Document]:
    return {(document["_id"],): document for document in documents}


def document_of(row: Row) -> Document:
    """Write a row with field names as in documents of Kubernetes."""
    return {
        "_id": id_of(row.key),
        **{camel(name): value for name, value in to_record(row).items()},
    }


def record_of(document: Document) -> Record:
    """Read the fields of a row from :func:`document_of`."""
    record = {
        re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name): value
        for name, value in document.items()
    }
    return {**record, "id": document["_id"]}


def prune(collection: Any, bounds: Bounds) -> None:
    """Remove rows that are too old, and the oldest ones outside of the history that are too many."""
    if bounds.days:
        collection.delete_many({"at": {"$lt": bounds.oldest}})
    others = {"$nin": [*HISTORY, SAMPLE]}
    for kind, most in ((others, bounds.moments), (SAMPLE, bounds.samples)):
        found = collection.find({"kind": kind}, {"_id": 1}).sort([("at", -1), ("_id", -1)])
        old = [each["_id"] for each in found.skip(most)]
        if old:
            collection.delete_many({"_id": {"$in": old}})
