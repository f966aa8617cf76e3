"""Connections to the page's server: those of known users are kept, and those of unknown ones end."""

import asyncio
import contextlib
import socket
import ssl

import aiohttp
import pytest
from aiohttp import web

from addons.web.tests.served import LIMIT_S, TOKEN, Told, served
from dljob.kube.shown_certificate import Shown, provide
from dljob_web import listening
from dljob_web.guarding import BEARER, CALLER, Caller
from dljob_web.listening import listen, serve
from tests.loops import on_loop

MOST = 8

PARTIAL = b"GET /api/v1/page HTTP/1.1\r\nHost: localhost\r\nX: "


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    monkeypatch.setattr(listening, "MOST", MOST)


@contextlib.asynccontextmanager
async def strangers(port, number, *, says=PARTIAL):
    """Open connections that say something and then nothing more; yields their readers."""
    opened = []
    try:
        for _ in range(number):
            opened.append(await asyncio.open_connection("127.0.0.1", port))
            opened[-1][1].write(says)
            await opened[-1][1].drain()
        yield [reader for reader, _ in opened]
    finally:
        for _, writer in opened:
            writer.close()


def port_of(ask):
    return int(ask.address.rstrip("/").rpartition(":")[2])


async def has_ended(reader):
    """Wait for the end of a connection, after any answer."""
    with contextlib.suppress(ConnectionError):
        while await asyncio.wait_for(reader.read(1 << 16), LIMIT_S):
            pass


@pytest.mark.story
@pytest.mark.parametrize("says", [b"", PARTIAL, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"])
@on_loop
async def test_connections_without_a_token_keep_no_user_out(says):
    async with served(Told()) as ask:
        headers = {"Authorization": f"{BEARER}{TOKEN}"}
        async with aiohttp.ClientSession(ask.address, headers=headers) as known:

            async def look():
                async with known.get("/api/v1/page") as answer:
                    ports = answer.connection and answer.connection.transport
                    return answer.status, ports and ports.get_extra_info("sockname")

            first = await look()
            async with strangers(port_of(ask), 4 * MOST, says=says) as readers:
                assert (await ask("api/v1/page")).status == 200, "a user on a new connection"
                # The oldest strangers have made room.
                await has_ended(readers[0])
                # The connection of a known user is still the same one.
                assert await look() == first
                assert first[0] == 200


@on_loop
async def test_a_connection_without_a_request_of_a_user_ends_after_its_time(monkeypatch):
    monkeypatch.setattr(listening, "UNKNOWN_S", 0.0)
    monkeypatch.setattr(listening, "LOOK_S", 0.01)
    async with served(Told()) as ask, strangers(port_of(ask), 1) as [reader]:
        await has_ended(reader)
        assert (await ask("api/v1/page")).status == 200


@contextlib.asynccontextmanager
async def open_to_all(tls=None):
    """Serve an application that knows each caller by a header; yields the port."""

    @web.middleware
    async def check(request, handler):
        request[CALLER] = Caller(request.headers["User"])
        return await handler(request)

    async def answer(_):
        return web.Response(text="ok")

    application = web.Application(middlewares=[check])
    application.router.add_get("/", answer)
    ended = asyncio.Event()
    with listen("127.0.0.1", 0) as door:
        running = asyncio.create_task(serve(application, door, until=ended.wait, tls=tls))
        try:
            yield door.getsockname()[1]
        finally:
            ended.set()
            await asyncio.wait_for(running, LIMIT_S)


@on_loop
async def test_the_user_with_the_most_connections_makes_room():
    async with contextlib.AsyncExitStack() as stack:
        port = await stack.enter_async_context(open_to_all())

        async def enter(user):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
            request = f"GET / HTTP/1.1\r\nHost: localhost\r\nUser: {user}\r\n\r\n"
            writer.write(request.encode())
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
            return reader, writer

        modest = await enter("ann")
        greedy = [await enter("bob") for _ in range(2 * MOST)]
        await has_ended(greedy[0][0])
        modest[1].write(b"GET / HTTP/1.1\r\nHost: localhost\r\nUser: ann\r\n\r\n")
        assert (await modest[0].readuntil(b"ok")).startswith(b"HTTP/1.1 200")


@on_loop
async def test_clients_that_begin_no_tls_keep_no_user_out(tmp_path):
    provide(tmp_path)
    tls = Shown(tmp_path).context
    trusted = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    async with (
        open_to_all(tls) as port,
        strangers(port, 4 * MOST, says=b"") as readers,
        aiohttp.ClientSession(headers={"User": "ann"}) as session,
    ):
        await has_ended(readers[0])
        async with session.get(f"https://localhost:{port}/", ssl=trusted) as answer:
            assert await answer.text() == "ok"


class Refusing(socket.socket):
    """A listening socket for which the system has no more files."""

    refusals = 0

    def accept(self):
        type(self).refusals += 1
        raise OSError(24, "Too many open files")


@on_loop
async def test_refusals_by_the_system_are_one_line(monkeypatch, caplog):
    monkeypatch.setattr(listening, "LOOK_S", 0.0)
    with Refusing(socket.AF_INET) as door:
        door.bind(("127.0.0.1", 0))
        door.listen()
        serving = asyncio.create_task(serve(web.Application(), door, until=asyncio.Event().wait))
        async with asyncio.timeout(LIMIT_S):
            while Refusing.refusals < 100:
                await asyncio.sleep(0)
        serving.cancel()
        await asyncio.wait({serving})
    [line] = [each.getMessage() for each in caplog.records]
    assert line == "takes no connections at the moment: Too many open files"
