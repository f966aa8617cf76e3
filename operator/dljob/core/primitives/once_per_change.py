"""Text that is reported once, and again only after it has changed or the matter was settled."""

from collections.abc import Hashable
from collections.abc import Set as AbstractSet
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class OncePerChange(Generic[K]):
    """Remembers the last text about each thing, so that a repeated error is one line in the log."""

    def __init__(self) -> None:
        self._last: dict[K, str] = {}

    def __len__(self) -> int:
        return len(self._last)

    def note(self, about: K, said: str | Exception) -> bool:
        """Remember this text, or this error with its type; return whether it is news."""
        text = said if isinstance(said, str) else f"{type(said).__name__}: {said}"
        before, self._last[about] = self._last.get(about), text
        return text != before

    def settle(self, about: K) -> bool:
        """Forget the text about something that is in order again; return whether there was any."""
        return self._last.pop(about, None) is not None

    def keep(self, those: AbstractSet[K]) -> None:
        """Forget the texts about everything but these."""
        for about in self._last.keys() - those:
            del self._last[about]
