"""
The gang scheduler's extender: it watches nodes and pods, answers kube-scheduler, and writes Events.

It is ready when it has listed nodes and pods. Until then, and while it does not run, kube-scheduler retries the pods
of gangs, and all other pods pass.
"""

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aiohttp import web

from dljob.kube import shown_certificate
from dljob.kube.access import Access
from dljob.kube.client import ApiServer, Rejected, Unreachable
from dljob.kube.events import EventWriter
from dljob.kube.health_server import HealthServer
from dljob.kube.programs import together
from dljob.kube.resources import NODES, PODS
from dljob.kube.shown_certificate import Shown
from dljob.kube.watches.watching import Followed, NotInstalled, Watches
from dljob_gangs.book import Book, trimmed
from dljob_gangs.decider import Decider
from dljob_gangs.extender import Extender, GangMetrics
from dljob_gangs.members import Rules, Stage
from dljob_gangs.telling import GangEvents
from dljob_gangs.waking import PodWaker, Schedule
from dljob_wire.endpoints import Endpoint

log = logging.getLogger(__name__)

COMPONENT: Final = "dljob-gangs"
SETTLE_S: Final = 0.02
"""Changes come in bursts, and one decision covers all of them."""
AGAIN_S: Final = 3.0
LONGEST_WAIT_S: Final = 60.0
RENEWAL_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GangSettings:
    """The settings of the gang scheduler."""

    scheduler: str = "dljob-scheduler"
    """The ``schedulerName`` of the pods of gangs."""
    listen: Endpoint = Endpoint("127.0.0.1", 8443)
    """Where kube-scheduler reaches it."""
    health: Endpoint = Endpoint("", 8081)
    """Where it answers /healthz, /readyz and /metrics."""
    tls: Path | None = None
    """The folder with tls.crt and tls.key; None for plain HTTP on one machine."""
    makes_tls: bool = False
    """True if this program makes the certificates in that folder."""
    client_authority: Path | None = None
    """The CA of permitted clients; None permits all."""
    rules: Rules = field(default_factory=Rules)


class Gangs:
    """All parts of the extender; create it on its event loop."""

    def __init__(
        self,
        access: Access,
        settings: GangSettings,
        *,
        instance: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._api = ApiServer(access)
        self._woken = asyncio.Event()
        self._book = Book(settings.scheduler, changed=self._woken.set)
        self._decider = Decider(self._book, settings.rules, clock=clock)
        self._metrics = GangMetrics(self._decider)
        self._gang_events = GangEvents()
        self._schedule = Schedule()
        self._events = EventWriter(
            self._api, instance=instance, component=COMPONENT, per_second=200.0
        )
        self._waker = PodWaker(self._api)
        followed = (
            Followed(PODS, self._book.pods, keep=trimmed),
            Followed(NODES, self._book.nodes, is_in_namespaces=False),
        )
        self._watches = Watches(access, self._api, followed=followed)
        self._complaint = "has not read the cluster yet"
        self._extender = Extender(
            self._decider, self._metrics, is_ready=lambda: self._complaint, heard=self._hear
        )
        self.health_server = HealthServer(
            settings.health, is_ready=lambda: self._complaint, metrics=self._metrics.text
        )
        self._runner = web.AppRunner(
            self._extender.application(), access_log=None, auto_decompress=False
        )

    @property
    def address(self) -> tuple[str, int]:
        """Return the address, whose port the kernel may have chosen."""
        host, port, *_ = self._runner.addresses[0]
        return str(host), int(port)

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            context = self._show()
            await self._runner.setup()
            host, port = self._settings.listen
            await web.TCPSite(self._runner, host, port, ssl_context=context).start()
            # Open the ports last, so that an answer shows that the certificates exist.
            await self.health_server.open()
            log.info("answers kube-scheduler at %s port %d", *self.address)
            # List before the first decision, which must know all bound pods.
            await self._see_all()
            await together(
                self._watches.run(),
                self._events.run(),
                self._waker.run(),
                self._renew(),
                self._update_on(),
            )
        finally:
            self._watches.ended.set()
            await self._runner.cleanup()
            await self.health_server.close()
            await self._api.close()

    def _show(self) -> ssl.SSLContext | None:
        settings = self._settings
        if settings.tls is None:
            return None
        if settings.makes_tls:
            shown_certificate.provide(settings.tls)
        return Shown(settings.tls, settings.client_authority).context

    async def _renew(self) -> None:
        settings = self._settings
        if settings.tls is not None and settings.makes_tls:
            await shown_certificate.renew(settings.tls, every_seconds=RENEWAL_S)
        # together() ends the extender when the first coroutine ends.
        await asyncio.Event().wait()

    async def _see_all(self) -> None:
        while True:
            try:
                await self._watches.list_all()
            except (NotInstalled, Rejected, Unreachable) as error:
                if self._complaint != str(error):
                    self._complaint = str(error)
                    log.error("cannot start: %s", error)  # noqa: TRY400 - its place says nothing
                await asyncio.sleep(AGAIN_S)
            else:
                self._complaint = ""
                log.info("is ready")
                return

    def _hear(self, uid: str, is_admitted: bool) -> None:  # noqa: FBT001 - as Extender has it
        """Note that kube-scheduler asked a question, which may have changed the decision."""
        if is_admitted:
            self._schedule.admitted(uid, self._clock())
        # Write Events and conditions after the answer, because kube-scheduler waits for the answer.
        self._woken.set()

    async def _update_on(self) -> None:
        """Decide after each change, even if kube-scheduler does not ask."""
        while True:
            self._update()
            ends = (self._decider.due, self._gang_events.due, self._schedule.due())
            wait = min(min(ends) - self._clock(), LONGEST_WAIT_S)
            if wait > 0:
                await self._wait_for_news(wait)
            await asyncio.sleep(SETTLE_S)
            # Do not await between this and the update, so that no change is missed.
            self._woken.clear()

    async def _wait_for_news(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            # wait_for() would swallow a cancellation at the same moment.
            async with asyncio.timeout(seconds):
                await self._woken.wait()

    def _update(self) -> None:
        self._decider.update()
        book, now = self._book, self._clock()
        events = list(self._gang_events.about_gangs(self._decider.standings, book.members, now=now))
        events += self._gang_events.about_pods(book.wrong)
        # Warnings come first.
        for event in sorted(events, key=lambda each: not each.is_warning):
            pod = book.pods.get(event.pod)
            if pod is not None:
                self._events.write(pod, event.reason, event.message, warning=event.is_warning)
        names = {each.uid: each for each in book.members.values() if each.stage is Stage.PENDING}
        held = [(names[uid].name, it) for uid, it in self._decider.held.items() if uid in names]
        self._waker.write(self._schedule.patches(held, set(names), now=now))
