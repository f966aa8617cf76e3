"""A closed client leaves no connection to the API server open, even if the server misbehaves."""

import asyncio
import gc
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from dljob.kube import access
from dljob.kube.client import ApiServer, Unreachable
from dljob.kube.resources import NODES
from tests.servers.authority import Authority, write_kubeconfig

T = TypeVar("T")

HOST = "127.0.0.1"
BEGUN = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nfirst\n\r\n"
"""An answer that continues, such as a watch or a log."""
BROKEN = BEGUN + b"none\r\n"
"""An answer whose next block has no length: the client aborts it."""
LAST = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
"""An answer that ends the connection."""


@contextmanager
def serving(answer: bytes, folder: Path) -> Iterator[Path]:
    """Give one answer, and then read nothing, not even the end of the connection."""
    authority = Authority()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.issue_server(HOST).write(folder, "server"))
    over = threading.Event()
    with socket.create_server((HOST, 0)) as listening:
        listening.settimeout(240.0)

        def serve() -> None:
            plain, _ = listening.accept()
            with context.wrap_socket(plain, server_side=True) as connection:
                connection.recv(65536)
                connection.sendall(answer)
                over.wait(240.0)

        thread = threading.Thread(target=serve)
        thread.start()
        yield write_kubeconfig(
            folder / "kubeconfig",
            server=f"https://{HOST}:{listening.getsockname()[1]}",
            authority=authority.certificate,
            user={"token": "none"},
        )
        over.set()
        thread.join(240.0)


def ask(act: Callable[[ApiServer], Awaitable[T]], kubeconfig: Path) -> T:
    async def ask_and_close() -> T:
        api = ApiServer(access.find(str(kubeconfig), ""))
        try:
            return await act(api)
        finally:
            await api.close()

    return asyncio.run(ask_and_close())


# A connection that is still open warns when it is collected, which fails the test.


async def read_a_line(api: ApiServer) -> bytes:
    async with api.stream("/logs", {}) as content:
        return await content.readline()


async def get_node(api: ApiServer) -> object:
    return await api.get(NODES, "n1")


@pytest.mark.parametrize(
    ("answer", "act", "result"),
    [(BEGUN, read_a_line, b"first\n"), (LAST, get_node, {}), (BROKEN, get_node, Unreachable)],
    ids=["cancelled stream", "last answer", "broken answer"],
)
def test_no_connection_stays_open(tmp_path: Path, answer: bytes, act: Any, result: object) -> None:
    with serving(answer, tmp_path) as kubeconfig:
        if result is Unreachable:
            with pytest.raises(Unreachable):
                ask(act, kubeconfig)
        else:
            assert ask(act, kubeconfig) == result
        gc.collect()
