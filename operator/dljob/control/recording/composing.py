"""Composes the record of a live system from the rows of its store, for ``dljob record``.

Reads from the store, which is too slow for the loop.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from dljob.control.recording.recorder import standing_rows
from dljob.control.situation import status_documents
from dljob.control.situation.ports import Entry
from dljob.core.documents import jobfile
from dljob.core.recording.record import Decided, Given, Header, Line, Record, decode_line
from dljob.core.recording.sums import cut
from dljob.store.rows import RecordRow, prune_every
from dljob.store.store import USUAL_BOUNDS
from dljob_wire.kinds import Wrong

log = logging.getLogger(__name__)


def losses(rows: Sequence[RecordRow]) -> Iterator[str]:
    """Yield a sentence if the bounds of the store have deleted older rows."""
    bounds = USUAL_BOUNDS
    history = sum(row.is_history for row in rows)
    if len(rows) - history >= bounds.moments or history >= bounds.entries - prune_every(
        bounds.entries
    ):
        yield (
            f"the store keeps the latest {bounds.moments:,} rows and {bounds.entries:,} entries of"
            " the history; older ones are gone"
        )


Decode = Callable[[str], Line]


def make_memory() -> Decode:
    """Return a decoder with a cache, for a record that is read repeatedly."""
    bounds = USUAL_BOUNDS
    return lru_cache(bounds.moments + bounds.samples + bounds.entries)(decode_line)


def compose(
    kept: Sequence[RecordRow],
    entries: Iterable[Entry],
    *,
    header: Header,
    decode: Decode = decode_line,
) -> Record:
    """Compose a record; ``entries`` are the present jobs."""
    rows = {row.id: row for row in kept}
    # A job may live longer than the store keeps its rows.
    for row in standing_rows(entries):
        rows.setdefault(row.id, row)
    lines: list[Line] = []
    unreadable = 0
    for row in rows.values():
        try:
            lines.append(decode(row.line))
        except Wrong as wrong:
            unreadable += 1
            log.warning("a row of the record cannot be read: %s: %s", row.id, wrong)
    lines += _missing_allocations(lines)
    missing = (*header.missing, *losses(kept))
    if unreadable:
        missing = (*missing, f"{unreadable} rows of the store cannot be read")
    ordered = Record.of(header, lines).lines
    return Record.of(replace(header, missing=missing), cut(ordered, header.since))


def read_entries(documents: Iterable[Mapping[str, Any]]) -> Iterator[Entry]:
    """Read the present jobs, whose first rows the store may have deleted."""
    for order, document in enumerate(documents):
        try:
            job = jobfile.parse(document, require_template=True)
        except jobfile.JobFileError:
            # The record has the store's rows of this job.
            continue
        yield Entry(job, order, status_documents.read_status(document.get("status") or {}))


def _missing_allocations(lines: Sequence[Line]) -> list[Line]:
    known = {(line.job, line.generation) for line in lines if isinstance(line, Given)}
    oldest: dict[str, int] = {}
    for job, generation in known:
        oldest[job] = min(generation, oldest.get(job, generation))
    return [
        Given(at=line.at, job=line.job, generation=line.generation, placement=line.new)
        for line in lines
        if isinstance(line, Decided)
        and line.step != "wait"
        and (line.job, line.generation) not in known
        # All later Given lines are recorded; this decision is older than the first one.
        and line.generation < oldest.get(line.job, line.generation + 1)
    ]
