"""
Turns of users at the event loop: it works on one request of a user at a time, and pauses after it for as long.

A user who asks on all connections at once otherwise lets all others wait for all of them. No turn may last while a
request waits for something else, such as a change or a thread.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from dljob.control.sidecars.peers import read_peer
from dljob.local.api.queries import is_gone
from dljob.local.api.refusals import RefusedError


class _Turn:
    """The turn of one user."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.not_before = 0.0


class Turns:
    def __init__(self) -> None:
        self._by_user: defaultdict[int, _Turn] = defaultdict(_Turn)

    @asynccontextmanager
    async def take(self, request: web.Request) -> AsyncIterator[None]:
        """Wait for the turn of the user who asks; refuse a client that has hung up meanwhile."""
        turn = self._by_user[_find_user(request)]
        async with turn.lock:
            await asyncio.sleep(turn.not_before - time.monotonic())
            _find_user(request)
            began = time.monotonic()
            try:
                yield
            finally:
                ended = time.monotonic()
                turn.not_before = ended + (ended - began)


def _find_user(request: web.Request) -> int:
    if request.transport is None or is_gone(request):
        raise RefusedError(400, "the connection is gone")
    return read_peer(request.transport.get_extra_info("socket")).uid


TURNS = web.AppKey("turns", Turns)
