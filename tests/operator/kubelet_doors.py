"""
The HTTP server of a played kubelet: the logs of containers, and commands run in them.

The real API server asks it, as it asks any kubelet: it finds address and port in the node's status,
and passes on what ``kubectl logs`` and ``kubectl exec`` ask. The logs are what the real containers
wrote; the command runs on this machine, which the container shares.
"""

import asyncio
import contextlib
import json
import ssl
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from aiohttp import WSMsgType, web

from tests.loops import abort_connections, close_loop
from tests.operator.kubelets import Kubelets
from tests.servers.api import Api
from tests.servers.authority import Authority
from tests.servers.nodes import PATH

HOST = "127.0.0.1"
LOOK_S = 0.05
PROTOCOL = "v5.channel.k8s.io"
STDIN, STDOUT, STDERR, ERROR, RESIZE = range(5)
CLOSE = 255
SECOND = len("2026-01-01T00:00:00")
"""The API server passes on whole seconds."""
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
"""The time of the first line of each log; each further line has a later one."""


class KubeletServer:
    """One server for all nodes of some kubelets, in a thread."""

    def __init__(self, kubelets: Kubelets, folder: Path) -> None:
        self._kubelets = kubelets
        self._certificate = Authority().issue_server(HOST).write(folder, "kubelet")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._runner: web.AppRunner | None = None
        self._streams: set[asyncio.Task[object]] = set()
        self.port = 0

    def open(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(240.0)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(240.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(240.0)
        abort_connections(self._loop)
        close_loop(self._loop)

    def cut(self) -> None:
        """Cut all open streams, as a network failure does."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(240.0)

    async def _cut(self) -> None:
        for task in self._streams:
            task.cancel()

    async def _open(self) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*self._certificate)
        application = web.Application()
        application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._show_log)
        application.router.add_get("/exec/{namespace}/{pod}/{container}", self._execute)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, 0, ssl_context=context).start()
        self.port = int(self._runner.addresses[0][1])

    async def _close(self) -> None:
        await self._cut()
        assert self._runner is not None
        await self._runner.cleanup()

    # --- logs

    async def _show_log(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        if query.get("previous") == "true":
            # All starts of a container share one file.
            return web.Response(status=400, text="previous terminated container not found")
        pod = request.match_info["pod"]
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            follow, count = query.get("follow") == "true", self._count(pod)
            tail = query.get("tailLines")
            first = 0 if tail is None else max(0, count - int(tail))
            async for number, text in self._iter_lines(pod, follow=follow):
                # Without ``follow``, the answer ends with the lines that existed when the request came.
                if number < first or (number >= count and not follow):
                    continue
                stamp = _stamp(number)
                if query.get("sinceTime", "")[:SECOND] > stamp[:SECOND]:
                    continue
                is_stamped = query.get("timestamps") == "true"
                await response.write((f"{stamp} ".encode() if is_stamped else b"") + text)
            await response.write_eof()
        except asyncio.CancelledError:
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._streams.discard(task)
        return response

    def _file(self, pod: str) -> Path:
        return self._kubelets.folder / pod / "log"

    def _count(self, pod: str) -> int:
        return len(self._file(pod).read_bytes().splitlines()) if self._file(pod).exists() else 0

    async def _iter_lines(self, pod: str, *, follow: bool) -> AsyncIterator[tuple[int, bytes]]:
        position, number = 0, 0
        while True:
            is_running = pod in self._kubelets.pids()
            content = self._file(pod).read_bytes()[position:] if self._file(pod).exists() else b""
            whole = content.rfind(b"\n") + 1 if follow and is_running else len(content)
            for line in content[:whole].splitlines(keepends=True):
                yield number, line
                number += 1
            position += whole
            if not follow or (not is_running and not content):
                return
            await asyncio.sleep(LOOK_S)

    # --- commands

    async def _execute(self, request: web.Request) -> web.StreamResponse:
        connection = web.WebSocketResponse(protocols=(PROTOCOL,))
        await connection.prepare(request)
        has_input = request.query.get("input") == "1"
        try:
            process = await asyncio.create_subprocess_exec(
                *request.query.getall("command"),
                stdin=asyncio.subprocess.PIPE if has_input else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            await _end(connection, {"status": "Failure", "message": str(error)})
            return connection
        assert process.stdout is not None
        assert process.stderr is not None
        typing = asyncio.ensure_future(_pass_on(connection, process))
        await asyncio.gather(
            _send(connection, STDOUT, process.stdout), _send(connection, STDERR, process.stderr)
        )
        code = await process.wait()
        typing.cancel()
        await _end(connection, _status(code))
        return connection


def _stamp(number: int) -> str:
    moment = BEGINNING + timedelta(microseconds=number)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z"


async def _send(
    connection: web.WebSocketResponse, channel: int, output: asyncio.StreamReader
) -> None:
    while block := await output.read(1 << 14):
        await connection.send_bytes(bytes([channel]) + block)


async def _pass_on(connection: web.WebSocketResponse, process: asyncio.subprocess.Process) -> None:
    async for message in connection:
        if message.type is WSMsgType.BINARY and message.data[:1] == bytes([STDIN]):
            assert process.stdin is not None
            process.stdin.write(message.data[1:])
        elif message.data == bytes([CLOSE, STDIN]):
            assert process.stdin is not None
            process.stdin.close()


def _status(code: int) -> dict[str, object]:
    if code == 0:
        return {"status": "Success"}
    number = code if code > 0 else 128 - code
    return {
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: exit status {number}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(number)}]},
    }


async def _end(connection: web.WebSocketResponse, status: dict[str, object]) -> None:
    await connection.send_bytes(bytes([ERROR]) + json.dumps(status).encode())
    await connection.close()


@contextlib.contextmanager
def served(
    kubelets: Kubelets, api: Api, nodes: Iterable[str], folder: Path
) -> Iterator[KubeletServer]:
    folder.mkdir(parents=True, exist_ok=True)
    door = KubeletServer(kubelets, folder)
    door.open()
    try:
        for node in nodes:
            status = {
                "addresses": [{"type": "InternalIP", "address": HOST}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": door.port}},
                # Otherwise the API server would speak SPDY with it.
                "declaredFeatures": ["ExtendWebSocketsToKubelet"],
            }
            api.merge(f"{PATH}/{node}/status", {"status": status})
        yield door
    finally:
        door.close()
