"""Limits of each user but root on a shared server.

Connections are counted before the server reads from them: otherwise a user who opens thousands and
sends nothing would use up all descriptors of the server.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from dljob.control.sidecars.peers import read_peer
from dljob.local.environments import name_user

REFUSAL_S: Final = 1.0
"""How long a refused connection stays open so that the client can read the answer."""
MOST_REFUSALS: Final = 16
"""The most refused connections of one user that stay open. More are closed without an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLimits:
    """The limits of each user but root at a server of all users."""

    most_jobs: int = 1000
    """The most jobs that have not ended."""
    most_connections: int = 64
    """The most connections at the same time. Each ``dljob`` that follows something has one or two."""

    def __post_init__(self) -> None:
        for name in ("most_jobs", "most_connections"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; give at least 1")


class ConnectionLimits:
    """A factory of protocols that counts connections in front of another factory."""

    def __init__(self, inner: Callable[[], asyncio.Protocol], most: int) -> None:
        self._inner = inner
        self._most = most
        self._open: Counter[int] = Counter()
        self._refused: Counter[int] = Counter()
        """Refused connections that are still open."""

    def __call__(self) -> asyncio.Protocol:
        return _CountedConnection(self)

    def admit(self, transport: asyncio.Transport) -> tuple[int, asyncio.Protocol | None]:
        """Return the user of a connection, and a protocol unless that user has too many connections."""
        uid = read_peer(transport.get_extra_info("socket")).uid
        if uid != 0 and self._open[uid] >= self._most:
            return uid, None
        self._open[uid] += 1
        return uid, self._inner()

    def release(self, uid: int) -> None:
        _subtract(self._open, uid)

    def begin_refusal(self, uid: int) -> bool:
        """Count a refused connection; return whether it may stay open for the answer."""
        if self._refused[uid] >= MOST_REFUSALS:
            return False
        self._refused[uid] += 1
        return True

    def end_refusal(self, uid: int) -> None:
        _subtract(self._refused, uid)

    def refusal_text(self, uid: int) -> bytes:
        error = (
            f"{name_user(uid)} has {self._most} connections to this server, which is the most for one user;"
            " end some of the dljob commands that wait or follow"
        )
        body = json.dumps({"error": error, "problems": []}).encode()
        head = (
            "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body


def _subtract(counter: Counter[int], uid: int) -> None:
    counter[uid] -= 1
    if not counter[uid]:
        del counter[uid]


class _CountedConnection(asyncio.Protocol):
    """A counted connection in front of the protocol that serves it."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._uid = 0
        self._inner: asyncio.Protocol | None = None
        self._is_refused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        ours = cast("asyncio.Transport", transport)
        self._uid, self._inner = self._limits.admit(ours)
        if self._inner is not None:
            self._inner.connection_made(transport)
            return
        self._is_refused = self._limits.begin_refusal(self._uid)
        if self._is_refused:
            # Closing with unread input resets the connection, so that the client loses the answer.
            ours.write(self._limits.refusal_text(self._uid))
            asyncio.get_running_loop().call_later(REFUSAL_S, ours.close)
        else:
            ours.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._inner is not None:
            self._limits.release(self._uid)
            self._inner.connection_lost(exc)
        elif self._is_refused:
            self._limits.end_refusal(self._uid)

    def data_received(self, data: bytes) -> None:
        if self._inner is not None:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._inner is not None else None

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()
