"""Several pieces of work at the same time, none of which goes on unseen."""

import asyncio
from collections.abc import Awaitable, Iterable


async def do_all(work: Iterable[Awaitable[None]]) -> None:
    """Do all of this at the same time; only when all has ended the first failure is raised."""
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    for failure in outcomes:
        if failure is not None:
            raise failure
