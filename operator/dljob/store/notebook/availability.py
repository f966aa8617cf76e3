"""
Reports once when the store becomes unavailable, and once when it is back.

A single short failure, such as a failover of the server, is not reported.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from dljob.store.notebook.pending import Dropped
from dljob.store.store import StoreError, StoreUnusableError

LONG_SECONDS = 1.0
"""A failure that takes longer is reported at once."""


class AvailabilityChange(NamedTuple):
    is_there: bool
    message: str


class Availability:
    """Tracks whether the store answers, from the latest attempts."""

    def __init__(
        self, address: str, most_waiting: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._address = address
        self._most_waiting = most_waiting
        self._clock = clock
        self._away_since: float | None = None
        self._dropped_before = Dropped()
        self.is_there = False
        self.failures = 0
        self.error = ""
        """The latest error; empty while the store answers."""

    def fail(
        self, error: StoreError, in_a_row: int, *, seconds: float
    ) -> AvailabilityChange | None:
        """Note an attempt that failed after ``seconds``; return the message to log."""
        self.failures += 1
        self.error = str(error)
        is_hiccup = (
            in_a_row < 2 and seconds < LONG_SECONDS and not isinstance(error, StoreUnusableError)
        )
        if is_hiccup or self._away_since is not None:
            return None
        self.is_there = False
        self._away_since = self._clock()
        goes_on = "scheduling continues from memory"
        kept = f"up to {self._most_waiting:,} observations and decisions wait for it"
        return AvailabilityChange(
            is_there=False, message=f"the store is unavailable: {error} ({goes_on}; {kept})"
        )

    def succeed(self, waiting: int, dropped: Dropped) -> AvailabilityChange | None:
        """Note an attempt that succeeded; return the message to log."""
        since, self._away_since = self._away_since, None
        before, self._dropped_before = self._dropped_before, dropped
        self.is_there = True
        self.error = ""
        if since is None:
            return None
        seconds = self._clock() - since
        lost = sum(dropped) - sum(before)
        was = f"the store {self._address} is back after {seconds:.0f} s"
        return AvailabilityChange(
            is_there=True,
            message=f"{was}; {waiting:,} writes wait for it, and {lost:,} were given up",
        )
