"""Event loops of tests: that of a test itself, and those in threads of their own."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

P = ParamSpec("P")

TURNS = 10
LONGEST_S = 240.0
"""After this time a test hangs."""


def on_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test that is a coroutine, on an event loop of its own."""

    @functools.wraps(test)
    def run(*args: P.args, **named: P.kwargs) -> None:
        async def bounded() -> None:
            # Not by wait_for(), which would have it in another task.
            async with asyncio.timeout(LONGEST_S):
                await test(*args, **named)

        asyncio.run(bounded())

    return run


def abort_connections(loop: asyncio.AbstractEventLoop) -> None:
    """
    Abort the connections that are left on a loop that runs no more.

    A connection that comes right before the end, or whose handshake is not over, is known to no server yet, so that
    none closes it. Some later test would report it as a leak.
    """
    for transport in list(vars(loop)["_transports"].values()):
        transport.abort()


def close_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Close a loop that runs no more, after the sockets of connections that have been ended."""
    # asyncio closes these only in the next turns of the loop.
    for _turn in range(TURNS):
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def after_turns(turns: int, act: Callable[[], object]) -> None:
    """Do something when the running loop has made this number of turns."""
    if turns == 0:
        act()
    else:
        asyncio.get_running_loop().call_soon(after_turns, turns - 1, act)
