"""Jobs in order of arrival, as a snapshot wants them; a change costs a binary search."""

from bisect import bisect_left

from dljob.core.model import JobState


class Roster:
    """The states of some jobs, always sorted by their order of arrival."""

    __slots__ = ("_orders", "_states")

    def __init__(self) -> None:
        self._orders: list[int] = []
        self._states: list[JobState] = []

    def __len__(self) -> int:
        return len(self._orders)

    def put(self, state: JobState) -> None:
        """Add the job, or put its new state in the place of the old one."""
        place = bisect_left(self._orders, state.order)
        if place < len(self._orders) and self._orders[place] == state.order:
            self._states[place] = state
        else:
            self._orders.insert(place, state.order)
            self._states.insert(place, state)

    def drop(self, state: JobState) -> None:
        """Take the job out."""
        place = bisect_left(self._orders, state.order)
        del self._orders[place]
        del self._states[place]

    def states(self) -> tuple[JobState, ...]:
        """All of them, the oldest first."""
        return tuple(self._states)
