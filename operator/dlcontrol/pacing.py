"""How often the loop looks, waits and decides."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often the loop looks and decides. Seconds."""

    period_seconds: float = 15.0
    """A decision is made at least so often, with what was learnt meanwhile."""
    settle_seconds: float = 0.02
    """After a change by a user, so long is waited for others, so that a burst is one decision."""
    longest_settle_seconds: float = 0.2
    """But no longer than that in all."""
    look_seconds: float = 1.0
    """Progress, deadlines and timeouts are looked at so often."""
    stuck_seconds: float = 600.0
    """A look at everything that does not end for so long hangs; then another controller may lead."""
    warm_seconds: float = 30.0
    """For how long a newcomer's spare interpreters are waited for."""
    rest_share: float = 3.0
    """After each look it rests for so many times as long as the look took of a core; with 3 it never
    takes more than a quarter of one. Whatever it waits for meanwhile (a record, a pod) is rest, too."""
    longest_rest_seconds: float = 0.5
    """But no longer than that, because somebody waits for the next decision."""
    most_steps: int = 0
    """Of a decision, so many steps at most are taken before it is looked anew; 0 sets no limit. Where
    each step costs a write to a server, a newcomer so need not wait for thousands of others."""
    bite_seconds: float = 2.0
    """And no more than can be taken in so long, as fast as it went last: a server may be slow. Where a look
    at everything takes long itself, up to three times as long, so that less of the time is spent on looks;
    all the sooner if nobody has news meanwhile. If somebody has after all, pods are left for the next time."""
    launches_at_once: int = 32
    """So many pods are made ready and asked for at the same time, one at least."""
    trailing_launches: int = 0
    """So many pods may still be asked for when the next look begins, so that a server has something to do
    meanwhile."""


LONGEST_BITE: Final = 3.0
"""So many times as long as usual at most, because newcomers wait until it is taken."""
UNHURRIED: Final = 4.0
"""For so many times as long after a look of the same effort, where nobody waits for the next decision."""
LEAST_STEPS: Final = 8
"""So many are taken at a time however slow it is, for each look costs something too."""
LAUNCH_SHARE: Final = 0.5
"""So much of what a step takes is asking for its pod; the rest is its record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What was done of a decision."""

    steps: int
    seconds: float
    effort: float = 0.0
    """Of the look before it."""
    is_hurried: bool = True
    """Whether somebody waited for the next decision meanwhile, as others will."""
    left: int = 0
    """So many pods were left for the next time, because it was cut short."""


class Bites:
    """How many steps of a decision are taken at a time."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self.most = pace.most_steps
        """So many next; 0 sets no limit."""
        self.is_long = False
        """Whether that is for who has time, and so may be cut short."""
        self._per_second: float | None = None
        """So fast it went last."""
        self._latest: Taken | None = None
        """Of which some may not have been done yet."""
        self._owes = False
        """Whether pods were left by the one before."""

    def hurried_seconds(self, effort: float) -> float:
        """How long one is to take after a look of so much effort, where somebody waits."""
        return self._in_bounds(self._pace.rest_share * effort)

    def note(self, taken: Taken) -> None:
        """Learn how fast it goes."""
        if taken.left or self._owes:
            # How fast it goes with what was left says nothing.
            self._latest = None
        else:
            self._learn_speed(taken)
            self._latest = taken
        self._owes = bool(taken.left)
        self._size_next(taken)

    def note_rest(self, seconds: float) -> None:
        """Learn that the latest one has taken so much longer: the next look had begun meanwhile."""
        taken, self._latest = self._latest, None
        if taken is not None:
            taken = replace(taken, seconds=taken.seconds + seconds)
            self._learn_speed(taken)
            self._size_next(taken)

    def _learn_speed(self, taken: Taken) -> None:
        if taken.steps and taken.seconds > 0.0:
            self._per_second = taken.steps / taken.seconds

    def _size_next(self, taken: Taken) -> None:
        if not self._pace.most_steps:
            return
        self.is_long = not taken.is_hurried
        if self._per_second is None:
            return
        time_for_it = self.hurried_seconds(taken.effort)
        if self.is_long:
            time_for_it = self._in_bounds(UNHURRIED * self._pace.rest_share * taken.effort)
        # What was left is done first of all.
        steps = int(self._per_second * time_for_it - LAUNCH_SHARE * taken.left)
        self.most = min(self._pace.most_steps, max(LEAST_STEPS, steps))

    def _in_bounds(self, seconds: float) -> float:
        usual = self._pace.bite_seconds
        return min(max(usual, seconds), LONGEST_BITE * usual)


class Effort:
    """How much of a core a look takes, without what others do while it waits for them."""

    def __init__(self) -> None:
        self._before = 0.0
        self._since = time.thread_time()
        self.waited = 0.0
        """For how long others had their turn."""

    @property
    def seconds(self) -> float:
        """So much until now."""
        return self._before + time.thread_time() - self._since

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Others have their turn meanwhile."""
        self._before, began = self.seconds, time.perf_counter()
        try:
            yield
        finally:
            self._since = time.thread_time()
            self.waited += time.perf_counter() - began

    def rest(self, pace: Pace) -> float:
        """How long others are still to have their turn."""
        due = pace.rest_share * self.seconds - self.waited
        return min(max(0.0, due), pace.longest_rest_seconds)
