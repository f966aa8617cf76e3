"""A connection to the API server that a test can cut, or make lose answers."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from tests.loops import LONGEST_S, abort_connections, close_loop

BLOCK = 65_536


class Wire:
    """
    Passes on what an operator and the API server say to each other, on a thread of its own.

    It cannot read it, for it is encrypted; but what the server says after it was asked is an answer, or
    news of a watch.
    """

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self._config = json.loads(kubeconfig.read_text(encoding="utf-8"))
        server = urlsplit(self._config["clusters"][0]["cluster"]["server"])
        assert server.hostname is not None
        assert server.port is not None
        self._host, self._port = server.hostname, server.port
        self.kubeconfig = folder / "over-the-wire.kubeconfig"
        """The kubeconfig for clients of this wire."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._open: set[asyncio.StreamWriter] = set()
        self._to_lose = 0
        self.lost = 0
        """Lost answers."""
        self.cuts = 0
        """Cut connections."""

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(LONGEST_S)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(LONGEST_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LONGEST_S)
        abort_connections(self._loop)
        close_loop(self._loop)

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._cut)

    def lose_answers(self, count: int) -> None:
        """Lose the next ``count`` pieces of the server's answers, each with its connection."""
        self._loop.call_soon_threadsafe(self._lose, count)

    # --- on the thread

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._meet, self._host, 0)
        port = self._server.sockets[0].getsockname()[1]
        self._config["clusters"][0]["cluster"]["server"] = f"https://{self._host}:{port}"
        self.kubeconfig.write_text(json.dumps(self._config), encoding="utf-8")

    async def _close(self) -> None:
        self._server.close()
        self._cut()
        await self._server.wait_closed()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for each in others:
            # A connection that is just opening would not be cut.
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _cut(self) -> None:
        self.cuts += len(self._open) // 2
        for each in self._open:
            each.transport.abort()

    def _lose(self, count: int) -> None:
        self._to_lose = count

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, far_writer}
        self._open |= ends
        if not self._server.is_serving():
            # It came right before the end, after the others were cut.
            for each in ends:
                each.transport.abort()
        try:
            await asyncio.gather(
                self._pass_on(reader, far_writer, loses=False),
                self._pass_on(far_reader, writer, loses=True),
            )
        except OSError:
            pass  # Cut, or closed by either.
        finally:
            self._open -= ends
            for each in ends:
                each.transport.abort()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, loses: bool
    ) -> None:
        while block := await reader.read(BLOCK):
            if loses and self._to_lose:
                self._to_lose -= 1
                self.lost += 1
                break
            writer.write(block)
            await writer.drain()
        raise ConnectionAbortedError
