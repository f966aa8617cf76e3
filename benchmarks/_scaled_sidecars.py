"""
Played SideCars by the thousand, in one process: each on an address of its own, over mutual TLS.

One listener on all addresses of the loopback network answers for all of them, and knows by the address
that was dialled which of them is meant. Each trains: its iteration rises with the time, and a client that waits
for news gets an answer after the time that it names, as from the real one.
"""

import asyncio
import itertools
import resource
import ssl
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast
from urllib.parse import parse_qs, urlsplit

from dljob_wire import codec
from dljob_wire.messages import Peer, Process, Progress, Run, State
from dljob_wire.messages import Phase as SideCarPhase

GPUS_A_JOB = 4
JOBS_A_NODE = 2
HOSTS, NETWORKS = 250, 250
FIRST_NETWORK = 16
GENERATION = 3
"""Of the start that the former controller is said to have made."""
ALL_LOOPBACK = "0.0.0.0"  # noqa: S104 - each of them has an address of its own
SPEED = 2.0
"""Iterations a second."""
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


def address_of(number: int) -> str:
    """Give each SideCar an address of its own."""
    rest, host = divmod(number, HOSTS)
    high, low = divmod(rest, NETWORKS)
    return f"127.{FIRST_NETWORK + high}.{low}.{host + 1}"


def number_of(address: str) -> int:
    """Return whose address this is."""
    _, high, low, host = map(int, address.split("."))
    return ((high - FIRST_NETWORK) * NETWORKS + low) * HOSTS + host - 1


class Played:
    """One SideCar, as far as a controller sees it."""

    def __init__(self, number: int) -> None:
        first = number % JOBS_A_NODE * GPUS_A_JOB
        gpus = tuple(str(first + each) for each in range(GPUS_A_JOB))
        self._began = time.monotonic()
        self._versions = itertools.count(2)
        self.state = State(
            incarnation=f"played-{number}",
            version=1,
            phase=SideCarPhase.RUNNING,
            released=False,
            epoch=1,
            generation=GENERATION,
            target=Run(
                1,
                GENERATION,
                f"played-{number}",
                gpus,
                0,
                GPUS_A_JOB,
                (Peer("n", GPUS_A_JOB),),
                20_000,
            ),
            held=gpus,
            held_generation=GENERATION,
            processes=tuple(Process(rank, 100 + rank) for rank in range(GPUS_A_JOB)),
        )

    def look(self) -> bytes:
        """Return the present state."""
        iteration = int((time.monotonic() - self._began) * SPEED)
        if iteration != self.state.progress.iteration:
            progress = Progress(iteration=iteration, iterations_per_second=SPEED)
            self.state = replace(self.state, version=next(self._versions), progress=progress)
        return codec.encode(self.state)

    def obey(self, body: bytes) -> bytes:
        """Take a declaration: the start that it has is the one that is declared."""
        target = codec.decode_target(body)
        self.state = replace(
            self.state,
            version=next(self._versions),
            epoch=target.epoch,
            generation=target.generation,
            target=target,
            installation=target.installation,
        )
        return codec.encode(self.state)


class Connection(asyncio.Protocol):
    """One connection of a controller: requests one after the other."""

    def __init__(self, of_number: Callable[[int], Played]) -> None:
        self._of_number = of_number
        self._unread = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._played = self._of_number(number_of(transport.get_extra_info("sockname")[0]))

    def data_received(self, data: bytes) -> None:
        self._unread += data
        head, end, rest = self._unread.partition(b"\r\n\r\n")
        if not end:
            return
        lines = head.decode().split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in lines[1:])
        length = int(fields.get("content-length", 0))
        if len(rest) < length:
            return
        self._unread = rest[length:]
        method, path, _ = lines[0].split(" ")
        if method == "PUT":
            self._answer(self._played.obey(rest[:length]))
            return
        query = parse_qs(urlsplit(path).query)
        wait, progress = (float(query.get(name, ["0"])[0]) for name in ("wait", "progress"))
        patience = min(wait, max(progress, 1.0 / SPEED))
        asyncio.get_running_loop().call_later(patience, self._tell)

    def _tell(self) -> None:
        if not self._transport.is_closing():
            self._answer(self._played.look())

    def _answer(self, body: bytes) -> None:
        self._transport.write(OK % len(body) + body)


async def serve(folder: Path, port: int) -> None:
    """Play all of them for ever, with the certificates in a folder."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    context.load_verify_locations(folder / "ca.crt")
    played: dict[int, Played] = {}

    def of_number(number: int) -> Played:
        if number not in played:
            played[number] = Played(number)
        return played[number]

    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(of_number), ALL_LOOPBACK, port, ssl=context, backlog=4096
    )
    print("serves", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
