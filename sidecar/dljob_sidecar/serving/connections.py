"""
The limits of all listeners of a SideCar: the number of clients and the size of their requests.
"""

from __future__ import annotations

import logging
import math
import ssl
import time
from collections import Counter
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream

log = logging.getLogger(__name__)

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
