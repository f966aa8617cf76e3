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
        self.inner = inner
        self.most = most
        self.open: Counter[int] = Counter()
        self.refused: Counter[int] = Counter()
        """Refused connections that are still open."""

    def __call__(self) -> asyncio.Protocol:
        return _CountedConnection(self)

    def refusal_text(self, uid: int) -> bytes:
        error = (
            f"{name_user(uid)} has {self.most} connections to this server, which is the most for one user;"
            " end some of the dljob commands that wait or follow"
        )
        body = json.dumps({"error": error, "problems": []}).encode()
        head = (
            "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body


class _CountedConnection(asyncio.Protocol):
    """A counted connection in front of the protocol that serves it."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._uid = 0
        self._inner: asyncio.Protocol | None = None
        self._counted: Counter[int] | None = None
        """The counter that holds this connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        ours, limits = cast("asyncio.Transport", transport), self._limits
        self._uid = uid = read_peer(ours.get_extra_info("socket")).uid
        if uid == 0 or limits.open[uid] < limits.most:
            self._count(limits.open)
            self._inner = limits.inner()
            self._inner.connection_made(transport)
        elif limits.refused[uid] < MOST_REFUSALS:
            self._count(limits.refused)
            # Closing with unread input resets the connection, so that the client loses the answer.
            ours.write(limits.refusal_text(uid))
            asyncio.get_running_loop().call_later(REFUSAL_S, ours.close)
        else:
            ours.abort()

    def _count(self, counter: Counter[int]) -> None:
        counter[self._uid] += 1
        self._counted = counter

    def connection_lost(self, exc: Exception | None) -> None:
        if self._counted is not None:
            self._counted[self._uid] -= 1
            if not self._counted[self._uid]:
                del self._counted[self._uid]
        if self._inner is not None:
            self._inner.connection_lost(exc)

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
