"""
The time without a step after which a training hangs, learnt from its steps.

That is ten times the longest pause of this start, including evaluations and checkpoints, but at
least a minute and at most ``stallSeconds``. Until enough steps were seen, it is ``stallSeconds``.
"""

from __future__ import annotations

ENOUGH_STEPS = 20
SHORTEST_SECONDS = 60.0
FACTOR = 10.0


class Pauses:
    """The intervals between steps since the latest start."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._steps = 0
        self._longest = 0.0
        self._moved_at: float | None = None

    def step(self, now: float) -> None:
        if self._moved_at is not None:
            self._longest = max(self._longest, now - self._moved_at)
        self._moved_at = now
        self._steps += 1

    def limit(self, stall_seconds: float) -> float:
        """Return the longest time without a step; 0 for no limit."""
        if self._steps < ENOUGH_STEPS:
            return stall_seconds
        learnt = max(SHORTEST_SECONDS, FACTOR * self._longest)
        return min(learnt, stall_seconds) if stall_seconds else learnt

    @property
    def longest(self) -> float:
        return self._longest
