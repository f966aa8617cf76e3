"""Runs several tasks at the same time and waits for all of them."""

import asyncio
from collections.abc import Awaitable, Iterable


async def do_all(work: Iterable[Awaitable[None]]) -> None:
    """Run all tasks at the same time; raise the first failure once all have ended."""
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    for failure in outcomes:
        if failure is not None:
            raise failure
