"""Leaves out documents that cannot be read, and reports each once, so that the others still count."""

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from dljob.core.primitives.once_per_change import OncePerChange

log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_REPORTED: Final = 1000
"""Users can create any number of unreadable documents, and the log must not fill a disk."""


class Unread:
    """Remembers which documents were reported."""

    def __init__(self) -> None:
        self._reported: OncePerChange[object] = OncePerChange()

    def attempt(self, subject: object, read: Callable[[], T], *, otherwise: T) -> T:
        """Read something of ``subject``, such as a pod by its name; return ``otherwise`` if that fails."""
        try:
            result = read()
        except Exception as error:  # noqa: BLE001 - one unreadable document must not end a follower
            if len(self._reported) < MOST_REPORTED and self._reported.note(subject, error):
                why = f"{type(error).__name__}: {error}"
                log.warning("%s is not counted, because it cannot be read (%s)", subject, why[:200])
            return otherwise
        self._reported.settle(subject)
        return result
