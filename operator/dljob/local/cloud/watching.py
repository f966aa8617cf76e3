"""Watches for the announced end of this machine, until it is withdrawn."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from dljob.core.primitives.once_per_change import OncePerChange
from dljob.local.cloud.asking import MetadataService, Unanswered
from dljob.local.cloud.endings import CloudSettings, Ending, choose_ending

log = logging.getLogger(__name__)

EVERY_S: Final = 2.0
"""The shortest notice is 30 s."""
WITHDRAWN: Final = "the cloud has withdrawn the end of this machine"


class EndWatch:
    """An end that was announced stays until the service answers without it; silence proves nothing."""

    def __init__(
        self,
        settings: CloudSettings,
        *,
        every_seconds: float = EVERY_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._every_seconds = every_seconds
        self._clock = clock
        self._troubles: OncePerChange[str] = OncePerChange()
        self.ending: Ending | None = None
        self.known = asyncio.Event()
        """Set after the first reading, even if the service does not answer."""

    @property
    def why(self) -> str:
        """Return the reason for leaving this machine now; empty if there is none."""
        return "" if self.ending is None else str(self.ending)

    async def run(self, notify: Callable[[], None]) -> None:
        """Read the notices until cancelled, and notify of changes."""
        service = MetadataService(self._settings.provider, self._settings.address)
        try:
            while True:
                before = self.ending
                await self._read(service)
                self.known.set()
                if self.ending != before:
                    log.warning("%s", self.why or WITHDRAWN)
                    notify()
                await asyncio.sleep(self._every_seconds)
        finally:
            await service.close()

    async def _read(self, service: MetadataService) -> None:
        try:
            endings = await service.read()
        except Unanswered as trouble:
            if self._troubles.note("service", trouble):
                log.warning("the notices of the cloud are not known: %s", trouble)
            return
        if self._troubles.settle("service"):
            log.info("the metadata service answers")
        lead = self._settings.lead_seconds
        self.ending = choose_ending(endings, self._clock(), lead_seconds=lead)
