"""
The store on a server that speaks as MongoDB does: for controllers that share what they learn.

Fulfils :class:`dlstore.store.Store`, and is the only module that knows the driver. It does with
what simple servers of the protocol offer too: no transactions, no change streams, no expiry.

Not even an update that depends on what it replaces is asked for, because not every such server
makes it in one step. Only this is relied on: of two documents with one ``_id``, the second is
refused. So each revision of a profile is a document of its own, named for its type and number;
whoever comes second reads anew and tries again. Former revisions are removed, so that there is one
document a type but for instants; the highest revision counts.
"""

import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, NamedTuple
from uuid import uuid4

import pymongo
from pymongo import MongoClient
from pymongo.errors import (
    BulkWriteError,
    ConfigurationError,
    DuplicateKeyError,
    InvalidName,
    OperationFailure,
    PyMongoError,
)
from pymongo.uri_parser import parse_uri

from dlcore.documents import profilefile
from dlcore.model import JobId
from dlcore.profiles import JobType
from dlstore import mongo_timeline
from dlstore.addresses import PASSWORD, USERNAME, MongoAddress
from dlstore.mongo_documents import (
    Document,
    by_id,
    document_of,
    id_of,
    key_of,
    newest_of,
    record_of,
)
from dlstore.store import (
    USUAL_BOUNDS,
    Bounds,
    Change,
    Documents,
    StoreAway,
    Stored,
    StoreError,
    StoreUnusable,
    Ticket,
)
from dlstore.tables import (
    GpuRow,
    HistoryEntry,
    JobRow,
    Key,
    R,
    differences,
    read_rows,
)
from dlstore.timeline import TimelineRow, prune_every

SCHEMA = 1
"""The version of what follows; a server that holds a newer one is left alone."""

TRUST_SECONDS = 60.0
"""For so long it is believed that nobody else writes the tables of GPUs and jobs."""

_NEWEST_FIRST = [("at", -1), ("place", -1), ("_id", -1)]
_OURS = ("_id", "key", "revision", "tickets", "forgotten")
"""What stands in a document beside the profile."""

_MISUNDERSTOOD = (PyMongoError, OSError, TypeError, ValueError)
"""What the driver raises about a URL, and about the files that it names."""
_REFUSED = frozenset({13, 18, 8000})
"""The codes of a server that wants other credentials."""
_DISK_FULL = 14031
_DUPLICATE = 11000


class _Shown(NamedTuple):
    """What a table was made to be, and when."""

    rows: dict[Key, GpuRow | JobRow]
    at: float


class MongoStore:
    """
    A store on a server. Whether that is there turns out when something is asked of it.

    Every method gives up after ``patience_seconds``.
    """

    def __init__(
        self,
        address: MongoAddress,
        *,
        bounds: Bounds = USUAL_BOUNDS,
        patience_seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._at = address
        self._bounds = bounds
        self._patience = patience_seconds
        self._clock = clock
        self._documents = Documents(address.shown)
        self._shown: dict[str, _Shown] = {}
        self._connecting = Lock()
        self._counting = Lock()
        self._replacing = Lock()
        self._entries: Counter[str] | None = None
        """How many entries the history has of each job, as far as this process knows."""
        self._unpruned = 0
        """How many rows of the timeline were added since the oldest were removed."""
        self._client: MongoClient[Document] | None = None
        self._is_ready = False
        if not address.is_looked_up:
            self._check_url()

    def _check_url(self) -> None:
        try:
            parse_uri(self._at.url, validate=True, warn=False)
        except _MISUNDERSTOOD as error:
            # The driver's own words are not chained: they may quote the URL.
            raise self._translated(error) from None

    @property
    def address(self) -> str:
        return self._at.shown

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    # --- profiles

    def profiles(self, types: Iterable[JobType] | None = None) -> Mapping[JobType, Stored]:
        with self._asking() as db:
            which = {} if types is None else {"key": {"$in": [key_of(kind) for kind in types]}}
            newest = newest_of(db.profiles.find(which))
        stored = {kind: self._read(kind, document) for kind, document in newest.items()}
        return {kind: each for kind, each in stored.items() if each.profile is not None}

    def revisions(self) -> Mapping[JobType, int]:
        with self._asking() as db:
            newest = newest_of(db.profiles.find({}, {"key": 1, "revision": 1, "forgotten": 1}))
        return {
            kind: document["revision"]
            for kind, document in newest.items()
            if not document.get("forgotten")
        }

    def change(self, kind: JobType, change: Change, ticket: Ticket | None = None) -> Stored:
        # By its ticket a change is known from those of others, whoever makes it.
        ticket = ticket or Ticket(uuid4().hex, 0)
        deadline = time.monotonic() + self._patience
        with self._asking() as db:
            while time.monotonic() < deadline:
                old = self._find(db, kind)
                new = old.changed(change, ticket)
                if new is old:
                    return old
                is_added = self._add(db, kind, new)
                if is_added:
                    # As many writers as tickets are remembered may come before this one looks.
                    ticket = ticket.tried(old.revision)
                if is_added and (made := self._find_made(db, kind, ticket)):
                    return made
                time.sleep(random.uniform(0.0, 0.02))
        raise self._away(
            f"gave no turn to change the profile of {kind} for {self._patience:g} s",
            "look for other writers",
        )

    def _find_made(self, db: Any, kind: JobType, ticket: Ticket) -> Stored | None:
        """
        Make sure that a revision counts that was added, and tidy up behind it.

        Whoever stops for long between reading and adding may find the place free again, because
        others came and went; then the highest revision knows nothing of it.
        """
        found = self._find(db, kind)
        if not found.has(ticket):
            return None
        db.profiles.delete_many({"key": key_of(kind), "revision": {"$lt": found.revision}})
        return found

    def _find(self, db: Any, kind: JobType) -> Stored:
        ours = {"key": key_of(kind), "revision": {"$gt": 0}}
        document = db.profiles.find_one(ours, sort=[("revision", -1)])
        return Stored(None) if document is None else self._read(kind, document)

    def _add(self, db: Any, kind: JobType, new: Stored) -> bool:
        """Write a revision, unless somebody else has written one of that number."""
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
        self._documents.remember(kind, profile, new.profile)
        return True

    def _read(self, kind: JobType, document: Document) -> Stored:
        tickets = Ticket.read_all(document.get("tickets"))
        profile = None
        if not document.get("forgotten"):
            raw = {name: document[name] for name in document if name not in _OURS}
            profile = self._documents.read(kind, raw)
        return Stored(profile, document["revision"], tickets)

    # --- what policies remember

    def keep_policy_state(self, policy: str, document: str) -> None:
        self._put("policy_states", {"_id": policy, "document": document})

    def policy_states(self) -> Mapping[str, str]:
        with self._asking() as db:
            return {each["_id"]: each["document"] for each in db.policy_states.find({})}

    # --- the history

    def record(self, entries: Sequence[HistoryEntry]) -> None:
        # The last of those with one id counts.
        documents = {entry.id: document_of(entry) for entry in entries}
        if not documents:
            return
        with self._counting:
            with self._asking() as db:
                entries_of = self._entries or _count(db)
                known = self._insert(db.history, documents)
            self._entries = entries_of
            for document in known:
                self._put("history", document)
            fresh = documents.keys() - {document["_id"] for document in known}
            entries_of.update(documents[each]["job"] for each in fresh)
            self._forget(entries_of)

    @staticmethod
    def _insert(collection: Any, documents: Mapping[str, Document]) -> list[Document]:
        """Add documents all at once; return those whose id is taken."""
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
        Let a document take the place of the one with its id.

        One by one: FerretDB 1.24 hangs when it is to replace several at once.
        """
        with self._asking() as db:
            db[collection].replace_one({"_id": document["_id"]}, document, upsert=True)

    def _forget(self, entries: Counter[str]) -> None:
        """
        Remove what is beyond the bounds, by the entries counted here.

        A little more than has to be, because looking for the oldest is work.
        """
        each, in_all = self._bounds.entries_per_job, self._bounds.entries
        for job in [job for job, count in entries.items() if count > each]:
            self._forget_all_but({"job": job}, each - each // 10)
            entries[job] = each - each // 10
        if entries.total() > in_all:
            self._forget_all_but({}, in_all - in_all // 10)
            self._entries = None

    def _forget_all_but(self, which: Document, newest: int) -> None:
        with self._asking() as db:
            old = db.history.find(which, {"_id": 1}).sort(_NEWEST_FIRST).skip(newest)
            db.history.delete_many({"_id": {"$in": [each["_id"] for each in old]}})

    def history(self, job: JobId | None = None, *, limit: int = 100) -> tuple[HistoryEntry, ...]:
        with self._asking() as db:
            found = db.history.find({} if job is None else {"job": job})
            documents = list(found.sort(_NEWEST_FIRST).limit(limit)) if limit > 0 else []
        return tuple(read_rows(HistoryEntry, documents, record_of, self.address))

    # --- the timeline

    def add_timeline(self, rows: Sequence[TimelineRow]) -> None:
        documents = mongo_timeline.write(rows)
        if not documents:
            return
        with self._asking() as db:
            known = self._insert(db.timeline, documents)
        for document in known:
            self._put("timeline", document)
        self._unpruned += len(documents)
        if self._unpruned >= prune_every(min(self._bounds.moments, self._bounds.samples)):
            with self._asking() as db:
                mongo_timeline.prune(db.timeline, self._bounds)
            self._unpruned = 0

    def timeline(self) -> tuple[TimelineRow, ...]:
        with self._asking() as db:
            return mongo_timeline.read(db.timeline)

    # --- the tables

    def replace_gpus(self, rows: Sequence[GpuRow]) -> None:
        self._replace("gpus", rows)

    def replace_jobs(self, rows: Sequence[JobRow]) -> None:
        self._replace("jobs", rows)

    def gpus(self) -> tuple[GpuRow, ...]:
        return self._table("gpus", GpuRow, ["node", "gpu"])

    def jobs(self) -> tuple[JobRow, ...]:
        return self._table("jobs", JobRow, ["job"])

    def _replace(self, table: str, rows: Sequence[GpuRow] | Sequence[JobRow]) -> None:
        wanted: dict[Key, GpuRow | JobRow] = {row.key: row for row in rows}
        with self._replacing:
            # What fails half-way leaves nobody knows what: then it is read again.
            shown = self._shown.pop(table, None)
            if shown is None or self._clock() > shown.at + TRUST_SECONDS:
                at = self._clock()
                with self._asking() as db:
                    there = by_id(db[table].find({}))
                written, gone = differences(there, by_id(map(document_of, wanted.values())))
            else:
                at = shown.at
                changed, gone = differences(shown.rows, wanted)
                written = list(map(document_of, changed))
            self._write(table, written, gone)
            self._shown[table] = _Shown(wanted, at)

    def _write(self, table: str, written: Iterable[Document], gone: Sequence[Key]) -> None:
        with self._asking() as db:
            if gone:
                db[table].delete_many({"_id": {"$in": list(map(id_of, gone))}})
            documents = {document["_id"]: document for document in written}
            known = self._insert(db[table], documents) if documents else []
        for document in known:
            self._put(table, document)

    def _table(self, table: str, kind: type[R], order: Sequence[str]) -> tuple[R, ...]:
        with self._asking() as db:
            documents = list(db[table].find({}).sort([(name, 1) for name in order]))
        return tuple(read_rows(kind, documents, record_of, self.address))

    # --- the server

    @contextmanager
    def _asking(self) -> Iterator[Any]:
        """The database, for as long as it may take to ask it; errors in our own words."""
        try:
            with pymongo.timeout(self._patience):
                yield self._connected()
        except PyMongoError as error:
            raise self._translated(error) from None

    def _connected(self) -> Any:
        """The database; by whoever comes first, seen to be fit for use."""
        with self._connecting:
            if self._client is None:
                self._client = self._make_client()
            primary = pymongo.ReadPreference.PRIMARY
            db = self._client.get_database(self._at.database, read_preference=primary)
            if not self._is_ready:
                self._prepare(db)
                self._is_ready = True
        return db

    def _make_client(self) -> MongoClient[Document]:
        try:
            return MongoClient(self._at.url, **self._options())
        except _MISUNDERSTOOD as error:
            raise self._translated(error) from None

    def _options(self) -> Document:
        """What the driver is told where the URL does not say it."""
        options: Document = {"appname": "dljob", "w": "majority", "journal": True}
        given = {name: options[name] for name in options if name not in self._at.options}
        who = self._at.credentials
        if who.username:
            given |= {"username": who.username, "password": who.password}
        return given

    def _prepare(self, db: Any) -> None:
        """See which schema the database has, and that it has the indexes."""
        try:
            db.schema.insert_one({"_id": "schema", "version": SCHEMA})
        except DuplicateKeyError:
            version = db.schema.find_one({"_id": "schema"})["version"]
            if version > SCHEMA:
                raise StoreUnusable(
                    self.address,
                    f"has schema version {version}, and this dljob knows none above {SCHEMA}",
                    "upgrade dljob, or name another database",
                ) from None
        db.profiles.create_index([("key", 1), ("revision", -1)])
        db.history.create_index([("job", 1), *_NEWEST_FIRST[:2]])
        db.history.create_index(_NEWEST_FIRST[:2])
        db.timeline.create_index([("kind", 1), ("at", 1)])

    # --- what went wrong

    def _translated(self, error: Exception) -> StoreError:
        code = error.code if isinstance(error, OperationFailure) else None
        why = self._at.scrub(_short(error))
        if code in _REFUSED:
            remedy = f"check user and password in the URL, or in {USERNAME} and {PASSWORD}"
            return StoreUnusable(self.address, f"refuses these credentials ({why})", remedy)
        if code == _DISK_FULL:
            return self._away(f"cannot write, because its disk is full ({why})", "make room there")
        # Where servers are looked up by name, this is also said when the look-up failed.
        misread = isinstance(error, ConfigurationError) and not self._at.is_looked_up
        if misread or not isinstance(error, PyMongoError) or isinstance(error, InvalidName):
            return StoreUnusable(self.address, f"cannot be used ({why})", "correct its URL")
        if code is not None:
            return self._away(f"failed the request ({why})", "look at its log")
        return self._away(
            f"does not answer ({why})", "check that it runs and can be reached from here"
        )

    def _away(self, message: str, remedy: str) -> StoreError:
        return StoreAway(self.address, message, remedy)


def _count(db: Any) -> Counter[str]:
    """How many entries the history has of each job."""
    groups = db.history.aggregate([{"$group": {"_id": "$job", "entries": {"$sum": 1}}}])
    return Counter({each["_id"]: each["entries"] for each in groups})


def _short(error: Exception) -> str:
    """The first thing that the driver says; the rest is about its own inner life."""
    first = re.split(r"\n| \(configured timeouts|, Timeout: |, full error: ", str(error))[0]
    return first[:200] or type(error).__name__
