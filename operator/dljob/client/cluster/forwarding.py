"""
A port of this machine that leads to the page of a cluster, as ``kubectl port-forward`` opens one.

Each connection is a WebSocket to the API server. One byte of a message names the stream, and the first message of each
stream repeats the port. A pod is looked up for each connection, so that a pod that ends is no loss.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

import aiohttp

from dljob.client.backend import BackendError, NotThere
from dljob.client.cluster.refusals import FORBIDDEN, one_line
from dljob.kube.client import NOT_FOUND, ApiServer, Rejected, Unreachable
from dljob.kube.resources import PODS, SERVICES

SERVICE: Final = "dljob-web"
LOOPBACK: Final = "127.0.0.1"
PROTOCOL: Final = "v4.channel.k8s.io"
DATA, ERROR = range(2)
BLOCK: Final = 1 << 14
PORT_BYTES: Final = 2
PORT: Final = 8443
"""The page's port in its pod."""

GRANT: Final = (
    "kubectl create rolebinding dljob-web-forward -n {} --role=dljob-web-forward --user=USER"
)
"""The Role comes with the page."""


async def forward(
    api: ApiServer,
    namespace: str,
    *,
    port: int,
    opened: Callable[[str], None],
    notice: Callable[[str], None],
) -> None:
    """
    Forward until this is cancelled; ``opened`` takes the URL, and ``notice`` problems of single connections.

    Raises :class:`BackendError` with the remedy if no connection is possible.
    """
    page = _Page(api, namespace, notice)
    scheme, connection = await page.connect()
    await connection.close()
    try:
        server = await asyncio.start_server(page.take, LOOPBACK, port)
    except OSError as error:
        raise BackendError(
            f"port {port} of this machine cannot be used ({error.strerror}); name another one with --port, or"
            " --port 0 for a free one"
        ) from error
    try:
        at = server.sockets[0].getsockname()[1]
        opened(f"{scheme}://localhost:{at}/")
        await asyncio.Event().wait()
    finally:
        # Without `wait_closed`, because browsers keep their connections open.
        server.close()


class _Page(NamedTuple):
    """The pods of the page."""

    api: ApiServer
    namespace: str
    notice: Callable[[str], None]

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection to its end."""
        try:
            _, connection = await self.connect()
            sending = asyncio.ensure_future(_send(reader, connection))
            try:
                await _receive(connection, writer)
            finally:
                sending.cancel()
                await connection.close()
        except (BackendError, Rejected, Unreachable) as error:
            self.notice(one_line(str(error)))
        except (ConnectionError, aiohttp.ClientError):
            pass  # One of the two ends is gone.
        finally:
            writer.close()

    async def connect(self) -> tuple[str, aiohttp.ClientWebSocketResponse]:
        """Connect with a pod; returns the scheme of the page, too."""
        try:
            scheme, pod = await self._find()
            path = PODS.path(self.namespace, pod, "portforward")
            query = [("ports", str(PORT))]
            return scheme, await self.api.connect(path, query, protocols=[PROTOCOL])
        except Rejected as error:
            if error.status != FORBIDDEN:
                raise
            raise BackendError(
                f"{one_line(str(error))}; an administrator grants it: {GRANT.format(self.namespace)}"
            ) from error

    async def _find(self) -> tuple[str, str]:
        try:
            service = await self.api.get(SERVICES, SERVICE, self.namespace)
        except Rejected as error:
            if error.status != NOT_FOUND:
                raise
            raise NotThere(
                f"namespace {self.namespace} has no Service {SERVICE}, so the page is not enabled there; set"
                " web.enabled=true in the chart, or kubectl apply -k manifests/web; -n names another namespace of the"
                " operator"
            ) from error
        labels = ",".join(f"{key}={value}" for key, value in service["spec"]["selector"].items())
        pods = (await self.api.list(PODS, self.namespace, labels=labels)).items
        pod = next((each for each in pods if _is_ready(each)), None)
        if pod is None:
            shown = f"kubectl get pods -n {self.namespace} -l {labels}"
            raise NotThere(f"no pod of Service {SERVICE} is ready; {shown} shows why")
        return str(service["spec"]["ports"][0]["name"]), str(pod["metadata"]["name"])


async def _receive(
    connection: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter
) -> None:
    begun = set[int]()
    async for message in connection:
        if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
            continue
        stream, content = message.data[0], message.data[1:]
        if stream not in begun:
            begun.add(stream)
            content = content[PORT_BYTES:]
        if stream == ERROR and content:
            raise BackendError(f"the page does not answer: {one_line(content.decode())}")
        writer.write(content)
        await writer.drain()


async def _send(reader: asyncio.StreamReader, connection: aiohttp.ClientWebSocketResponse) -> None:
    with suppress(ConnectionError, aiohttp.ClientError):
        while block := await reader.read(BLOCK):
            await connection.send_bytes(bytes([DATA]) + block)
    await connection.close()


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    is_ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return is_ready and "deletionTimestamp" not in pod["metadata"]
