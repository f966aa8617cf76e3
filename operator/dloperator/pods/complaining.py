"""What goes wrong again and again is told once, until it has gone right or goes wrong otherwise."""

from collections.abc import Hashable
from collections.abc import Set as AbstractSet


class Complaints:
    """Remembers what was told of each thing."""

    def __init__(self) -> None:
        self._told: dict[Hashable, str] = {}

    def is_new(self, about: Hashable, error: Exception) -> bool:
        """Whether this has to be told, which it then is."""
        said = f"{type(error).__name__}: {error}"
        before, self._told[about] = self._told.get(about), said
        return said != before

    def settle(self, about: Hashable) -> None:
        """Take note that it went right."""
        self._told.pop(about, None)

    def keep(self, abouts: AbstractSet[Hashable]) -> None:
        """Take note that all things but these went right, or are gone."""
        for about in self._told.keys() - abouts:
            del self._told[about]
