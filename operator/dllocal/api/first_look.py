"""
Requests that come before the loop has looked for the first time wait for it, instead of failing.

A user types the next command as soon as ``dljob up`` runs; the first look takes a moment longer, on a busy machine
some seconds.
"""

import asyncio
import time
from typing import Final

from dlcontrol.reporting.reasons import Outlook
from dlcontrol.situation.scene import Scene
from dlcore.model import Snapshot
from dllocal.api.refusals import RefusedError
from dllocal.server_parts import LatestScene

PATIENCE_S: Final = 10.0
"""A command waits longer for an answer, so that it shows the reason below and no time-out."""
POLL_S: Final = 0.05


async def wait_for_scene(latest: LatestScene) -> tuple[Scene, Snapshot, Outlook]:
    """Return the latest scene as soon as there is one; refuse the request where none comes."""
    end = time.monotonic() + PATIENCE_S
    # Polled: the loop only sets an attribute, and this happens once in the life of a server.
    while (seen := latest.see()) is None:
        if time.monotonic() > end:
            raise RefusedError(
                503, "the controller has not looked around yet; try again in a moment"
            )
        await asyncio.sleep(POLL_S)
    return seen
