"""
The listeners of a SideCar: opened before anything else, closed at the end.

:mod:`dljob_sidecar.serving.serving` answers requests, :mod:`dljob_sidecar.serving.trust` admits clients.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import math
import os
import socket
import ssl
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream
from tornado.netutil import bind_sockets, bind_unix_socket
from tornado.web import Application

from dljob_sidecar.serving import serving, trust
from dljob_sidecar.settings import Serving

log = logging.getLogger(__name__)

CHUNK = 64 * 1024
NO_LIMIT = 2**62
"""Disable Tornado's body limit, which closes the connection; the server counts itself."""
LONGEST_SOCKET_PATH = 103
"""The longest path that Linux allows, minus the temporary suffix of the socket."""
LAST_WORDS_SECONDS = 1.0
LAST_WORDS_STEP_SECONDS = 0.02

MOST_CONNECTIONS = 128
CROWD_PAUSE_SECONDS = 60.0
LARGEST_HEADERS = 16 * 1024


class LimitedServer(HTTPServer):
    """
    A server with a limited number of connections.

    At the limit, a new connection replaces another: an unidentified one from the address with the
    most of them, or else the oldest guest. Guests are read-only clients, such as the processes of
    the job, which has its own certificate. Guests never take all places, and the server never
    closes the connection of a commanding client for another.
    """

    def initialize(self, *arguments: Any, **named: Any) -> None:
        """Initialize the server as Tornado requires."""
        super().initialize(*arguments, **named)
        self._strangers: dict[IOStream, str] = {}
        """The unidentified connections with their addresses."""
        self._guests: dict[IOStream, None] = {}
        self._told_at = -math.inf

    def handle_stream(self, stream: IOStream, address: Any) -> None:
        """Accept a connection, or close it."""
        self._strangers = {
            one: whence for one, whence in self._strangers.items() if not one.closed()
        }
        self._guests = {one: None for one in self._guests if not one.closed()}
        if len(self._connections) >= MOST_CONNECTIONS:
            now = time.monotonic()
            if now - self._told_at > CROWD_PAUSE_SECONDS:
                self._told_at = now
                log.warning("there are too many connections, one more of them from %s", address)
            if not self._make_room():
                stream.close()
                return
        self._strangers[stream] = str(address[0]) if isinstance(address, tuple) else ""
        super().handle_stream(stream, address)

    def _make_room(self) -> bool:
        """Close the least important connection; return True if there was one."""
        crowds = Counter(self._strangers.values())
        victims = sorted(self._strangers, key=lambda one: -crowds[self._strangers[one]])
        victim = next(iter([*victims, *self._guests]), None)
        if victim is None:
            return False
        self._strangers.pop(victim, None)
        self._guests.pop(victim, None)
        victim.close()
        return True

    def welcome(self, stream: IOStream, *, is_guest: bool) -> None:
        """Keep an identified connection; guests get at most half of all places."""
        self._strangers.pop(stream, None)
        if not is_guest:
            self._guests.pop(stream, None)
            return
        self._guests[stream] = None
        while len(self._guests) > MOST_CONNECTIONS // 2:
            oldest = next(iter(self._guests))
            del self._guests[oldest]
            oldest.close()

    def use(self, context: ssl.SSLContext) -> None:
        """Use these certificates for all new connections."""
        self.ssl_options = context


class Servers:
    """All listeners of one SideCar, from :meth:`open` to :meth:`close`; opening raises OSError."""

    def __init__(self, agent: serving.Agent, settings: Serving) -> None:
        self._agent = agent
        self._settings = settings
        self._certificates: trust.Certificates | None = None
        self._listeners: list[trust.Listener] = []
        self._network: LimitedServer | None = None
        self._servers: list[LimitedServer] = []
        self._paths: list[Path] = []
        self._locks: list[int] = []
        self._closings: set[asyncio.Future[None]] = set()
        self.port = 0
        """The port for the controller; differs from the settings if they say 0."""
        self.health_port = 0

    def open(self) -> None:
        settings = self._settings
        if settings.tls_folder:
            self._open_network()
        if settings.socket:
            self._serve_control(trust.Listener(), [self._unix_socket(settings.socket)])
        if settings.progress_socket:
            app = serving.inner_app(self._agent, settings)
            self._serve(app, [self._unix_socket(settings.progress_socket)])
        if settings.health_port is not None:
            sockets = bind_sockets(settings.health_port, settings.health_address or None)
            self.health_port = port_of(sockets)
            self._serve(serving.health_app(self._agent, settings), sockets)

    def _open_network(self) -> None:
        settings = self._settings
        self._certificates = trust.Certificates(Path(settings.tls_folder))
        context = self._certificates.load()
        listener = trust.CertificateListener(
            controller_name=settings.controller_name, job_uid=settings.job_uid
        )
        sockets = bind_sockets(settings.port, settings.address or None)
        self.port = port_of(sockets)
        self._network = self._serve_control(listener, sockets, context=context)

    def _serve_control(
        self,
        listener: trust.Listener,
        sockets: list[socket.socket],
        *,
        context: ssl.SSLContext | None = None,
    ) -> LimitedServer:
        app = serving.controller_app(self._agent, self._settings, listener=listener)
        server = self._serve(app, sockets, context=context)
        listener.on_welcome = lambda stream, is_guest: server.welcome(stream, is_guest=is_guest)
        self._listeners.append(listener)
        return server

    def _serve(
        self,
        app: Application,
        sockets: list[socket.socket],
        *,
        context: ssl.SSLContext | None = None,
    ) -> LimitedServer:
        seconds = self._settings.header_seconds
        server = LimitedServer(
            app,
            ssl_options=context,
            idle_connection_timeout=seconds,
            # The server's own limit comes first, with an answer; this limit closes the connection.
            body_timeout=seconds + LAST_WORDS_SECONDS,
            max_header_size=LARGEST_HEADERS,
            max_body_size=NO_LIMIT,
            chunk_size=CHUNK,
            max_buffer_size=self._settings.largest_body + LARGEST_HEADERS + CHUNK,
        )
        server.add_sockets(sockets)
        self._servers.append(server)
        return server

    def _unix_socket(self, path: str) -> socket.socket:
        """Listen at a socket that only its owner can open at any moment."""
        if len(os.fsencode(path)) > LONGEST_SOCKET_PATH:
            text = f"a socket's path has at most {LONGEST_SOCKET_PATH} bytes"
            raise OSError(text, path)
        # Lock first, because bind_unix_socket() removes a socket at `.new`, which without the lock
        # may belong to a SideCar that starts at the same moment.
        self._locks.append(lock(path))
        # The umask holds for the whole process; threads that create files start after open().
        before = os.umask(0o177)
        try:
            # Replace the socket atomically, because watchers rely on a socket that is missing only
            # before the first start and after an orderly end.
            bound = bind_unix_socket(f"{path}.new", mode=0o600)
            Path(f"{path}.new").rename(path)
        finally:
            os.umask(before)
        self._paths.append(Path(path))
        return bound

    def renew(self) -> None:
        if self._certificates is None or self._network is None:
            return
        context = self._certificates.renewed()
        if context is None:
            return
        log.info("the certificates were renewed")
        self._network.use(context)
        # Close all connections, so clients of the old CA must authenticate with the new one.
        closing = asyncio.ensure_future(self._network.close_all_connections())
        # Keep a reference, because the event loop holds tasks weakly and they might be collected.
        self._closings.add(closing)
        closing.add_done_callback(self._closings.discard)

    @property
    def has_readable_certificates(self) -> bool:
        return self._certificates is None or self._certificates.is_readable

    @property
    def waiting(self) -> int:
        return sum(
            len(listener.waiting) + len(listener.waiting_guests) for listener in self._listeners
        )

    async def close(self) -> None:
        """
        Accept no new connections, and give the followers time to read the last state.

        Only the last state has the cost of the end. A follower that has just received the previous
        state counts as well, because it is about to ask again.
        """
        for server in self._servers:
            server.stop()
        for listener in self._listeners:
            listener.close()
        # Count loop turns instead of time, so followers keep their chance after a pause of the
        # machine.
        left = LAST_WORDS_SECONDS
        while left > 0 and (
            self.waiting or any(one.owes(self._agent.version) for one in self._listeners)
        ):
            await asyncio.sleep(LAST_WORDS_STEP_SECONDS)
            left -= LAST_WORDS_STEP_SECONDS
        for server in self._servers:
            await server.close_all_connections()
        # Remove the sockets under their locks, before they can be the next SideCar's.
        for path in self._paths:
            path.unlink(missing_ok=True)
        for held in self._locks:
            os.close(held)
        self._locks.clear()


def lock(path: str) -> int:
    """
    Lock the right to listen at a socket; raise OSError if a living process holds the lock.

    A socket outlives a killed process, so its existence proves nothing. The kernel releases the
    lock at each death. The lock file stays, because after its removal two processes could hold
    locks of the same name.
    """
    held = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(held)
        raise OSError(error.errno, "another SideCar listens there", path) from error
    return held


def port_of(sockets: list[socket.socket]) -> int:
    return int(sockets[0].getsockname()[1])
