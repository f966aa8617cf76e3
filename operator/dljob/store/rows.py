"""
The record as a store keeps it: a row is one line of :mod:`dljob.core.recording.record`, with the columns that find and bound it.

Decisions about jobs and incidents are the history, which has bounds of its own. No decision depends on any row.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

from dljob.core.recording.record import Decided, Happened, Line, decode_line, encode_line
from dljob_wire.kinds import Wrong

log = logging.getLogger(__name__)

HISTORY = ("decided", "happened")
"""The kinds of lines in the history of a job."""
SAMPLE = "progress"
"""Rows of this kind come as long as a job trains, and have a bound of their own."""

PRUNE_EVERY = 500
"""A store may exceed its bounds by this number of rows, because looking for the oldest ones takes time."""

LONGEST_TEXT = 1000
"""Longer texts are cut, so that rows stay small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRow:
    """A line of the record. A row that is recorded again under its ``id`` takes the place of the former one."""

    id: str
    at: float
    kind: str
    line: str
    """As JSON, which a store does not read."""
    job: str = ""
    place: int = 0
    """Its place among the rows of the same instant."""
    epoch: int = 0
    """The controller that recorded it."""

    @classmethod
    def of(cls, line: Line, name: str, *, place: int = 0, epoch: int = 0) -> Self:
        return cls(
            id=name,
            at=line.at,
            kind=type(line).__name__.lower(),
            line=encode_line(line),
            job=getattr(line, "job", ""),
            place=place,
            epoch=epoch,
        )

    @property
    def is_history(self) -> bool:
        return self.kind in HISTORY

    @property
    def when(self) -> tuple[float, int, str]:
        """The order of rows: by time, then as they were decided."""
        return self.at, self.place, self.id


def read_history(rows: Iterable[RecordRow]) -> Iterator[tuple[RecordRow, Decided | Happened]]:
    """Decode rows of the history; log unreadable ones, and leave them out."""
    for row in rows:
        try:
            line = decode_line(row.line)
        except Wrong as wrong:
            log.warning("a row of the record cannot be read: %s: %s", row.id, wrong)
            continue
        if isinstance(line, Decided | Happened):
            yield row, line


def shorten(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"


def prune_every(most: int) -> int:
    """Return after how many new rows of a kind that has this bound the oldest are removed."""
    return max(1, min(PRUNE_EVERY, most // 10))
