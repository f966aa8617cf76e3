"""
A command in a container, as ``kubectl exec`` runs it: over a WebSocket, one byte naming the stream.

Spoken is ``v4.channel.k8s.io``, which every kubelet knows. It has no way to say that standard input has
ended; so input is passed on from a terminal only, whose input does not end.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import aiohttp

from dljob.client.backend import BackendError
from dljob.core.documents.rules.podrules import TRAINER
from dljob.kube.client import ApiServer
from dljob.kube.resources import PODS

PROTOCOL: Final = "v4.channel.k8s.io"
STDIN, STDOUT, STDERR, ERROR, RESIZE = range(5)
BLOCK: Final = 1 << 14


class Place(NamedTuple):
    namespace: str
    pod: str
    container: str = TRAINER


async def execute(api: ApiServer, place: Place, *, command: Sequence[str]) -> int:
    """Run a command to its end and return its exit status; its output goes to ours."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    streams = ("stdin", "stdout", "tty") if is_terminal else ("stdout", "stderr")
    query = [("container", place.container), *((stream, "true") for stream in streams)]
    query += [("command", word) for word in command]
    path = PODS.path(place.namespace, place.pod, "exec")
    connection = await api.connect(path, query, protocols=[PROTOCOL])
    try:
        with _passing_on(connection) if is_terminal else contextlib.nullcontext():
            return await _listen(connection)
    finally:
        # The client aborts what is left of the connection when it is closed itself.
        await connection.close()


async def _listen(connection: aiohttp.ClientWebSocketResponse) -> int:
    outputs = {STDOUT: sys.stdout.buffer, STDERR: sys.stderr.buffer}
    async for message in connection:
        if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
            continue
        channel, content = message.data[0], message.data[1:]
        if channel == ERROR:
            return read_status(content)
        if channel in outputs and content:
            outputs[channel].write(content)
            outputs[channel].flush()
    raise BackendError(
        "the connection ended before the command did; the command may have finished or not; check,"
        " and run it again if that is safe"
    )


def read_status(content: bytes) -> int:
    """Read the exit status of a command from the server's last message; raises if the command did not run."""
    status: dict[str, Any] = json.loads(content)
    if status.get("status") == "Success":
        return 0
    causes = (status.get("details") or {}).get("causes") or ()
    for cause in causes:
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    what = " ".join(str(status.get("message", "")).split())
    raise BackendError(f"the command cannot be run there ({what}); check it, and its path")


@contextlib.contextmanager
def _passing_on(connection: aiohttp.ClientWebSocketResponse) -> Iterator[None]:
    """Pass on typed keys and the size of the terminal."""
    loop, keys = asyncio.get_running_loop(), sys.stdin.fileno()
    sending: asyncio.Queue[bytes] = asyncio.Queue()

    def read_keys() -> None:
        try:
            typed = os.read(keys, BLOCK)
        except BlockingIOError:
            return
        except OSError:
            typed = b""
        if typed:
            sending.put_nowait(bytes([STDIN]) + typed)
        else:
            # The terminal was hung up. It stays readable, and the loop would call this again and again.
            loop.remove_reader(keys)

    def tell_size() -> None:
        # The size of the input's terminal, because the output may be a file.
        width, height = os.get_terminal_size(keys)
        size = json.dumps({"Width": width, "Height": height}).encode()
        sending.put_nowait(bytes([RESIZE]) + size)

    async def send() -> None:
        # `_listen` reports the end of the connection; later keys are dropped.
        with contextlib.suppress(ConnectionError, aiohttp.ClientError):
            while True:
                await connection.send_bytes(await sending.get())

    # Read first, so that each later error restores the terminal.
    before = termios.tcgetattr(keys)
    sender = asyncio.ensure_future(send())
    try:
        # Keys that were typed meanwhile are kept.
        tty.setraw(keys, termios.TCSADRAIN)
        # In raw mode Ctrl-C is a byte for the command in the container, and no signal here.
        tell_size()
        loop.add_reader(keys, read_keys)
        loop.add_signal_handler(signal.SIGWINCH, tell_size)
        yield
    finally:
        loop.remove_reader(keys)
        loop.remove_signal_handler(signal.SIGWINCH)
        sender.cancel()
        # A terminal that was hung up has no settings.
        with contextlib.suppress(termios.error):
            termios.tcsetattr(keys, termios.TCSADRAIN, before)
