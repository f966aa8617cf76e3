"""
Where the processes of a Horovod training find each other.

Each framework but Horovod brings this along: with PyTorch and JAX the first process listens at the
rendezvous port, with TensorFlow all do. Horovod leaves it to its launcher, ``horovodrun``, which
runs a small server there; so the SideCar of the first container does, for as long as the
generation lives. Its words are those of ``horovod/runner/http/http_server.py``, as they are spoken
by ``horovod/common/gloo/http_store.cc``: values under ``/SCOPE/KEY``, PUT by one process, polled
with GET by the processes that wait for them (404 until then), and a DELETE by each
process that needs its scope no longer. When all have said so, the scope is empty again.

Clients do not authenticate here, because Horovod's processes cannot. So the server is as restricted
as possible: it is open only while processes of the generation may live, only to this machine where
the job has one container, and everything is limited: connections, headers, bodies, and all values
together.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import ipaddress
import logging
import os
import socket
import struct
from collections import defaultdict

from tornado.web import Application, HTTPError, RequestHandler

from dlsidecar.processes import ranks
from dlsidecar.serving.connections import LARGEST_HEADERS, MOST_CONNECTIONS, LimitedServer
from dlwire.messages import Run

log = logging.getLogger(__name__)

LOOPBACK_INTERFACE = "lo"
INTERFACE = "HOROVOD_GLOO_IFACE"
BYTES_PER_PEER = 1024
"""More than Gloo tells about the way to one process (136 bytes with its transport over TCP)."""
BYTES_AT_LEAST = 1 << 20
LARGEST_BODY_AT_LEAST = 16 * 1024
COST_OF_KEY = 256
"""The size that an entry counts for beyond its name and value, so that no client can add empty ones for ever."""
PATIENCE_SECONDS = 10.0
SIOCGIFADDR = 0x8915
LONGEST_INTERFACE_NAME = 15


class CannotOpen(Exception):
    """There is no place where the processes could meet."""


# --- the way there ----------------------------------------------------------------------


def find_interface(run: Run) -> str:
    """Return the network interface that reaches the other processes; empty if it is unknown."""
    if len(run.peers) == 1:
        return LOOPBACK_INTERFACE
    address = as_address(run.peers[run.node_rank].host)
    return next((name for _, name in socket.if_nameindex() if address == address_of(name)), "")


def as_address(host: str) -> str:
    """Return the host if it is an address of the fourth version, else nothing."""
    if host == "localhost":
        return ranks.LOOPBACK
    try:
        return str(ipaddress.IPv4Address(host))
    except ValueError:
        return ""


def address_of(interface: str) -> str:
    """Ask the kernel for the first address of an interface; empty if it has none."""
    request = struct.pack("256s", interface.encode()[:LONGEST_INTERFACE_NAME])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, request)
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])


# --- what is kept -------------------------------------------------------------------------


class Full(Exception):
    """More was put than the processes of the job could need."""


class Store:
    """The values of one generation."""

    def __init__(self, run: Run) -> None:
        self._scopes: dict[str, dict[str, bytes]] = {}
        self._finished: defaultdict[str, set[str]] = defaultdict(set)
        self._sizes = {"global": run.world_size}
        for node, peer in enumerate(run.peers):
            self._sizes[f"local_{ranks.name_of(run, node)}"] = peer.processes
        for local_rank in range(max(peer.processes for peer in run.peers)):
            self._sizes[f"cross_{local_rank}"] = len(ranks.cross_nodes(run, local_rank))
        # Every process tells every other one the way to itself, in each of the few scopes.
        self._room = BYTES_AT_LEAST + BYTES_PER_PEER * run.world_size**2

    def get(self, scope: str, key: str) -> bytes | None:
        return self._scopes.get(scope, {}).get(key)

    def put(self, scope: str, key: str, *, value: bytes) -> None:
        room = self._room + self._cost(scope, key) - cost_of(scope, key, value=value)
        if room < 0:
            raise Full
        self._room = room
        self._scopes.setdefault(scope, {})[key] = value

    def finish(self, scope: str, key: str) -> None:
        """
        Note that a process, whose rank is the key, needs the scope no longer.

        A scope that is not one of the launcher's (one of a process set) loses the key, no more.
        """
        size = self._sizes.get(scope)
        if size is None:
            self._remove(scope, key)
            return
        # A set, because a process that got no answer repeats its message.
        finished = self._finished[scope]
        finished.add(key[:COST_OF_KEY])
        if len(finished) >= size:
            for one in tuple(self._scopes.get(scope, {})):
                self._remove(scope, one)
            del self._finished[scope]

    def _remove(self, scope: str, key: str) -> None:
        self._room += self._cost(scope, key)
        values = self._scopes.get(scope, {})
        values.pop(key, None)
        if not values:
            self._scopes.pop(scope, None)

    def _cost(self, scope: str, key: str) -> int:
        value = self.get(scope, key)
        return 0 if value is None else cost_of(scope, key, value=value)


def cost_of(scope: str, key: str, *, value: bytes) -> int:
    return len(scope) + len(key) + len(value) + COST_OF_KEY


class ValueHandler(RequestHandler):
    """One value, as it is asked for by Horovod."""

    def initialize(self, store: Store) -> None:
        self._store = store

    def get(self, scope: str, key: str) -> None:
        value = self._store.get(scope, key)
        if value is None:
            raise HTTPError(404)
        self.set_header("Content-Type", "application/octet-stream")
        self.finish(value)

    def put(self, scope: str, key: str) -> None:
        try:
            self._store.put(scope, key, value=self.request.body)
        except Full:
            log.warning("there is no room for more values of Horovod's rendezvous")
            raise HTTPError(507) from None

    def delete(self, scope: str, key: str) -> None:
        self._store.finish(scope, key)

    def write_error(self, status_code: int, **_: object) -> None:  # noqa: ARG002 - as Tornado calls it
        """Say no more than the status, as the original does."""
        self.finish()


# --- the server ---------------------------------------------------------------------------


class Rendezvous:
    """The server of one generation after the other; never of two at once."""

    def __init__(self) -> None:
        self._server: LimitedServer | None = None
        self._closings: set[asyncio.Future[None]] = set()

    def open(self, run: Run) -> None:
        """Listen for the processes of this run; raises :class:`CannotOpen`."""
        self.close()
        listening = listen(run)
        # Each run gets a store of its own: a late client of the former run writes into that
        # of the former run.
        app = Application([(r"/([^/]+)/([^/]+)", ValueHandler, {"store": Store(run)})])
        self._server = LimitedServer(
            app,
            most_connections=MOST_CONNECTIONS + run.world_size,
            # The original closes after each answer, and its client never asks twice.
            no_keep_alive=True,
            idle_connection_timeout=PATIENCE_SECONDS,
            body_timeout=PATIENCE_SECONDS,
            max_header_size=LARGEST_HEADERS,
            max_body_size=LARGEST_BODY_AT_LEAST + BYTES_PER_PEER * run.world_size,
        )
        self._server.add_socket(listening)

    def close(self) -> None:
        """Listen no more; who is still connected is cut off."""
        server, self._server = self._server, None
        if server is None:
            return
        # This closes the listening socket at once, so that open() may listen at the same port in
        # this turn; only the connections end later.
        server.stop()
        closing = asyncio.ensure_future(server.close_all_connections())
        # The event loop holds its tasks weakly: without this set one may be collected half-way.
        self._closings.add(closing)
        closing.add_done_callback(self._closings.discard)


def listen(run: Run) -> socket.socket:
    """Listen at the address at which the processes meet, and nowhere else if it is known."""
    host, port = ranks.meeting_host(run), run.rendezvous_port
    if ":" in host:
        raise CannotOpen(f"Horovod finds its processes over IPv4 only, and {host} is not of it")
    try:
        listening = listen_at(as_address(host), port)
    except OSError as error:
        # Its number alone, because the text names the address in a way of its own.
        reason = os.strerror(error.errno or 0)
        raise CannotOpen(f"cannot listen at {host}:{port}: {reason}") from error
    # Tornado accepts until the socket would block; one that does block
    # would hold up the event loop.
    listening.settimeout(0)
    return listening


def listen_at(address: str, port: int) -> socket.socket:
    try:
        return socket.create_server((address, port), backlog=MOST_CONNECTIONS)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
    # The others know this machine by an address that is translated on the way.
    return socket.create_server(("", port), backlog=MOST_CONNECTIONS)
