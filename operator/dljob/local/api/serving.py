"""
The server of ``dljob up``: HTTP with JSON (``/v1/…``) on a Unix socket that only permitted users may open.

:mod:`dljob.local.api.jobs` and :mod:`dljob.local.api.machine_api` answer the requests; docs/reference/machine-api.md describes them.
"""

import asyncio
import contextlib
import os
import socket
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple, cast

from aiohttp import web
from aiohttp.typedefs import Middleware

from dljob.control.situation.ports import Fenced
from dljob.local.api.access import Access
from dljob.local.api.jobs.changing import JobsChanging
from dljob.local.api.jobs.expected_turns import ExpectedTurns
from dljob.local.api.jobs.job_documents import JobDocuments
from dljob.local.api.jobs.reading import JobsReading
from dljob.local.api.machine_api import MachineApi
from dljob.local.api.refusals import answer_errors
from dljob.local.api.requests import TURNS, Turns
from dljob.local.folders import StateError
from dljob.local.jobs.user_limits import ConnectionLimits
from dljob.local.server_parts import LatestScene, ServerParts
from dljob_wire.endpoints import read_endpoint

LARGEST_REQUEST = 16 << 20
LARGEST_OF_MANY: Final = 4 << 20
"""On a shared server, where each user may send one on each connection."""
GOODBYE_S = 0.5
"""How long requests may continue when the server closes."""


class Server:
    def __init__(self, parts: ServerParts, *, metrics: str = "", group: int | None = None) -> None:
        """A shared server is open to ``group``, or to all users."""
        self._path = parts.folders.socket
        self._registry = parts.registry
        self._is_open = False
        self._shared_server: asyncio.Server | None = None
        self._most_connections = parts.user_limits.most_connections
        latest = LatestScene(parts)
        access = Access(parts.registry, shared=parts.shared)
        machine = MachineApi(parts, latest, access=access)
        waiting = ExpectedTurns(latest, parts.policy)
        documents = JobDocuments(parts, latest, access, waiting)
        reading = JobsReading(parts, latest, access, documents=documents, waiting=waiting)
        changing = JobsChanging(parts, latest, access, documents=documents)
        routes = (*reading.routes(), *changing.routes(), *machine.routes())
        largest = LARGEST_OF_MANY if parts.shared else LARGEST_REQUEST
        self._api = _runner(routes, access.guard, largest=largest)
        self._metrics_at = metrics
        self._metrics = _runner((web.get("/metrics", machine.metrics),))
        self._access = SocketAccess(shared=parts.shared, group=group)

    async def open(self) -> None:
        """Begin to answer; raises :class:`StateError` if a socket cannot be opened."""
        if self._metrics_at:
            await self._open_metrics(self._metrics_at)
        await self._api.setup()
        door = _listen(self._path, self._access)
        # From here on `close` removes the socket, also if the next step fails.
        self._is_open = True
        if not self._access.shared:
            await web.SockSite(self._api, door).start()
            return
        answering = cast("Callable[[], asyncio.Protocol]", self._api.server)
        limits = ConnectionLimits(answering, self._most_connections)
        self._shared_server = await asyncio.get_running_loop().create_unix_server(limits, sock=door)

    async def _open_metrics(self, address: str) -> None:
        """Serve only the metrics on a port."""
        try:
            host, port = read_endpoint(address, least_port=1)
        except ValueError as error:
            raise StateError(f"serving.metrics: {error}") from error
        await self._metrics.setup()
        try:
            await web.TCPSite(self._metrics, host or "127.0.0.1", port).start()
        except OSError as error:
            # asyncio puts words of its own around the system's message.
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise StateError(
                f"serving.metrics: {address} cannot be opened ({reason}); choose another"
                " port, or end the process that has it"
            ) from error

    async def close(self) -> None:
        if self._shared_server is not None:
            # The runner does not know this server.
            self._shared_server.close()
        await self._metrics.cleanup()
        await self._api.cleanup()
        if self._is_open:
            # Unless another controller has begun meanwhile; a socket that is left does no harm.
            with contextlib.suppress(Fenced, sqlite3.Error), self._registry.leading():
                self._path.unlink(missing_ok=True)


class SocketAccess(NamedTuple):
    """The users that may open a socket."""

    shared: bool = False
    group: int | None = None

    def apply(self, path: Path) -> None:
        if not self.shared:
            path.chmod(0o600)
        elif self.group is None:
            path.chmod(0o666)
        else:
            os.chown(path, -1, self.group)
            path.chmod(0o660)


def _runner(
    routes: Iterable[web.RouteDef], *guards: Middleware, largest: int = LARGEST_REQUEST
) -> web.AppRunner:
    application = web.Application(middlewares=[answer_errors, *guards], client_max_size=largest)
    application[TURNS] = Turns()
    application.add_routes(routes)
    return web.AppRunner(
        application,
        access_log=None,
        shutdown_timeout=GOODBYE_S,
        handle_signals=False,
        # A compressed request can expand a thousandfold, even after it is refused.
        auto_decompress=False,
    )


def _listen(path: Path, access: SocketAccess) -> socket.socket:
    """
    Make the socket, which gets its name only when it listens and has its permissions.

    An existing socket is left from a crash, because the caller holds the lock of the folder. It goes first: a full disk
    may have no other inode.
    """
    ours = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    hidden = path.with_suffix(".new")
    try:
        for left in (hidden, path):
            left.unlink(missing_ok=True)
        ours.bind(str(hidden))
        access.apply(hidden)
        ours.listen(128)
        hidden.rename(path)
    except OSError as error:
        ours.close()
        with contextlib.suppress(OSError):
            hidden.unlink(missing_ok=True)
        raise StateError(
            f"{path}: cannot be created ({error.strerror}); name another folder with --state"
        ) from error
    return ours
