"""Turns the contents of a store into documents of MongoDB, and back."""

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from dljob.core.profiles import JobType
from dljob.store.rows import HISTORY, SAMPLE
from dljob.store.store import Bounds
from dljob.store.tables import Key, Record, Row, to_record
from dljob_wire.kinds import camel

Document = dict[str, Any]


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
    record = {_snake(name): value for name, value in document.items()}
    return {**record, "id": document["_id"]}


def _snake(name: str) -> str:
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)


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
