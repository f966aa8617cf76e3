"""The steady clock of a controller, which does not follow changes of the machine's clock.

The loop judges SideCars, pods and trainings by durations. If a person or NTP set the clock back by
an hour, a pod that came up a minute ago would not count as up for another hour; set forward, a
training would seem to have stood still for an hour. So a controller reads the machine's clock once,
at its start, and adds the time since boot, which cannot be set. It logs each change of the
machine's clock, because the times shown to people follow the clock of the start. Records outlive a
controller. A platform that finds a change of the clock between two controllers moves the recorded
times by as much (:func:`moved`), so that an event of ten seconds ago stays ten seconds old.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from dljob.control.situation.status import Status

LEAST_STEP_S = 2.0
"""Smaller differences are ignored: NTP slews the clock, and the two clocks are not read at once."""

LOOK_S = 2.0
"""How often a controller compares its clock with that of the machine."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_TIMES = tuple(each.name for each in fields(Status) if each.name.endswith("_at"))
"""All fields of a status that are times of the controller's clock."""


def read_since_boot() -> float:
    """Return the seconds since the kernel started, time asleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SteadyClock:
    """Seconds since the epoch by the clock at the start, advanced steadily."""

    def __init__(
        self,
        *,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = read_since_boot,
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._offset = wall() - steady()
        self._told = 0.0

    def __call__(self) -> float:
        return self._steady() + self._offset

    def step(self) -> float:
        """Return by how many seconds the machine's clock was set since the last call."""
        differs = self._wall() - self()
        step = differs - self._told
        if abs(step) < LEAST_STEP_S:
            return 0.0
        # Small steps are not reset, so that several of them add up to a reported one.
        self._told = differs
        return step


async def report_steps(clock: SteadyClock, report: Callable[[str], None]) -> None:
    """Report that the clock of the machine was set, soon after each time, until cancelled."""
    while True:
        # asyncio waits by a clock that cannot be set, so that a step does not change this pause.
        await asyncio.sleep(LOOK_S)
        if step := clock.step():
            way = "forward" if step > 0 else "back"
            report(
                f"the clock of this machine was set {way} by {abs(step):.0f} s;"
                " decisions stay, and times continue from the clock at the start"
            )


@cache
def read_boot() -> str:
    """Return the id of this boot, or "unknown" if the kernel reports none."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip() or "unknown"
    except OSError:
        return "unknown"


class Stamp(NamedTuple):
    """A time in the life of a machine, independent of its clock settings."""

    boot: str
    since_boot: float

    @classmethod
    def now(cls) -> "Stamp":
        return cls(read_boot(), read_since_boot())

    def seconds_ago(self) -> float:
        """Return the age in seconds; infinite if the machine has rebooted since."""
        now = Stamp.now()
        return now.since_boot - self.since_boot if self.is_before(now) else float("inf")

    def is_before(self, other: "Stamp") -> bool:
        """Return True if this was earlier in the same boot of the machine."""
        # Written times are rounded.
        return self.boot == other.boot and self.since_boot <= other.since_boot + 0.1


class Reading(NamedTuple):
    """A reading of the controller's clock, with its time in the life of the machine."""

    stamp: Stamp
    at: float

    @classmethod
    def now(cls, clock: Callable[[], float] = time.time) -> "Reading":
        return cls(Stamp.now(), clock())


def find_step(before: Reading, now: Reading, *, latest: float) -> float:
    """
    Find by how many seconds the clock was set between two controllers.

    ``latest`` is the latest time that was recorded. In another boot it is unknown how long the machine was off;
    only recorded times cannot lie in the future.
    """
    if before.stamp.is_before(now.stamp):
        step = now.at - (before.at + now.stamp.since_boot - before.stamp.since_boot)
        return step if abs(step) >= LEAST_STEP_S else 0.0
    return min(0.0, now.at - max(latest, before.at))


def latest_of(status: Status) -> float:
    """Return the latest time in a status at which something happened."""
    # A retry is planned, so its time lies ahead of the clock.
    return max(getattr(status, name) or 0.0 for name in _TIMES if name != "retry_at")


def moved(status: Status, seconds: float) -> Status:
    """Move all times of a status, except those that mean never."""
    times = {name: at + seconds for name in _TIMES if (at := getattr(status, name))}
    conditions = tuple(
        replace(each, since=each.since + seconds) if each.since else each
        for each in status.conditions
    )
    return replace(status, **times, conditions=conditions)
