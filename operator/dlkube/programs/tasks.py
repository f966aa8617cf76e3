"""Coroutines that live and end together."""

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any


async def together(*activities: Coroutine[Any, Any, None]) -> None:
    """Do all of these until one of them ends; how it ends is how this does."""
    tasks = [asyncio.create_task(each) for each in activities]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        # Several may have ended; gather() below takes the exceptions of the others.
        for each in done:
            each.result()
    finally:
        await _end(tasks)


async def _end(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel these and wait until all have ended: none may go on with what the caller closes next."""
    is_cancelled = False
    for task in tasks:
        task.cancel()
    while pending := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError:
            # A signal during the end counts more than the error of one activity, after which the caller might go on.
            is_cancelled = True
    # The exceptions of all are retrieved, so that asyncio logs none as forgotten.
    await asyncio.gather(*tasks, return_exceptions=True)
    if is_cancelled:
        raise asyncio.CancelledError
