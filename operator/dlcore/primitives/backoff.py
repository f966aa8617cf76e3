"""
An exponential back-off for many things at once: each refusal doubles the wait of that thing.

The time is an argument, so that simulated and real clocks share one code. Pods that the platform
refuses and jobs whose status it refuses to store wait here.
"""

from collections.abc import Container, Hashable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 60.0

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _Refusal:
    why: str
    wait: float
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
        """Whether it was never refused, or its wait is over."""
        refusal = self._refusals.get(what)
        return refusal is None or now >= refusal.until

    def why(self, what: K) -> str:
        """The reason of the last refusal; empty if there was none."""
        refusal = self._refusals.get(what)
        return refusal.why if refusal is not None else ""

    def refuse(self, what: K, why: str, now: float) -> bool:
        """Remember a refusal and double the wait; return whether the reason is a new one."""
        before = self._refusals.get(what)
        wait = min(2.0 * before.wait, self._longest) if before is not None else self._first
        self._refusals[what] = _Refusal(why, wait, now + wait)
        return before is None or before.why != why

    def settle(self, what: K) -> None:
        """Forget the refusals of something that has succeeded."""
        self._refusals.pop(what, None)

    def keep(self, those: Container[K]) -> None:
        """Forget the refusals of everything but these."""
        for gone in [what for what in self._refusals if what not in those]:
            del self._refusals[gone]
