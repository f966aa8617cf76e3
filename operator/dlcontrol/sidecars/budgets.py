"""Limits how often a SideCar is polled: one that floods the controller is polled less."""

from dlcontrol.sidecars.dialing import DialSettings
from dlcore.primitives.rate_limit import RateLimit


class Budget:
    """The requests, the changes and the bytes that one SideCar may cost."""

    def __init__(self, settings: DialSettings) -> None:
        self._polls = RateLimit(settings.polls_per_second, settings.polls_at_once)
        self._changes = RateLimit(settings.changes_per_second, settings.changes_at_once)
        self._bytes = RateLimit(settings.bytes_per_second, settings.bytes_at_once)
        self._received = 0
        """The number of bytes that were counted."""
        self._owed = 0.0
        """How long to wait before the next poll, because of the last answers."""

    def take_poll(self, now: float) -> float:
        """Count a poll; return how long to wait before it is sent."""
        owed, self._owed = self._owed, 0.0
        return max(self._polls.take(now), owed)

    def pay(self, now: float, *, received: int, is_change: bool) -> None:
        """Count the cost of an answer; ``received`` are the bytes of all answers so far."""
        more = received - self._received
        self._received = received
        owed = self._bytes.take(now, more) if more else 0.0
        if is_change:
            owed = max(owed, self._changes.take(now))
        self._owed = max(self._owed, owed)
