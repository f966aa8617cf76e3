"""
The timeline as the collection of a server of MongoDB's protocol holds it.

See :mod:`dlstore.mongo.store`, which speaks to the server.
"""

from collections.abc import Sequence
from typing import Any

from dlstore.mongo.documents import Document
from dlstore.store import Bounds
from dlstore.timeline import SAMPLE, TimelineRow


def write(rows: Sequence[TimelineRow]) -> dict[str, Document]:
    """Return the documents of rows by their ids; of rows with one id the last counts."""
    return {
        row.id: {"_id": row.id, "at": row.at, "kind": row.kind, "line": row.line} for row in rows
    }


def read(collection: Any) -> tuple[TimelineRow, ...]:
    """Read all rows, oldest first."""
    found = collection.find({}).sort([("at", 1), ("_id", 1)])
    return tuple(TimelineRow(each["_id"], each["at"], each["kind"], each["line"]) for each in found)


def prune(collection: Any, bounds: Bounds) -> None:
    """Remove the oldest rows that are too many."""
    for kind, most in (({"$ne": SAMPLE}, bounds.moments), (SAMPLE, bounds.samples)):
        found = collection.find({"kind": kind}, {"_id": 1}).sort([("at", -1), ("_id", -1)])
        old = [each["_id"] for each in found.skip(most)]
        if old:
            collection.delete_many({"_id": {"$in": old}})
