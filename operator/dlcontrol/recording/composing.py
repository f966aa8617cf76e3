"""
The record of a live system, put together from what its store keeps: the history and the timeline.

Asked by ``dljob record``. It asks the store and takes its time, so it is not for the loop.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol, Self

from dlcontrol.recording.recorder import standing_rows
from dlcontrol.reporting.events import event_name
from dlcontrol.situation import status_documents
from dlcontrol.situation.ports import Entry
from dlcore.documents import jobfile
from dlcore.recording.record import Decided, Given, Happened, Header, Line, Record, decode_line
from dlcore.recording.sums import cut
from dlstore.history import HistoryEntry
from dlstore.store import USUAL_BOUNDS
from dlstore.tables import TimelineRow
from dlwire.kinds import Wrong

log = logging.getLogger(__name__)


class Source(Protocol):
    """A store, or the notebook in front of one."""

    def history(self, *, limit: int) -> tuple[HistoryEntry, ...]:
        """Read the latest entries, newest first."""

    def timeline(self) -> tuple[TimelineRow, ...]:
        """Read all rows, oldest first."""


DECISIONS = frozenset({"start", "reshape", "move", "stop", "wait"})


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The history and the timeline of a store."""

    history: Sequence[HistoryEntry]
    timeline: Sequence[TimelineRow]

    @classmethod
    def read(cls, source: "Source") -> Self:
        return cls(history=source.history(limit=USUAL_BOUNDS.entries), timeline=source.timeline())

    @property
    def losses(self) -> Iterator[str]:
        """Yield a sentence if the bounds of the store have deleted older rows."""
        bounds = USUAL_BOUNDS
        if len(self.timeline) >= bounds.moments or len(self.history) >= bounds.entries:
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
    kept: Kept, entries: Iterable[Entry], *, header: Header, decode: Decode = decode_line
) -> Record:
    """Compose a record; ``entries`` are the present jobs."""
    rows = {row.id: row for row in kept.timeline}
    # A job may live longer than the store keeps its rows.
    for row in standing_rows(entries):
        rows.setdefault(row.id, row)
    lines, unreadable = _read(rows.values(), decode)
    lines += map(_line_of, kept.history)
    lines += _missing_allocations(lines)
    missing = (*header.missing, *kept.losses)
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


def _read(rows: Iterable[TimelineRow], decode: Decode) -> tuple[list[Line], int]:
    """Read rows; unreadable ones are left out and counted."""
    lines: list[Line] = []
    unreadable = 0
    for row in rows:
        try:
            lines.append(decode(row.line))
        except Wrong as wrong:
            unreadable += 1
            log.warning("a row of the timeline cannot be read: %s: %s", row.id, wrong)
    return lines, unreadable


def _line_of(entry: HistoryEntry) -> Line:
    if entry.kind not in DECISIONS:
        return Happened(
            at=entry.at,
            job=entry.job,
            name=event_name(entry.kind),
            message=entry.sentence,
            warning=entry.warning,
        )
    return Decided(
        at=entry.at,
        job=entry.job,
        step=entry.kind,
        generation=entry.generation,
        cause=entry.cause,
        for_job=entry.for_job,
        sentence=entry.sentence,
        old=entry.old,
        new=entry.new,
        expected=entry.expected,
        cost_seconds=entry.cost_seconds,
    )


def _missing_allocations(lines: Sequence[Line]) -> list[Line]:
    """Derive the missing Given lines from decisions."""
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
