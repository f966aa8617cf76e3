"""What the operator answers to whoever watches over it: /healthz, /readyz and /metrics. Read-only."""

from collections.abc import Callable

from aiohttp import web

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Door:
    """A small server on a port of its own."""

    def __init__(
        self, address: str, *, is_ready: Callable[[], str], metrics: Callable[[], bytes]
    ) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]") or None, int(port)
        self._is_ready = is_ready
        self._metrics = metrics
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """Where it listens, also when it was told to choose."""
        assert self._runner is not None
        return int(self._runner.addresses[0][1])

    async def open(self) -> None:
        application = web.Application()
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/metrics", self._show_metrics)
        self._runner = web.AppRunner(application, access_log=None, auto_decompress=False)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        # That this is answered says that the event loop turns.
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        why = self._is_ready()
        return web.Response(text=f"{why or 'ok'}\n", status=503 if why else 200)

    async def _show_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics(), headers={"Content-Type": METRICS_TYPE})
