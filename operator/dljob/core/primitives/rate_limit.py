"""A limit on a rate: a burst at once, and over a longer time a fixed number a second."""


class RateLimit:
    """A token bucket, which is full at first; times are those of the caller's clock."""

    def __init__(self, per_second: float, at_once: float) -> None:
        self._per_second = per_second
        self._at_once = at_once
        self._left = at_once
        """Negative after tokens were taken in advance."""
        self._at = float("-inf")

    def take(self, now: float, count: float = 1.0) -> float:
        """Take one, or ``count``, in advance if need be; return the seconds to wait for it."""
        self._refill(now)
        self._left -= count
        return max(0.0, -self._left / self._per_second)

    def take_if_left(self, now: float) -> bool:
        """Take one, unless none is left now; return whether it was taken."""
        self._refill(now)
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    def _refill(self, now: float) -> None:
        self._left = min(self._at_once, self._left + (now - self._at) * self._per_second)
        self._at = now
