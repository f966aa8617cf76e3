"""A coroutine on its own thread: its end, and open sockets."""

import asyncio
import contextlib
import gc

import pytest

from dljob.kube.leases import OwnThread
from tests.loops import on_loop

PATIENCE_S = 240.0


@on_loop
async def test_exception_of_the_coroutine_is_its_result():
    async def fail():
        raise KeyError("why")

    thread = OwnThread("test", fail)
    thread.start()
    with pytest.raises(KeyError, match="why"):
        await asyncio.wait_for(thread.ended, PATIENCE_S)
    await thread.stop()


@on_loop
async def test_early_stop_cancels_it():
    async def last():
        await asyncio.sleep(3600.0)

    thread = OwnThread("test", last)
    thread.start()
    await asyncio.wait_for(thread.stop(), PATIENCE_S)
    assert thread.ended.cancelled()


# An open socket causes a ResourceWarning, which fails the test.
@pytest.mark.parametrize("ways", ["abort", "close"])
def test_no_socket_stays_open(ways):
    async def go():
        served = asyncio.Event()

        async def serve(_reader, writer):
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            served.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        _, port = server.sockets[0].getsockname()

        async def connect():
            _reader, writer = await asyncio.open_connection("127.0.0.1", port)
            getattr(writer.transport, ways)()

        thread = OwnThread("test", connect)
        thread.start()
        await asyncio.wait_for(thread.ended, PATIENCE_S)
        # A connection that the server has just accepted would stay open, too.
        await asyncio.wait_for(served.wait(), PATIENCE_S)
        server.close()
        await server.wait_closed()

    asyncio.run(go())
    gc.collect()
