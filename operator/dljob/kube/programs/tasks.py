"""Coroutines that live and end together."""

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any


async def together(*activities: Coroutine[Any, Any, None]) -> None:
    """Run coroutines until the first one ends, and return or raise as that one does."""
    tasks = [asyncio.create_task(each) for each in activities]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()
    finally:
        await _end(tasks)


async def _end(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for their end, before the caller closes what they use."""
    is_cancelled = False
    for task in tasks:
        task.cancel()
    while pending := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError:
            # A signal takes precedence over a task's error.
            is_cancelled = True
    # Retrieves all exceptions, so that asyncio logs none.
    await asyncio.gather(*tasks, return_exceptions=True)
    if is_cancelled:
        raise asyncio.CancelledError
