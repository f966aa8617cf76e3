"""A new leader writes its epoch into every allocation, so that no former leader can change one any more."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from dljob.control.situation.ports import Entry, NotKept, NotKeptAlone
from dljob.control.situation.status import Status
from dljob.core.model import JobId, Phase
from dljob.kube.watches.mirror import Mirrors, epoch_of
from dljob.operator.jobs.entries import name_of

log = logging.getLogger(__name__)

STAMPS_AT_ONCE: Final = 8
AGAIN_S: Final = 1.0
"""The pause after a failed write."""


async def stamp(
    entries: Mapping[JobId, Entry],
    mirrors: Mirrors,
    *,
    epoch: int,
    write: Callable[[Mapping[JobId, Status | None]], Awaitable[None]],
) -> None:
    """
    Write this epoch into every allocation, first into those that are being changed.

    Raises :class:`NotKeptAlone` at the end if the API server refuses the statuses of some jobs.
    """

    def lacks_epoch(job: JobId) -> bool:
        # Read from the mirror each time, because the loop writes statuses meanwhile.
        document = mirrors.jobs.get(name_of(job))
        return document is not None and epoch_of(document) != epoch

    held = [job for job, entry in entries.items() if entry.status.has_anything]
    held.sort(key=lambda job: entries[job].status.phase is Phase.RUNNING)
    alone: dict[JobId, str] = {}
    while held:
        # A few at a time, so that records of the loop need not wait for all of them.
        due = [job for job in held[:STAMPS_AT_ONCE] if lacks_epoch(job)]
        try:
            await write(dict.fromkeys(due))
        except NotKeptAlone as error:
            alone |= error.jobs
        except NotKept as error:
            log.warning("the epoch is not yet written to every allocation: %s", error)
            # The same jobs again, because none may be left without the epoch.
            await asyncio.sleep(AGAIN_S)
            continue
        del held[:STAMPS_AT_ONCE]
    if alone:
        raise NotKeptAlone(alone)
