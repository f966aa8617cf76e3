"""
Points at which a controller may die, and who decides that it does.

A controller that is under test names each point as it passes it; the :class:`Fuse` draws whether
that was its last. Kinds of points at which few have died are drawn more readily, so that a run
comes to all kinds and not only to the frequent ones.
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
    """When a controller shall die."""

    seed: int
    deaths: Mapping[str, int] = field(default_factory=dict)
    """How many died at points of which kind before."""
    at_point: int = 0
    """The point at which it dies, counted from its start over all kinds; 0 leaves it to chance."""
    spares: int = 0
    """It dies after at least this number of points, and so not at its beginning."""
    only: tuple[str, ...] = ()
    """It dies at points around these acts and at no others; empty: at any."""
    is_calm: bool = False
    """It is not to die at all."""


class Fuse:
    """Kills the process that it is in."""

    def __init__(self, plan: Plan, deaths: Path) -> None:
        self._plan = plan
        self._deaths = deaths
        self._chance = random.Random(plan.seed)
        self._passed = 0

    def passes(self, kind: str) -> None:
        """Come to a point of this kind, and go beyond it only if it is so drawn."""
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
        # Said by one write to a file that is read when we are gone.
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
