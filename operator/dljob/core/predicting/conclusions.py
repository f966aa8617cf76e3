"""
Conclusions that are kept from one decision to the next, because they are slow to draw.

They are conclusions only: without them the answers would be the same, but found more slowly. A few are
kept of each kind, because several simulations may take turns in one process.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """The latest conclusions of one kind."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.latest: list[T] = []

    def recall(self, suits: Callable[[T], bool], make: Callable[[], T]) -> T:
        """Return the conclusions that suit, or draw new ones and forget the oldest."""
        for known in self.latest:
            if suits(known):
                return known
        made = make()
        # A new list, because another thread may be searching the present one. Without a lock: of two threads
        # that add at the same time one may be overwritten, and then its conclusions are drawn once more.
        self.latest = [made, *self.latest[: self._most - 1]]
        return made
