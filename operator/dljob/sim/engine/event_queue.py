"""
The clock of the simulated world: events in order of time, and nothing else.

:mod:`dljob.sim.engine.world` puts events in and takes them out instant by instant. Time is rounded to the
microsecond, so that a completion computed by division and an arrival read from a file meet in
one instant when they should, and one decision is made for both.
"""

import heapq
from collections.abc import Callable
from enum import IntEnum

Event = Callable[[], None]

RESOLUTION = 1e-6
"""The shortest time that there is."""


class Order(IntEnum):
    """The order within one instant: events that free GPUs come before events that want them."""

    COMPLETION = 0
    CHANGE = 1
    FAILURE = 2
    ARRIVAL = 3
    WAKE = 4


class EventQueue:
    """A queue of events. Ties are settled by :class:`Order`, then by the order in which they were put in."""

    __slots__ = ("_count", "_facts", "_heap", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._count = 0
        self._facts = 0
        self._heap: list[tuple[float, Order, int, Event]] = []

    def at(self, time: float, order: Order, *, event: Event) -> None:
        """Let ``event`` happen at ``time``, or now if that has passed."""
        self._count += 1
        self._facts += order is not Order.WAKE
        when = max(self.now, round(time, 6))
        heapq.heappush(self._heap, (when, order, self._count, event))

    def __bool__(self) -> bool:
        return bool(self._heap)

    @property
    def only_wakes(self) -> bool:
        """Return whether no event is left except wake-ups that a policy asked for."""
        return self._facts == 0

    def next_time(self) -> float:
        """Return when the next event happens."""
        return self._heap[0][0]

    def pop(self) -> Event:
        """Take the next event out; the clock moves to it."""
        self.now, order, _, event = heapq.heappop(self._heap)
        self._facts -= order is not Order.WAKE
        return event
