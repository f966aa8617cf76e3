"""
Points at which a controller may die.

A controller under test names each point as it passes; the :class:`Fuse` draws whether it dies there.
Rare kinds of points are more likely, so that a run reaches all kinds.
"""

import os
import random
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

MOST_LIKELY = 0.4
LEAST_LIKELY = 0.002


@dataclass(frozen=True)
class Plan:
    """When a controller dies."""

    seed: int
    deaths: Mapping[str, int] = field(default_factory=dict)
    """Earlier deaths by kind of point."""
    at_point: int = 0
    """The number of its point of death since its start; 0 leaves it to chance."""
    spares: int = 0
    """It survives at least so many points."""
    only: tuple[str, ...] = ()
    """It dies only around these acts; empty: anywhere."""
    is_calm: bool = False
    """It never dies."""


class Fuse:
    """Kills its own process."""

    def __init__(self, plan: Plan, deaths: Path) -> None:
        self._plan = plan
        self._deaths = deaths
        self._chance = random.Random(plan.seed)
        self._passed = 0

    def passes(self, kind: str) -> None:
        """Pass a point of this kind, or die there."""
        self._passed += 1
        if self._plan.is_calm or self._passed <= self._plan.spares:
            return
        if self._plan.only:
            is_last = kind.rpartition(" ")[2] in self._plan.only and self._chance.random() < 0.5
        elif self._plan.at_point:
            is_last = self._passed == self._plan.at_point
        else:
            before = self._plan.deaths.get(kind, 0)
            likelihood = max(LEAST_LIKELY, MOST_LIKELY / (1 + before) ** 1.5)
            is_last = self._chance.random() < likelihood
        if is_last:
            self._die(kind)

    def _die(self, kind: str) -> None:
        # One write to a file that is read after the death.
        self._deaths.write_text(kind)
        os.kill(os.getpid(), signal.SIGKILL)

    def around(self, kind: str, act: Callable[P, T]) -> Callable[P, T]:
        def acted(*args: P.args, **named: P.kwargs) -> T:
            self.passes(f"before {kind}")
            result = act(*args, **named)
            self.passes(f"after {kind}")
            return result

        return acted

    def around_async(self, kind: str, act: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        async def acted(*args: P.args, **named: P.kwargs) -> T:
            self.passes(f"before {kind}")
            result = await act(*args, **named)
            self.passes(f"after {kind}")
            return result

        return acted

    def guard(self, thing: Any, *names: str, where: str = "") -> None:
        """Put points around these methods of an object."""
        for name in names:
            setattr(thing, name, self.around(f"{where}{name}", getattr(thing, name)))

    def guard_async(self, thing: Any, *names: str) -> None:
        for name in names:
            setattr(thing, name, self.around_async(name, getattr(thing, name)))
