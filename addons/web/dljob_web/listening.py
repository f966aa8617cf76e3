"""
Serves an application at a port, also while others hold many connections open.

All who reach the port can open connections, and a connection says whose it is only by a request that the application's
check lets pass. So the number of connections has a limit, and beyond it a new connection takes the place of the oldest
one of an unknown user. Without such a limit, idle connections use up the files of the process, and it takes no more.
"""

import asyncio
import logging
import math
import resource
import socket
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from dljob_web.guarding import CALLER, Handler

log = logging.getLogger(__name__)

BACKLOG: Final = 128

GOODBYE_S: Final = 0.5
"""The grace period for responses at the end."""

MOST: Final = 512
"""The number of connections, if the process may open twice as many files."""

UNKNOWN_S: Final = 15.0
"""A connection ends if no request of a known user comes in this time, which limits handshakes and headers as well."""

IDLE_S: Final = 75.0
"""A connection of a known user ends after this time without a request."""

LOOK_S: Final = 1.0
"""The interval of checks for old connections, and of attempts while the system refuses connections."""

QUIET_S: Final = 60.0
"""A refusal by the system is logged again after this time without one."""


@dataclass(slots=True, eq=False)
class Connection:
    socket: socket.socket
    since: float
    """When it began, or when its latest request passed the check."""
    user: str | None = None

    @property
    def is_open(self) -> bool:
        # The transport closes the socket.
        return self.socket.fileno() >= 0

    def end(self) -> None:
        """End it at any moment: the transport, or a handshake under way, sees that the client has gone."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


class Connections:
    """The connections of one server."""

    def __init__(self) -> None:
        self._most = min(MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._open: dict[int, Connection] = {}
        """By file descriptor, the oldest first."""
        self._refused = -math.inf
        """When the system last refused a connection, for example because the process has too many open files."""

    @web.middleware
    async def note(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Note the user of a request that has passed the check."""
        if request.transport is not None:
            number = request.transport.get_extra_info("socket").fileno()
            connection = self._open.get(number)
            if connection is not None:
                connection.since = time.monotonic()
                connection.user = request[CALLER].name if CALLER in request else connection.user
        return await handler(request)

    async def take_all(
        self, door: socket.socket, server: web.Server, *, tls: ssl.SSLContext | None
    ) -> None:
        """Take connections until this is cancelled."""
        door.settimeout(0.0)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._end_old())
            while True:
                taken = await self._take(door)
                self._keep(taken)
                tasks.create_task(_connect(taken, server, tls=tls))
                # Otherwise a flood of connections leaves no time for answers.
                await asyncio.sleep(0)

    async def _take(self, door: socket.socket) -> socket.socket:
        while True:
            try:
                return (await asyncio.get_running_loop().sock_accept(door))[0]
            except OSError as error:
                now = time.monotonic()
                if now - self._refused > QUIET_S:
                    log.warning("takes no connections at the moment: %s", error.strerror)
                self._refused = now
            self._make_room()
            await asyncio.sleep(LOOK_S)

    def _keep(self, taken: socket.socket) -> None:
        if len(self._open) >= self._most:
            self._drop_closed()
        while len(self._open) >= self._most:
            self._make_room()
        # Another connection may have had the number, at another place in the order.
        self._open.pop(taken.fileno(), None)
        self._open[taken.fileno()] = Connection(taken, time.monotonic())

    def _make_room(self) -> None:
        """End the oldest connection of an unknown user, or else the oldest of the user who has most of them."""
        users = Counter(each.user for each in self._open.values())
        user = None if None in users else next((name for name, _ in users.most_common(1)), None)
        for number, each in self._open.items():
            if each.user == user:
                each.end()
                del self._open[number]
                return

    async def _end_old(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._drop_closed()
            limit = time.monotonic() - UNKNOWN_S
            for each in self._open.values():
                if each.user is None and each.since < limit:
                    each.end()

    def _drop_closed(self) -> None:
        self._open = {number: each for number, each in self._open.items() if each.is_open}


async def _connect(taken: socket.socket, server: web.Server, *, tls: ssl.SSLContext | None) -> None:
    try:
        await asyncio.get_running_loop().connect_accepted_socket(server, taken, ssl=tls)
    except OSError:
        pass  # The client has left, or speaks no TLS.
    except Exception:
        # An error with one client ends no connection of another.
        log.exception("cannot serve a connection")


def listen(host: str, port: int) -> socket.socket:
    """Open a port, 0 for one that is free; raises ``OSError``."""
    family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    door = socket.socket(family, kind, protocol)
    try:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind(where)
        door.listen(BACKLOG)
    except OSError:
        door.close()
        raise
    return door


async def serve(
    application: web.Application,
    door: socket.socket,
    *,
    until: Callable[[], Awaitable[object]],
    tls: ssl.SSLContext | None = None,
) -> None:
    """Serve until ``until`` returns."""
    connections = Connections()
    # The last one, so that a request has passed the check before.
    application.middlewares.append(connections.note)
    runner = web.AppRunner(
        application,
        access_log=None,
        shutdown_timeout=GOODBYE_S,
        auto_decompress=False,
        keepalive_timeout=IDLE_S,
    )
    await runner.setup()
    assert runner.server is not None
    try:
        async with asyncio.TaskGroup() as tasks:
            taking = tasks.create_task(connections.take_all(door, runner.server, tls=tls))
            await until()
            taking.cancel()
    finally:
        await runner.cleanup()
