"""
A client that has ended leaves no open connection to the API server, even if the server misbehaves.
"""

import asyncio
import gc
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from dljob.kube import access
from dljob.kube.client import ApiServer, Unreachable
from dljob.kube.resources import NODES
from tests.servers.authority import Authority, write_kubeconfig

T = TypeVar("T")

HOST = "127.0.0.1"
BEGUN = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nfirst\n\r\n"
"""An answer that goes on, such as a watch or a log."""
BROKEN = BEGUN + b"none\r\n"
"""An answer whose next block has no length, so that the client cuts it short."""
LAST = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
"""An answer after which the connection is not used again."""


@contextmanager
def serving(answer: bytes, folder: Path) -> Iterator[Path]:
    """Give one answer, and then read nothing: not even that the client ends the connection."""
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


# A connection that is still open warns of itself when it is collected, which fails the test.


def test_a_stream_that_is_broken_off_leaves_no_connection_open(tmp_path: Path) -> None:
    async def read_a_line(api: ApiServer) -> bytes:
        async with api.stream("/logs", {}) as content:
            return await content.readline()

    with serving(BEGUN, tmp_path) as kubeconfig:
        assert ask(read_a_line, kubeconfig) == b"first\n"
        gc.collect()


def test_a_connection_that_is_not_used_again_is_not_left_open(tmp_path: Path) -> None:
    with serving(LAST, tmp_path) as kubeconfig:
        assert ask(lambda api: api.get(NODES, "n1"), kubeconfig) == {}
        gc.collect()


def test_an_answer_that_is_cut_short_leaves_no_connection_open(tmp_path: Path) -> None:
    with serving(BROKEN, tmp_path) as kubeconfig:
        with pytest.raises(Unreachable):
            ask(lambda api: api.get(NODES, "n1"), kubeconfig)
        gc.collect()
