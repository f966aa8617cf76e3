"""
The SideCar's own log, with a limited rate.

A kubelet rotates this log, or ``dljob up`` while it runs; jobs continue without either. Other
programs can cause lines by refused requests. So the rate of lines is limited, and the first line
after a gap has the number of dropped lines.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

MOST_LINES = 1000
"""The number of lines that may follow each other without a pause."""
LINES_PER_SECOND = 100 / 3600
"""The rate at which that number recovers: 2,400 lines a day."""
LONGEST_LINE = 4096
"""The longest message in characters; longer ones are cut."""


class LogLimit(logging.Filter):
    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._left = float(MOST_LINES)
        self._at = now()
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the line is written; shorten it, and add the number of dropped lines."""
        now = self._now()
        self._left = min(MOST_LINES, self._left + (now - self._at) * LINES_PER_SECOND)
        self._at = now
        if self._left < 1.0:
            self._left_out += 1
            return False
        self._left -= 1.0
        message = record.getMessage()[:LONGEST_LINE]
        if self._left_out:
            message += f" (before it {self._left_out} lines were left out, as there were too many)"
            self._left_out = 0
        record.msg, record.args = message, ()
        return True
