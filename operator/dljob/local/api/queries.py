"""Reads the query of a request, and waits for the first scene."""

import asyncio
import math
import time
from typing import Final

from aiohttp import web

from dljob.control.reporting.reasons import Outlook
from dljob.control.situation.scene import Scene
from dljob.core.model import Snapshot
from dljob.local.api.refusals import RefusedError
from dljob.local.server_parts import LatestScene

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
