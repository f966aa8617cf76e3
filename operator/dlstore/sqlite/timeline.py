"""
The timeline as a table of SQLite.

See :mod:`dlstore.sqlite.store`, which opens the transactions.
"""

import sqlite3
from collections.abc import Sequence

from dlstore.store import Bounds
from dlstore.timeline import SAMPLE, TimelineRow, prune_every


def add(db: sqlite3.Connection, rows: Sequence[TimelineRow], bounds: Bounds) -> None:
    """Write rows, and remove the oldest ones once there are enough of these to be worth the search."""
    db.executemany(
        "INSERT OR REPLACE INTO timeline VALUES (?, ?, ?, ?)",
        [(row.id, row.at, row.kind, row.line) for row in rows],
    )
    for which, most in (("kind != ?", bounds.moments), ("kind = ?", bounds.samples)):
        # Counting reads an index; the search for the oldest ones sorts the whole table.
        (count,) = db.execute(f"SELECT count(*) FROM timeline WHERE {which}", (SAMPLE,)).fetchone()
        if count > most + prune_every(most):
            old = f"SELECT id FROM timeline WHERE {which} ORDER BY at DESC, id DESC"
            delete = f"DELETE FROM timeline WHERE id IN ({old} LIMIT -1 OFFSET ?)"
            db.execute(delete, (SAMPLE, most))


def read(db: sqlite3.Connection) -> tuple[TimelineRow, ...]:
    """Read all rows, oldest first."""
    found = db.execute("SELECT id, at, kind, line FROM timeline ORDER BY at, id")
    return tuple(TimelineRow(*row) for row in found)
