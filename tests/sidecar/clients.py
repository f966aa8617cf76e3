"""A raw HTTP client with a limit on each wait."""

import asyncio
import functools
import json
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dljob_wire import codec
from dljob_wire.messages import State, Target

LONGEST_SECONDS = 240.0
T = TypeVar("T")


def live_through(story: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, within a long limit."""
    return asyncio.run(asyncio.wait_for(story, LONGEST_SECONDS))


def lived(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test from a coroutine, with its fixtures."""

    @functools.wraps(story)
    def test(**given: Any) -> None:
        live_through(story(**given))

    return test


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def state(self) -> State:
        assert self.status == 200, self.body
        return codec.decode(State, self.body)


@dataclass(frozen=True)
class Client:
    """An address and an identity; with neither a context nor a socket it is plain HTTP."""

    socket: Path | None = None
    port: int = 0
    context: ssl.SSLContext | None = None
    server_name: str = ""

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.socket is not None:
            return await asyncio.open_unix_connection(self.socket)
        if self.context is None:
            return await asyncio.open_connection("127.0.0.1", self.port)
        return await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=self.context, server_hostname=self.server_name
        )

    async def send(self, request: bytes, *, is_all: bool = False) -> bytes:
        """Send bytes, and return the answer up to its end; ``is_all`` closes the sending side."""
        reader, writer = await self.connect()
        try:
            writer.write(request)
            await writer.drain()
            if is_all:
                writer.write_eof()
            return await reader.read()
        finally:
            await hang_up(writer)

    async def ask(self, method: str, path: str, body: bytes | None = None, **more: str) -> Answer:
        lines = [f"{method} {path} HTTP/1.1", "Host: dljob", "Connection: close"]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in more.items()]
        head = "\r\n".join(lines) + "\r\n\r\n"
        return parse_answer(await self.send(head.encode("latin-1") + (body or b"")))

    async def get(self, path: str) -> Answer:
        return await self.ask("GET", path)

    async def put(self, target: Target) -> Answer:
        return await self.ask("PUT", "/v1/target", codec.encode_target(target))


async def hang_up(*writers: asyncio.StreamWriter) -> None:
    """Abort connections, because a TLS shutdown would outlive the loop of the test."""
    for writer in writers:
        writer.transport.abort()
    # The next turn of the loop closes the sockets.
    await asyncio.sleep(0)


async def ask_over(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> Answer:
    """Ask over a connection that stays open."""
    writer.write(f"GET {path} HTTP/1.1\r\nHost: dljob\r\n\r\n".encode("latin-1"))
    await writer.drain()
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(parse_answer(head).headers["content-length"])
    return parse_answer(head + await reader.readexactly(length))


def parse_answer(answer: bytes) -> Answer:
    if not answer:
        raise ConnectionError("it hung up without an answer")
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return Answer(int(first.split()[1]), {k.lower(): v for k, v in headers.items()}, body)
