"""A proxy between a controller and a SideCar that a test can cut, hold and redirect."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Fate:
    """The fate of a request and its answer; by default, both arrive."""

    request_gate: asyncio.Event | None = None
    """The request arrives when this is set."""
    request_cut: int | None = None
    """Only this number of its bytes arrives, then the connection is cut."""
    answer_gate: asyncio.Event | None = None
    answer_cut: int | None = None


WELL = Fate()


def of(method: bytes, fate: Fate | Callable[[], Fate]) -> Callable[[bytes], Fate]:
    """A fate for the requests of one method, fixed or drawn for each."""

    def find(request: bytes) -> Fate:
        if not request.startswith(method):
            return WELL
        return fate if isinstance(fate, Fate) else fate()

    return find


class Proxy:
    """Passes a Unix socket on to another one, which can change at any time."""

    def __init__(self, path: Path, upstream: Path) -> None:
        self.path = path
        self.upstream = upstream
        self.fate_of: Callable[[bytes], Fate] = lambda _: WELL
        self.requests: list[str] = []
        self.wires: set[_Wire] = set()
        self.opened = 0
        self._serving: set[asyncio.Task[None] | None] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._serve, self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        # A connection from right before the end has no wire yet.
        async with asyncio.timeout(60):
            while self._serving:
                self.cut()
                await asyncio.sleep(0)
            await self._server.wait_closed()

    def cut(self, method: bytes = b"") -> None:
        """Cut all wires, or those whose last request has this method; new ones can be made."""
        for wire in self.wires:
            if wire.method.startswith(method):
                wire.cut()

    def count(self, method: str) -> int:
        return sum(each == method for each in self.requests)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        task = asyncio.current_task()
        self._serving.add(task)
        try:
            near = await asyncio.open_unix_connection(self.upstream)
        except OSError:
            writer.close()
        else:
            await self._carry(_Wire(self, (reader, writer), near))
        finally:
            self._serving.discard(task)

    async def _carry(self, wire: "_Wire") -> None:
        self.wires.add(wire)
        try:
            await wire.carry()
        finally:
            self.wires.discard(wire)


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Wire:
    def __init__(self, proxy: Proxy, controller: Streams, sidecar: Streams) -> None:
        self._proxy = proxy
        self._controller = controller
        self._sidecar = sidecar
        self._fate = WELL
        self.method = b""
        self._pumps: list[asyncio.Task[None]] = []

    async def carry(self) -> None:
        pumps = (self._carry_requests(), self._carry_answers())
        self._pumps = [asyncio.ensure_future(pump) for pump in pumps]
        await asyncio.wait(self._pumps, return_when=asyncio.FIRST_COMPLETED)
        self.cut()
        await asyncio.wait(self._pumps)
        for _, writer in (self._controller, self._sidecar):
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def cut(self) -> None:
        for pump in self._pumps:
            pump.cancel()

    async def _carry_requests(self) -> None:
        reader, writer = self._controller[0], self._sidecar[1]
        with contextlib.suppress(OSError):
            while chunk := await reader.read(65536):
                method, _, rest = chunk.partition(b" ")
                if method in {b"GET", b"PUT"} and rest.startswith(b"/"):
                    self.method = method
                    self._proxy.requests.append(method.decode())
                    self._fate = self._proxy.fate_of(chunk)
                fate = self._fate
                if not await _pass(chunk, writer, fate.request_gate, fate.request_cut):
                    return

    async def _carry_answers(self) -> None:
        reader, writer = self._sidecar[0], self._controller[1]
        with contextlib.suppress(OSError):
            while chunk := await reader.read(65536):
                fate = self._fate
                if not await _pass(chunk, writer, fate.answer_gate, fate.answer_cut):
                    return


async def _pass(
    chunk: bytes, writer: asyncio.StreamWriter, gate: asyncio.Event | None, cut: int | None
) -> bool:
    """Pass it on; return whether the wire is still whole."""
    if gate is not None:
        await gate.wait()
    writer.write(chunk[:cut])
    await writer.drain()
    return cut is None
