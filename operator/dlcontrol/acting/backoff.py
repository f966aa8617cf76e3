"""What the platform refuses is asked for again, ever more rarely."""

from collections.abc import Container, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _Refusal:
    why: str
    pause: float
    until: float


class Patience(Generic[K]):
    """Remembers what was refused, why, and when it may be asked for again."""

    def __init__(self) -> None:
        self._refusals: dict[K, _Refusal] = {}

    def __len__(self) -> int:
        return len(self._refusals)

    def may_ask(self, what: K, now: float) -> bool:
        """Whether enough time has passed since it was refused, if it was."""
        refusal = self._refusals.get(what)
        return refusal is None or now >= refusal.until

    def why(self, what: K) -> str:
        """Why it was refused last; empty if it was not."""
        refusal = self._refusals.get(what)
        return refusal.why if refusal is not None else ""

    def refuse(self, what: K, why: str, now: float) -> bool:
        """Take in that it was refused; tell whether for another reason than before."""
        before = self._refusals.get(what)
        pause = min(2.0 * before.pause, LONGEST_PAUSE_S) if before is not None else FIRST_PAUSE_S
        self._refusals[what] = _Refusal(why, pause, now + pause)
        return before is None or before.why != why

    def settle(self, what: K) -> None:
        """Take in that it went right."""
        self._refusals.pop(what, None)

    def keep(self, those: Container[K]) -> None:
        """Forget all but these."""
        for gone in [what for what in self._refusals if what not in those]:
            del self._refusals[gone]
