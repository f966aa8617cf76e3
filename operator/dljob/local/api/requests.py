"""
Reads each request: the user who asks, the query and the body.

:meth:`dljob.local.api.access.Access.guard` identifies the user once. A user's requests take turns at the event loop
(:class:`Turns`).
"""

import asyncio
import json
import math
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from dljob.control.reporting.reasons import Outlook
from dljob.control.situation.scene import Scene
from dljob.control.situation.status_documents import Json
from dljob.core.model import Snapshot
from dljob.local.api.refusals import RefusedError
from dljob.local.environments import Submitter
from dljob.local.server_parts import LatestScene

CALLER: Final = web.RequestKey("caller", Submitter)
"""The user who asks; on a server of one user always that user."""
BYTES_A_VALUE: Final = 16
"""The least for each value of the largest request. Jobs have more than that."""
LONGEST_WAIT_S = 60.0
PATIENCE_S: Final = 10.0
"""How long a request waits for the first scene. Commands wait longer, and so show the refusal below."""
POLL_S: Final = 0.05
GONE_S = 1.0
"""How often a waiting request checks whether its client has hung up."""


def is_asked(request: web.Request, name: str) -> bool:
    return request.query.get(name, "false") != "false"


def read_number(request: web.Request, name: str, *, usual: float) -> float:
    text = request.query.get(name, "")
    try:
        number = float(text) if text else usual
    except ValueError:
        number = math.nan
    if not 0.0 <= number < 1e15:
        raise RefusedError(
            400, f'{name}: "{text}" is not a number from 0 upwards; write such as 30'
        )
    return number


def read_seconds(request: web.Request, usual: float) -> float:
    """Read how long to wait, at most LONGEST_WAIT_S."""
    return min(read_number(request, "seconds", usual=usual), LONGEST_WAIT_S)


def is_gone(request: web.Request) -> bool:
    """Return whether the client has hung up, which does not end its handler in aiohttp."""
    return request.transport is None or request.transport.is_closing()


def insist_on_client(request: web.Request) -> asyncio.Transport:
    """Return the connection of a request; refuse the request if its client has hung up."""
    if request.transport is None or is_gone(request):
        raise RefusedError(400, "the connection is gone")
    return request.transport


async def wait_for_scene(latest: LatestScene) -> tuple[Scene, Snapshot, Outlook]:
    """Return the latest scene; refuse the request if ``dljob up`` does not get one soon."""
    end = time.monotonic() + PATIENCE_S
    while (seen := latest.see()) is None:
        if time.monotonic() > end:
            raise RefusedError(
                503, "the controller has not looked around yet; try again in a moment"
            )
        await asyncio.sleep(POLL_S)
    return seen


class _Turn:
    """The turn of one user."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.not_before = 0.0


class Turns:
    """
    Turns of users at the event loop: it works on one request of a user at a time, and pauses after it for as long.

    A user who asks on all connections at once otherwise lets all others wait for all of them. No turn may last while a
    request waits for something else, such as a change or a thread.
    """

    def __init__(self) -> None:
        self._by_user: defaultdict[int, _Turn] = defaultdict(_Turn)

    @asynccontextmanager
    async def take(self, request: web.Request) -> AsyncIterator[None]:
        """Wait for the turn of the user who asks; refuse a client that has hung up meanwhile."""
        turn = self._by_user[request[CALLER].uid]
        async with turn.lock:
            await asyncio.sleep(turn.not_before - time.monotonic())
            insist_on_client(request)
            began = time.monotonic()
            try:
                yield
            finally:
                ended = time.monotonic()
                turn.not_before = ended + (ended - began)


TURNS = web.AppKey("turns", Turns)


async def read_body(request: web.Request) -> Json:
    """
    Read the JSON object of a request.

    Nothing else goes on while Python decodes a request, and one can hold millions of values, so they are counted first.
    """
    if "Content-Encoding" in request.headers:
        raise RefusedError(415, "the request is compressed; send it as it is")
    text = await request.read()
    most = request.client_max_size // BYTES_A_VALUE
    if sum(map(text.count, (b",", b"[", b"{"))) > most:
        raise RefusedError(
            413, f"the request has more than {most:,} values; submit fewer jobs at once"
        )
    async with request.app[TURNS].take(request):
        try:
            body = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RefusedError(400, f"the request is not JSON ({error})") from error
    if not isinstance(body, dict):
        raise RefusedError(400, "the request is not a JSON object; send one")
    return body
