"""How an attack went, in numbers that a person can read."""

import sys
from dataclasses import dataclass, field
from enum import StrEnum


class Size(StrEnum):
    """How much is tried."""

    SHORT = "short"
    """Seconds, in ``make test``."""
    FULL = "full"
    """All of it, in ``make attack``."""


@dataclass
class Count:
    """What one part of the attack has tried, and what came of it."""

    name: str
    tried: int = 0
    broken: list[str] = field(default_factory=list)
    """One sentence for each attempt that broke a law."""
    skipped: str = ""
    """Why nothing of it can be tried here; empty if it can."""

    @property
    def survived(self) -> int:
        return self.tried - len(self.broken)

    def hold(self, *, true: bool, otherwise: str) -> None:
        """Count an attempt, which is broken unless something is true."""
        self.tried += 1
        if not true:
            self.broken.append(otherwise)

    def __str__(self) -> str:
        if self.skipped:
            return f"{self.name:10s} skipped: {self.skipped}"
        numbers = f"{self.tried} tried, {self.survived} survived, {len(self.broken)} broken"
        return f"{self.name:10s} {numbers}"


def say(line: str) -> None:
    """Print progress, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
