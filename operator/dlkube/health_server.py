"""
What the operator answers to whoever watches over it: /healthz, /readyz and /metrics. Read-only.

Metrics name jobs, nodes and GPUs. Where not everybody may see these, they are served at a port of their own
(:class:`MetricsDoor`): over TLS, and to whom the API server says that he may.
"""

import asyncio
import hashlib
import logging
import ssl
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from dlkube import certificates
from dlkube.client import ApiServer, Rejected, Unreachable
from dlkube.resources import ACCESS_REVIEWS, TOKEN_REVIEWS
from dlkube.shown_certificate import Shown

log = logging.getLogger(__name__)

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
METRICS_PATH: Final = "/metrics"
REMEMBERED_S: Final = 60.0
"""So long an answer of the API server counts, so that not each scrape costs two requests."""
MOST_REMEMBERED: Final = 100
RENEWAL_S: Final = 86_400.0
OK, UNAUTHORIZED, FORBIDDEN, AWAY = 200, 401, 403, 503

Handler = Callable[[web.Request], Coroutine[Any, Any, web.Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """Who may read metrics."""

    protected: bool = False
    """Whether only those who show a token of an account that may get /metrics, over TLS; else everybody who
    reaches the port of health."""
    address: str = ":8443"
    """Where they are served if they are protected, as [ADDRESS]:PORT."""


class _Server:
    """A small server on a port of its own."""

    def __init__(self, address: str, handlers: Mapping[str, Handler]) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]") or None, int(port)
        self._handlers = handlers
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """Where it listens, also when it was told to choose."""
        assert self._runner is not None
        return int(self._runner.addresses[0][1])

    async def serve(self, context: ssl.SSLContext | None = None) -> None:
        application = web.Application()
        for path, handler in self._handlers.items():
            application.router.add_get(path, handler)
        self._runner = web.AppRunner(application, access_log=None, auto_decompress=False)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port, ssl_context=context).start()

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()


class Door(_Server):
    """Where the kubelet asks, without a proof of who it is."""

    def __init__(
        self, address: str, *, is_ready: Callable[[], str], metrics: Callable[[], bytes] | None
    ) -> None:
        """Without ``metrics`` it says where those are."""
        self._is_ready = is_ready
        self._metrics = metrics
        handlers = {"/healthz": self._healthz, "/readyz": self._readyz, METRICS_PATH: self._show}
        super().__init__(address, handlers)

    async def open(self) -> None:
        await self.serve()

    async def _healthz(self, _: web.Request) -> web.Response:
        # That this is answered says that the event loop turns.
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        why = self._is_ready()
        return web.Response(text=f"{why or 'ok'}\n", status=503 if why else 200)

    async def _show(self, _: web.Request) -> web.Response:
        if self._metrics is None:
            text = "metrics are protected: read them over https at the port of metrics.address\n"
            return web.Response(text=text, status=FORBIDDEN)
        return _shown(self._metrics())


class MetricsDoor(_Server):
    """Where metrics are read by those who may: the API server is asked who shows a token, and whether he may."""

    def __init__(self, address: str, api: ApiServer, *, metrics: Callable[[], bytes]) -> None:
        self._api = api
        self._metrics = metrics
        self._answers: dict[bytes, tuple[int, float]] = {}
        """By the digest of a token: with which status it is answered, and until when."""
        super().__init__(address, {METRICS_PATH: self._show})

    async def open(self, folder: Path) -> None:
        """Serve, with the certificate in a folder, which others may renew."""
        await self.serve(Shown(folder).context)

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
        key, now = hashlib.sha256(token.encode()).digest(), time.monotonic()
        known = self._answers.get(key)
        if known is not None and now < known[1]:
            return known[0]
        try:
            status = await self._review(token)
        except (Rejected, Unreachable) as error:
            log.warning("cannot check the permission to read metrics: %s", error)
            return AWAY
        if len(self._answers) >= MOST_REMEMBERED:
            del self._answers[next(iter(self._answers))]
        self._answers[key] = (status, now + REMEMBERED_S)
        return status

    async def _review(self, token: str) -> int:
        asked = {"spec": {"token": token}}
        answer = (await self._api.create(TOKEN_REVIEWS, asked)).get("status") or {}
        user = answer.get("user") or {}
        if not answer.get("authenticated") or not user.get("username"):
            return UNAUTHORIZED
        attributes = {"path": METRICS_PATH, "verb": "get"}
        spec = {
            "user": user["username"],
            "uid": user.get("uid", ""),
            "groups": user.get("groups") or [],
            "extra": user.get("extra") or {},
            "nonResourceAttributes": attributes,
        }
        review = await self._api.create(ACCESS_REVIEWS, {"spec": spec})
        return OK if (review.get("status") or {}).get("allowed") else FORBIDDEN


async def renew_certificate(api: ApiServer, namespace: str, folder: Path) -> None:
    """Write the certificate of the metrics again now and then, by the authority that there is then."""
    while True:
        await asyncio.sleep(RENEWAL_S)
        try:
            await write_certificate(api, namespace, folder)
        except (Rejected, Unreachable, certificates.WrongAuthority) as error:
            log.warning("the certificate of the metrics is not renewed yet: %s", error)


async def write_certificate(api: ApiServer, namespace: str, folder: Path) -> None:
    """Write the certificate that is shown to those who read metrics; it is named as the Service is."""
    authority = await certificates.open_authority(api, namespace)
    certificates.write_own(authority, folder, f"dljob-operator.{namespace}.svc")


_REMEDIES: Final = {
    UNAUTHORIZED: "the API server does not know this token",
    FORBIDDEN: "this account may not get /metrics; bind it to the ClusterRole dljob-metrics-view",
    AWAY: "the API server cannot be asked at present; try again",
}


def _shown(metrics: bytes) -> web.Response:
    return web.Response(body=metrics, headers={"Content-Type": METRICS_TYPE})


def _refused(status: int, why: str) -> web.Response:
    return web.Response(text=f"{why}\n", status=status)
