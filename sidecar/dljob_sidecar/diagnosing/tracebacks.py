"""
Finds the lines that a training printed around its first failure: the exception that began it, and the last lines.

:mod:`dljob_sidecar.assembling` feeds it with all output of the job's processes. The rank of a line is known where
the line begins with it: the one of :mod:`dljob_sidecar.observing.rank_outputs`, or PyTorch's own (``[rank1]: ``). The peers of a
process that failed print tracebacks as well, later; of those around a failure the first is the cause.

It looks at bytes and never blocks. It does costly work only where a traceback begins.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass

from dljob_sidecar.observing.matching import RANK, STREAMS, Lines
from dljob_wire.messages import LONGEST_LAST_LINE, MOST_LAST_LINES

BEGINNING = b"Traceback (most recent call last)"
PREFIX = re.compile(RANK.pattern + rb"(?:\[rank\d{1,6}\]: ?)?|\[rank(\d{1,6})\]: ?")
"""The rank before a line, from the SideCar or from PyTorch's tracebacks."""
CHAINED = re.compile(
    rb"(During handling of the above exception, another|The above exception was the direct cause)"
)
AROUND_SECONDS = 60.0
"""A traceback that was printed earlier before the failure was caught and is not the reason."""
MOST_TRACEBACKS = 64


@dataclass(frozen=True)
class Raised:
    """The end of one traceback."""

    at: float
    rank: int | None
    """The rank of the traceback, if the line has one."""
    exception: str


@dataclass(frozen=True)
class LastWords:
    """The lines that were printed around the first failure."""

    raised: tuple[Raised, ...] = ()
    """In the order of printing."""
    lines: tuple[str, ...] = ()

    def exception_of(self, rank: int) -> str:
        """Return the exception of a rank, or else the first one."""
        own = [one for one in self.raised if one.rank == rank]
        unsigned = [one for one in self.raised if one.rank is None]
        return next((one.exception for one in (*own, *unsigned, *self.raised)), "")


class _Stream:
    """The lines of an output, and its unfinished tracebacks."""

    def __init__(self) -> None:
        self.lines = Lines()
        self.open: dict[bytes, bool] = {}
        """By prefix: True if the unfinished traceback is chained to the previous one."""
        self.is_chained = False


class Tracebacks:
    """Collects tracebacks and last lines from the output."""

    def __init__(self) -> None:
        self._streams = [_Stream() for _ in range(STREAMS)]
        self._latest: deque[bytes] = deque(maxlen=MOST_LAST_LINES)
        self._raised: deque[Raised] = deque(maxlen=MOST_TRACEBACKS)
        self._failed_at: float | None = None
        self._lines: list[bytes] = []
        """The last lines before the failure, filled up with lines after it."""

    def begin(self) -> None:
        """Discard the lines of the previous start."""
        self._latest.clear()
        self._raised.clear()
        self._failed_at = None
        self._lines = []

    def feed(self, block: bytes, now: float, *, stream: int = 0) -> None:
        """Take output; ``now`` is the time of a monotonic clock."""
        on = self._streams[stream]
        lines = on.lines.take(block)
        is_begun = any(BEGINNING in line or b"above exception" in line for line in lines)
        if on.open or on.is_chained or is_begun:
            for line in lines:
                self._read(on, line, now=now)
        said = [line for line in lines[-MOST_LAST_LINES:] if line.strip()]
        self._latest.extend(said)
        if self._failed_at is not None:
            self._lines += said[: MOST_LAST_LINES - len(self._lines)]

    def fail(self, now: float) -> None:
        """Record the failure of the first process; later lines are those of its followers."""
        if self._failed_at is None:
            self._failed_at = now
            self._lines = list(self._latest)

    def last_words(self) -> LastWords:
        if self._failed_at is None:
            return LastWords()
        since = self._failed_at - AROUND_SECONDS
        raised = tuple(one for one in self._raised if one.at >= since)
        return LastWords(raised, tuple(map(_to_text, self._lines)))

    def _read(self, on: _Stream, line: bytes, *, now: float) -> None:
        match = PREFIX.match(line)
        prefix = match[0] if match else b""
        rest = line[len(prefix) :]
        if rest.startswith(BEGINNING):
            on.open[prefix], on.is_chained = on.is_chained, False
        elif prefix in on.open:
            if rest[:1].isspace() or not rest:
                return
            is_chained = on.open.pop(prefix)
            rank = int(match[1] or match[2]) if match else None
            if is_chained and self._raised and self._raised[-1].rank == rank:
                # The exception that is raised last ends the process.
                self._raised.pop()
            self._raised.append(Raised(now, rank, _to_text(rest)))
        elif CHAINED.match(rest):
            on.is_chained = True
        elif rest:
            on.is_chained = False


def _to_text(line: bytes) -> str:
    text = line.decode("utf-8", "replace").rstrip()
    return "".join(one if one.isprintable() else " " for one in text)[:LONGEST_LAST_LINE]
