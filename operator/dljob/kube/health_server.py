"""
The endpoints for probes and monitoring: /healthz, /readyz and /metrics.

Metrics name jobs, nodes and GPUs. If not every user may see these, :class:`MetricsServer` serves them on another
port: over TLS, and to accounts that the API server permits.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from dljob.kube import certificates
from dljob.kube.client import ApiServer, Rejected, Unreachable
from dljob.kube.reviews import Act, Reviews, TooMany
from dljob_wire.endpoints import Endpoint, read_endpoint

log = logging.getLogger(__name__)

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
METRICS_PATH: Final = "/metrics"
READ_METRICS: Final = Act(verb="get", path=METRICS_PATH)
RENEWAL_S: Final = 86_400.0
AGAIN_S: Final = 3.0
OK, UNAUTHORIZED, FORBIDDEN, AWAY = 200, 401, 403, 503

Handler = Callable[[web.Request], Coroutine[Any, Any, web.Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """The access to metrics."""

    protected: bool = False
    """True: the operator serves metrics over TLS only, to accounts that may get /metrics; else to every client that
    reaches the port of health."""
    address: str = ":8443"
    """The address of protected metrics, as [ADDRESS]:PORT."""

    def __post_init__(self) -> None:
        read_endpoint(self.address)


class _Server:
    """An HTTP server on one port."""

    def __init__(self, address: Endpoint, handlers: Mapping[str, Handler]) -> None:
        self._address = address
        self._handlers = handlers
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """Return the port, which the kernel may have chosen."""
        assert self._runner is not None
        return int(self._runner.addresses[0][1])

    async def open(self, context: ssl.SSLContext | None = None) -> None:
        application = web.Application()
        for path, handler in self._handlers.items():
            application.router.add_get(path, handler)
        self._runner = web.AppRunner(application, access_log=None, auto_decompress=False)
        await self._runner.setup()
        await web.TCPSite(
            self._runner, self._address.host or None, self._address.port, ssl_context=context
        ).start()

    async def close(self) -> None:
        if self._runner is not None:
            # Let running answers end, for at most a minute (aiohttp's default).
            await self._runner.cleanup()


class HealthServer(_Server):
    """The server for the kubelet, which has no credentials."""

    def __init__(
        self, address: Endpoint, *, is_ready: Callable[[], str], metrics: Callable[[], bytes] | None
    ) -> None:
        """``is_ready`` returns why not; without ``metrics`` the answer names their port."""
        self._is_ready = is_ready
        self._metrics = metrics
        handlers = {"/healthz": self._healthz, "/readyz": self._readyz, METRICS_PATH: self._show}
        super().__init__(address, handlers)

    async def _healthz(self, _: web.Request) -> web.Response:
        # Any answer shows that the event loop runs.
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        why = self._is_ready()
        return web.Response(text=f"{why or 'ok'}\n", status=503 if why else 200)

    async def _show(self, _: web.Request) -> web.Response:
        if self._metrics is None:
            text = "metrics are protected: read them over https at the port of metrics.address\n"
            return web.Response(text=text, status=FORBIDDEN)
        return _shown(self._metrics())


class MetricsServer(_Server):
    """Serves metrics to accounts with permission: the API server reviews each token and its rights."""

    def __init__(self, address: Endpoint, api: ApiServer, *, metrics: Callable[[], bytes]) -> None:
        self._reviews = Reviews(api)
        self._metrics = metrics
        super().__init__(address, {METRICS_PATH: self._show})

    async def _show(self, request: web.Request) -> web.Response:
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if kind != "Bearer" or not token:
            return _refused(
                UNAUTHORIZED, "send the token of an account: Authorization: Bearer TOKEN"
            )
        status = await self._status_for(token)
        if status != OK:
            return _refused(status, _REMEDIES[status])
        return _shown(self._metrics())

    async def _status_for(self, token: str) -> int:
        try:
            user = await self._reviews.identify(token)
            if user is None:
                return UNAUTHORIZED
            return OK if await self._reviews.allows(user, READ_METRICS) else FORBIDDEN
        except TooMany:
            # Do not log this, because clients without rights can cause it.
            return AWAY
        except (Rejected, Unreachable) as error:
            log.warning("cannot check the permission to read metrics: %s", error)
            return AWAY


async def write_first_certificate(api: ApiServer, namespace: str, *, folder: Path) -> None:
    """Write the certificate of the metrics, and retry until the CA can be read."""
    while True:
        try:
            await write_certificate(api, namespace, folder=folder)
        except (Rejected, Unreachable) as error:
            if isinstance(error, Rejected) and not error.is_passing:
                raise
            log.warning("metrics are not shown yet: %s", error)
            await asyncio.sleep(AGAIN_S)
        else:
            return


async def renew_certificate(api: ApiServer, namespace: str, *, folder: Path) -> None:
    """Renew the certificate of the metrics, signed by the current CA, for ever."""
    while True:
        await asyncio.sleep(RENEWAL_S)
        try:
            await write_certificate(api, namespace, folder=folder)
        except (Rejected, Unreachable, certificates.WrongAuthority) as error:
            log.warning("the certificate of the metrics is not renewed yet: %s", error)


async def write_certificate(api: ApiServer, namespace: str, *, folder: Path) -> None:
    """Write the certificate of the metrics, with the name of the Service."""
    authority = await certificates.open_authority(api, namespace)
    certificates.write_own(authority, folder, name=f"dljob-operator.{namespace}.svc")


_REMEDIES: Final = {
    UNAUTHORIZED: "the API server does not know this token",
    FORBIDDEN: "this account may not get /metrics; bind it to the ClusterRole dljob-metrics-view",
    AWAY: "the API server cannot be asked at present; try again",
}


def _shown(metrics: bytes) -> web.Response:
    return web.Response(body=metrics, headers={"Content-Type": METRICS_TYPE})


def _refused(status: int, why: str) -> web.Response:
    return web.Response(text=f"{why}\n", status=status)
