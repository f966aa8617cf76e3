"""Event loops that tests run in threads of their own."""

import asyncio

TURNS = 10


def close_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Close a loop that runs no more, after the sockets of connections that have been ended."""
    # asyncio closes these only in the next turns of the loop.
    for _turn in range(TURNS):
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
