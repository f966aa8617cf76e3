"""
Sessions of browsers: a cookie and a proof name one, and its token is in memory alone.

A browser sends the cookie to all ports of a host, also to those of other users of a machine. So the cookie alone is of no
use: the page keeps the proof in the storage of its own origin, and sends it in a header.

So a token is in no file, page or browser, and is lost when this process ends. It is reviewed again and again: a token
that the API server no longer accepts ends its session.
"""

import hashlib
import secrets
import time
from collections.abc import Callable
from typing import Final, NamedTuple

LONGEST_S: Final = 8 * 3600.0
"""After this time a user logs in again."""

MOST: Final = 10_000
"""Beyond this number the oldest session ends."""

MOST_OF_USER: Final = 50
"""Beyond this number the oldest session of a user ends, so that no user ends the sessions of others."""

NAME_BYTES: Final = 32


class Name(NamedTuple):
    """Names a session."""

    cookie: str
    proof: str


class Session(NamedTuple):
    """A user who has logged in."""

    token: str
    user: str
    until: float


class Sessions:
    """All of them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[bytes, Session] = {}

    def open(self, token: str, user: str) -> Name:
        """Begin one."""
        self._sweep(user)
        name = Name(secrets.token_urlsafe(NAME_BYTES), secrets.token_urlsafe(NAME_BYTES))
        self._kept[_digest(name)] = Session(token, user, self._clock() + LONGEST_S)
        return name

    def find(self, name: Name) -> str:
        """Return the token of a session; empty if there is none of that name, or its time is over."""
        session = self._kept.get(_digest(name))
        return session.token if session is not None and self._clock() < session.until else ""

    def close(self, name: Name) -> None:
        self._kept.pop(_digest(name), None)

    def _sweep(self, user: str) -> None:
        """Make room for one more session of this user."""
        now = self._clock()
        self._kept = {key: each for key, each in self._kept.items() if now < each.until}
        own = [key for key, each in self._kept.items() if each.user == user]
        for key in own[: len(own) + 1 - MOST_OF_USER]:
            del self._kept[key]
        while len(self._kept) >= MOST:
            del self._kept[next(iter(self._kept))]


def _digest(name: Name) -> bytes:
    """Return the key of a session; a digest, so that the time of a look-up reveals nothing about a name."""
    return hashlib.sha256("\n".join(name).encode(errors="replace")).digest()
