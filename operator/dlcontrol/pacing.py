"""How often the loop looks, waits and decides."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
    at everything takes long itself, up to three times as long, so that less of the time is spent on looks."""
    trailing_launches: int = 0
    """So many pods may still be asked for when the next look begins, so that a server has something to do
    meanwhile."""


LONGEST_BITE: Final = 3.0
"""So many times as long as usual at most, because newcomers wait until it is taken."""
LEAST_STEPS: Final = 8
"""So many are taken at a time however slow it is, for each look costs something too."""


class Bites:
    """How many steps of a decision are taken at a time."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self.most = pace.most_steps
        """So many next; 0 sets no limit."""
        self._latest = (0, 0.0, 0.0)
        """What was noted last, of which some may not have been done yet."""

    def note(self, steps: int, seconds: float, *, effort: float = 0.0) -> None:
        """Learn that so many have taken so long, after a look of so much effort."""
        self._latest = (steps, seconds, effort)
        if steps and seconds > 0.0 and self._pace.most_steps:
            usual = self._pace.bite_seconds
            time_for_it = min(max(usual, self._pace.rest_share * effort), LONGEST_BITE * usual)
            in_time = max(LEAST_STEPS, int(steps * time_for_it / seconds))
            self.most = min(self._pace.most_steps, in_time)

    def note_rest(self, seconds: float) -> None:
        """Learn that the latest ones have taken so much longer: the next look had begun meanwhile."""
        steps, until_then, effort = self._latest
        self.note(steps, until_then + seconds, effort=effort)
        self._latest = (0, 0.0, 0.0)


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
