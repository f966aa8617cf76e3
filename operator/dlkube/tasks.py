"""Coroutines that live and end together."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any


async def together(*activities: Coroutine[Any, Any, None]) -> None:
    """Do all of these until one of them ends; how it ends is how this does."""
    tasks = [asyncio.create_task(each) for each in activities]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
