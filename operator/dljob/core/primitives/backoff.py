"""
An exponential back-off for many things at once: each refusal doubles the wait of that thing.

The time is an argument, so that simulated and real clocks share one code. Pods that the platform
refuses and jobs whose status it refuses to store wait here. Code that counts its failures itself, because
the count is stored with a job or ends with a loop, takes the doubling alone (:func:`wait_after`).
"""

from collections.abc import Container, Hashable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 60.0
_MOST_DOUBLINGS: Final = 30
"""A count that rises for months stays a number that a float can hold."""

K = TypeVar("K", bound=Hashable)


def wait_after(failures: int, *, first_seconds: float, longest_seconds: float) -> float:
    """Return the wait after a number of failures in a row: each further failure doubles it."""
    doublings = min(max(0, failures - 1), _MOST_DOUBLINGS)
    return min(longest_seconds, first_seconds * 2.0**doublings)


@dataclass(frozen=True, slots=True)
class _Refusal:
    why: str
    times: int
    until: float


class Backoff(Generic[K]):
    """Remembers for each thing why it was refused and when it may be tried again."""

    def __init__(
        self, *, first_seconds: float = FIRST_WAIT_S, longest_seconds: float = LONGEST_WAIT_S
    ) -> None:
        self._first = first_seconds
        self._longest = longest_seconds
        self._refusals: dict[K, _Refusal] = {}

    def __len__(self) -> int:
        return len(self._refusals)

    def __iter__(self) -> Iterator[K]:
        return iter(self._refusals)

    def may_try(self, what: K, now: float) -> bool:
        """Return whether it was never refused, or the wait is over."""
        refusal = self._refusals.get(what)
        return refusal is None or now >= refusal.until

    def why(self, what: K) -> str:
        """The reason of the last refusal; empty if there was none."""
        refusal = self._refusals.get(what)
        return refusal.why if refusal is not None else ""

    def refuse(self, what: K, why: str, now: float) -> bool:
        """Remember a refusal and double the wait; return whether the reason is a new one."""
        before = self._refusals.get(what)
        times = before.times + 1 if before is not None else 1
        wait = wait_after(times, first_seconds=self._first, longest_seconds=self._longest)
        self._refusals[what] = _Refusal(why, times, now + wait)
        return before is None or before.why != why

    def settle(self, what: K) -> None:
        """Forget the refusals of something that has succeeded."""
        self._refusals.pop(what, None)

    def keep(self, those: Container[K]) -> None:
        """Forget the refusals of everything but these."""
        for gone in [what for what in self._refusals if what not in those]:
            del self._refusals[gone]
