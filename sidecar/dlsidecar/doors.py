"""
What all doors of a SideCar have in common: how many may come in at once, and how much they may say.
"""

from __future__ import annotations

import logging
import math
import ssl
import time
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 128
CROWD_PAUSE_SECONDS = 60.0
LARGEST_HEADERS = 16 * 1024


class LimitedServer(HTTPServer):
    """
    A server that does not let itself be drowned in connections.

    When there are as many as there may be, a new one takes the place of the oldest of those that
    have not yet shown who they are. So whoever only holds connections open keeps nobody out.
    """

    def initialize(
        self, *arguments: Any, most_connections: int = MOST_CONNECTIONS, **named: Any
    ) -> None:
        """Begin, as Tornado calls its constructors."""
        super().initialize(*arguments, **named)
        self._most = most_connections
        self._strangers: dict[IOStream, None] = {}
        self._told_at = -math.inf

    def handle_stream(self, stream: IOStream, address: Any) -> None:
        """Take a connection in, or close it."""
        self._strangers = {one: None for one in self._strangers if not one.closed()}
        if len(self._connections) >= self._most:
            self._tell_crowd(address)
            if not self._strangers:
                stream.close()
                return
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.close()
        self._strangers[stream] = None
        super().handle_stream(stream, address)

    def welcome(self, stream: IOStream) -> None:
        """Keep a connection that has shown who it is."""
        self._strangers.pop(stream, None)

    def _tell_crowd(self, address: Any) -> None:
        now = time.monotonic()
        if now - self._told_at > CROWD_PAUSE_SECONDS:
            self._told_at = now
            log.warning("there are too many connections, one more of them from %s", address)

    def use(self, context: ssl.SSLContext) -> None:
        """Meet whoever comes from now on with these certificates."""
        self.ssl_options = context
