"""The query of a request, read: numbers, times to wait, and yes or no; and whether its client still waits."""

import math

from aiohttp import web

from dllocal.api.refusals import RefusedError

LONGEST_WAIT_S = 60.0
GONE_S = 1.0
"""How often a request that waits looks whether its client is still there."""


def is_asked(request: web.Request, name: str) -> bool:
    return request.query.get(name, "false") != "false"


def read_number(request: web.Request, name: str, *, usual: float) -> float:
    """Read a number of the query."""
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
    """Read for how long to wait at most, within reason."""
    return min(read_number(request, "seconds", usual=usual), LONGEST_WAIT_S)


def is_gone(request: web.Request) -> bool:
    """Whether the client has hung up. aiohttp lets the handler of its request go on all the same."""
    return request.transport is None or request.transport.is_closing()
