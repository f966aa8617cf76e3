"""The count of an attack's attempts and its size: shared by all attacks."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum


class Size(Enum):
    """How much is tried."""

    SHORT = "short"
    """In seconds, as a part of ``make test``."""
    FULL = "full"


@dataclass(slots=True)
class Count:
    """
    The number of attempts and their results. Each broken one is named, with the way to see it
    again.
    """

    tried: int = 0
    broken: list[str] = field(default_factory=list)
    parts: dict[str, "Count"] = field(default_factory=dict)
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

    def add(self, name: str, part: "Count") -> None:
        """Count a part in."""
        self.parts[name] = part
        self.tried += part.tried
        self.broken += [f"{name}: {each}" for each in part.broken]

    def lines(self, name: str) -> Iterator[str]:
        """Tell the counts, those of the parts first."""
        for inner, part in self.parts.items():
            yield from part.lines(f"{name} {inner}")
        if self.skipped:
            yield f"{name:32} skipped: {self.skipped}"
            return
        yield f"{name:32} {self.tried:9,} tried {self.survived:9,} survived {len(self.broken):5,} broken"


def say(line: str) -> None:
    """Print how far an attack is, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
