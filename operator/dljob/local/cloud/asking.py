"""
Asks the metadata service of a cloud about the end of this machine.

The service answers at a link-local address over plain HTTP, so each answer counts as hostile: short, in time, without
redirects, and never through a proxy.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import aiohttp
from aiohttp import hdrs

from dljob.core.primitives.once_per_change import OncePerChange
from dljob.local.cloud.endings import (
    Cloud,
    CloudSettings,
    Ending,
    Unreadable,
    choose_ending,
    read_azure_events,
    read_instance_action,
    read_maintenance_event,
    read_preempted,
    read_scheduled_events,
)

LIMIT_S: Final = 5.0
"""For one answer. Azure's first may take minutes, and the next request then gets one."""
LONGEST: Final = 64 << 10
TOKEN: Final = "X-aws-ec2-metadata-token"  # noqa: S105 - the name of a header
AZURE: Final = {"Metadata": "true"}
GOOGLE: Final = {"Metadata-Flavor": "Google"}


class Unanswered(Exception):
    """The metadata service gave no answer that counts."""


class MetadataService:
    """Create it on the event loop that uses it, and close it at the end."""

    def __init__(self, cloud: Cloud, address: str, *, limit_seconds: float = LIMIT_S) -> None:
        self._cloud = cloud
        self._address = address.rstrip("/")
        self._token = ""
        self._machine = ""
        self._session = aiohttp.ClientSession(
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=limit_seconds),
            trust_env=False,
        )

    async def close(self) -> None:
        await self._session.close()

    async def read(self) -> list[Ending]:
        """Return all announced ends; raises :class:`Unanswered`."""
        readers = {Cloud.AWS: self._read_aws, Cloud.GCP: self._read_gcp}
        return await readers.get(self._cloud, self._read_azure)()

    async def _read_aws(self) -> list[Ending]:
        if not self._token:
            seconds = {f"{TOKEN}-ttl-seconds": "21600"}
            answer = await self._ask("/latest/api/token", seconds, method=hdrs.METH_PUT)
            self._token = _insist(answer, "/latest/api/token")
        spot = await self._ask_aws("spot/instance-action")
        scheduled = await self._ask_aws("events/maintenance/scheduled")
        with _reading(self._address):
            found = [] if spot is None else [read_instance_action(spot)]
            return found if scheduled is None else [*found, *read_scheduled_events(scheduled)]

    async def _ask_aws(self, path: str) -> str | None:
        try:
            return await self._ask(f"/latest/meta-data/{path}", {TOKEN: self._token})
        except Unanswered:
            # The token may have expired.
            self._token = ""
            raise

    async def _read_gcp(self) -> list[Ending]:
        place = "/computeMetadata/v1/instance"
        preempted = _insist(await self._ask(f"{place}/preempted", GOOGLE), "preempted")
        with _reading(self._address):
            found = list(read_preempted(preempted))
        if found:
            return found
        event = _insist(await self._ask(f"{place}/maintenance-event", GOOGLE), "maintenance-event")
        with _reading(self._address):
            return list(read_maintenance_event(event))

    async def _read_azure(self) -> list[Ending]:
        if not self._machine:
            path = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
            self._machine = _insist(await self._ask(path, AZURE), "compute/name")
        path = "/metadata/scheduledevents?api-version=2020-07-01"
        events = _insist(await self._ask(path, AZURE), "scheduledevents")
        with _reading(self._address):
            return list(read_azure_events(events, self._machine))

    async def _ask(
        self, path: str, headers: Mapping[str, str], *, method: str = hdrs.METH_GET
    ) -> str | None:
        """Return the text of an answer; None for a 404."""
        try:
            async with self._session.request(
                method, self._address + path, headers=headers, allow_redirects=False
            ) as answer:
                if answer.status == 404:
                    return None
                if answer.status != 200:
                    raise Unanswered(f"{self._address} answers {answer.status}")
                return (await _read_bounded(answer.content)).decode().strip()
        except TimeoutError as error:
            raise Unanswered(f"{self._address} does not answer in time") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unanswered(f"{self._address}: {type(error).__name__}") from error


async def _read_bounded(content: aiohttp.StreamReader) -> bytes:
    body = bytearray()
    async for part in content.iter_chunked(4096):
        body += part
        if len(body) > LONGEST:
            raise Unanswered(f"the answer is longer than {LONGEST >> 10} KiB")
    return bytes(body)


def _insist(answer: str | None, name: str) -> str:
    if not answer:
        raise Unanswered(f"the metadata service has no {name}")
    return answer


@contextmanager
def _reading(address: str) -> Iterator[None]:
    try:
        yield
    except Unreadable as error:
        raise Unanswered(f"the answer of {address} cannot be read: {error}") from error


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
