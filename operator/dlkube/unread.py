"""Documents of others that cannot be read: each is left out and reported once, and the rest go on."""

import logging
from collections.abc import Callable
from typing import Final, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_TOLD: Final = 1000
"""Others can make documents without end, and the log must not fill a disk."""


class Unread:
    """Remembers what was reported. One for each follower."""

    def __init__(self) -> None:
        self._told: dict[object, str] = {}

    def attempt(self, what: object, read: Callable[[], T], otherwise: T) -> T:
        """Read something of ``what``, such as a pod by its name; return ``otherwise`` if that fails."""
        try:
            result = read()
        except Exception as error:  # noqa: BLE001 - no document of others ends a follower
            self._tell(what, f"{type(error).__name__}: {error}")
            return otherwise
        self._told.pop(what, None)
        return result

    def _tell(self, what: object, why: str) -> None:
        if self._told.get(what) == why or len(self._told) >= MOST_TOLD:
            return
        self._told[what] = why
        log.warning("%s is not counted, because it cannot be read (%s)", what, why[:200])
