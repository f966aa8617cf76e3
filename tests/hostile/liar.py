"""
Stands before an honest SideCar, and tells its controller something else.

``python -m tests.hostile.liar KIND -- [PROGRAM] run ARGUMENTS`` starts a SideCar with these arguments and
answers in its place over TLS, as a user's image could. PROGRAM is what Python runs for a SideCar where it has
no package ``dljob_sidecar``. ``python -m tests.hostile.liar KIND COMMAND...`` without the two dashes is a
training: it puts a socket of its own in the place of its SideCar's, whose user it is.
"""

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.hostile.lies import KINDS, Kind, Memory

Json = dict[str, Any]

CONTROL = ("--listen=", "--tls=", "--job-uid=", "--controller-name=")


class Liar:
    """Answers for a SideCar that listens at a Unix socket."""

    def __init__(self, kind: Kind, truth: Path) -> None:
        self._kind = kind
        self._truth = truth
        self._memory = Memory()
        self._has_begun = kind.from_the_start

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer every request over one connection."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await self._answer_one(head, reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    async def _answer_one(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        length = 0
        for line in head.decode("latin-1").split("\r\n"):
            name, _, value = line.partition(":")
            if name.lower() == "content-length":
                length = int(value)
        body = await reader.readexactly(length)
        if self._kind.refuses is not None and head.startswith(b"PUT"):
            await self._refuse(writer)
            return
        status, said = await self._ask(head, body)
        if status != 200:
            await send(writer, status, said)
            return
        state = json.loads(said)
        self._memory.answers += 1
        self._memory.states.append(state)
        self._has_begun = self._has_begun or state["phase"] == "Running"
        if self._has_begun and self._kind.manner:
            await MANNERS[self._kind.manner](writer, said)
        elif self._has_begun and self._kind.lie is not None:
            told = self._kind.lie(state, self._memory)
            await send(writer, 200, json.dumps(told).encode())
        else:
            await send(writer, 200, said)

    async def _refuse(self, writer: asyncio.StreamWriter) -> None:
        incarnation = self._memory.states[-1]["incarnation"] if self._memory.states else "none"
        refusal = {**(self._kind.refuses or {}), "incarnation": incarnation}
        await send(writer, 409, json.dumps(refusal).encode())

    async def _ask(self, head: bytes, body: bytes) -> tuple[int, bytes]:
        """Ask the honest one the same."""
        reader, writer = await asyncio.open_unix_connection(str(self._truth))
        try:
            first = head.split(b"\r\n", 1)[0]
            rest = f"Host: truth\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(first + b"\r\n" + rest.encode() + body)
            answer = await reader.read()
        finally:
            writer.close()
        begun, _, said = answer.partition(b"\r\n\r\n")
        return int(begun.split(b" ", 2)[1]), said


async def send(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    """Send an answer as it should be."""
    head = f"HTTP/1.1 {status} So\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()


async def _send_garbage(writer: asyncio.StreamWriter, _: bytes) -> None:
    await send(writer, 200, os.urandom(10_000))


async def _send_for_ever(writer: asyncio.StreamWriter, _: bytes) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b"[" * 0x10000 + b"\r\n")
        await writer.drain()


async def _send_nested(writer: asyncio.StreamWriter, _: bytes) -> None:
    await send(writer, 200, b"[" * 500_000)


async def _send_headers(writer: asyncio.StreamWriter, _: bytes) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-More: " + b"y" * 4000 + b"\r\n")
        await writer.drain()


async def _drip(writer: asyncio.StreamWriter, said: bytes) -> None:
    writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(said)}\r\n\r\n".encode())
    for byte in said:
        writer.write(bytes((byte,)))
        await writer.drain()
        await asyncio.sleep(1.0)


async def _be_silent(_writer: asyncio.StreamWriter, _: bytes) -> None:
    await asyncio.Event().wait()


async def _hang_up(writer: asyncio.StreamWriter, _: bytes) -> None:
    writer.close()


MANNERS = {
    "garbage": _send_garbage,
    "endless": _send_for_ever,
    "nested": _send_nested,
    "headers": _send_headers,
    "drip": _drip,
    "silent": _be_silent,
    "hang-up": _hang_up,
}


async def stand_before(kind: Kind, words: Sequence[str]) -> int:
    """Be the SideCar of a container, by way of an honest one."""
    at = words.index("run")
    program, arguments = words[:at] or ("-m", "dljob_sidecar"), words[at + 1 :]
    given = {
        name: word.removeprefix(name)
        for name in CONTROL
        for word in arguments
        if word.startswith(name)
    }
    folder = Path(tempfile.mkdtemp(prefix="liar-"))
    truth = folder / "truth.sock"
    kept = [word for word in arguments if not word.startswith(CONTROL)]
    command = (sys.executable, *program, "run", f"--socket={truth}", *kept)
    honest = await asyncio.create_subprocess_exec(*command)
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, honest.send_signal, signum)
    while not truth.exists() and honest.returncode is None:
        await asyncio.sleep(0.05)
    host, _, port = given["--listen="].rpartition(":")
    tls = Path(given["--tls="])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls / "tls.crt", tls / "tls.key")
    liar = Liar(kind, truth)
    server = await asyncio.start_server(liar.answer, host, int(port), ssl=context)
    try:
        return await honest.wait()
    finally:
        server.close()


async def replace_socket(kind: Kind, command: Sequence[str]) -> int:
    """Train, and answer at the socket of the SideCar that has started this training."""
    words = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().split(b"\0")
    [path] = [Path(os.fsdecode(word[9:])) for word in words if word.startswith(b"--socket=")]
    truth = path.with_suffix(".truth")
    path.rename(truth)
    server = await asyncio.start_unix_server(Liar(kind, truth).answer, str(path))
    training = subprocess.Popen(command)
    for signum in (signal.SIGTERM, signal.SIGUSR1):
        asyncio.get_running_loop().add_signal_handler(signum, training.send_signal, signum)
    try:
        return await asyncio.to_thread(training.wait)
    finally:
        server.close()


def main() -> int:
    kind, *words = sys.argv[1:]
    if words[0] == "--":
        return asyncio.run(stand_before(KINDS[kind], words[1:]))
    return asyncio.run(replace_socket(KINDS[kind], words))


if __name__ == "__main__":
    sys.exit(main())
