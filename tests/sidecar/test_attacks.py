"""
A real SideCar on a network, with a training that runs, and all clients that have no business there.

The answer to each of them is tested one by one in test_trust.py and test_serving.py. Here they come
all at once and again and again, and neither the training nor the memory may show it.
"""

import asyncio
import contextlib
import json
import random
import re
import ssl
import sys
from collections import Counter
from pathlib import Path

import pytest

from dlsidecar.serving.connections import MOST_CONNECTIONS
from dlsidecar.serving.trust import job_name
from dlwire.messages import Phase, State
from tests.servers.ports import choose_ports
from tests.sidecar.certificates import JOB, People, client_context, make_people
from tests.sidecar.clients import LONGEST_SECONDS, Client
from tests.sidecar.nonsense import REFUSALS, make_nonsense
from tests.sidecar.sidecars import SideCar, read_memory_kib
from tests.sidecar.targets import run

pytestmark = [pytest.mark.processes, pytest.mark.slow]

STEPS = (
    "import time\nfor i in range(10**9):\n    print('step', i, flush=True)\n    time.sleep(0.01)"
)
SLOW = 20
ROUNDS = 15
SIEGES = 3
MOST_GROWTH_KIB = 1024
PATIENCE_SECONDS = 0.2


class Network:
    """The SideCar as all its clients see it."""

    def __init__(self, port: int, people: People) -> None:
        self.port = port
        self.people = people
        self.told: Counter[str] = Counter()

    def client(self, who: Path | None) -> Client:
        context = client_context(who, self.people.sidecar)
        return Client(port=self.port, context=context, server_name=job_name(JOB))

    async def attack(self, chance: random.Random) -> None:
        """Let each attacker come once."""
        for name in ("anonymous", "forger", "expired"):
            who = None if name == "anonymous" else getattr(self.people, name)
            try:
                answer = await self.client(who).put(run(99, epoch=10**9))
                self.told[f"{name}: {answer.status}"] += 1
            except (ssl.SSLError, ConnectionError):
                self.told[f"{name}: no connection"] += 1
        for name in ("other_job", "stranger", "job"):
            answer = await self.client(getattr(self.people, name)).put(run(99, epoch=10**9))
            self.told[f"{name}: {answer.status}"] += 1
        await self._send("plain", Client(port=self.port), b"GET /v1/state HTTP/1.1\r\n\r\n")
        large = b"PUT /v1/target HTTP/1.1\r\nHost: d\r\nContent-Length: 9999999\r\n\r\n"
        controller = self.client(self.people.controller)
        await self._send("large", controller, large + bytes(300_000))
        await self._send("headers", controller, b"GET /v1/state HTTP/1.1\r\n" + b"x: y\r\n" * 9999)
        answer = await controller.ask("PUT", "/v1/target", b"{" * 9999)
        self.told[f"malformed: {answer.status}"] += 1
        answer = await controller.ask("GET", "/v1/../../../etc/passwd")
        self.told[f"path: {answer.status}"] += 1
        # As one who may read, so that each is looked at and can do no harm.
        job = self.client(self.people.job)
        senders = [self._send("nonsense", job, make_nonsense(chance)) for _ in range(10)]
        told = await asyncio.gather(*senders)
        assert set(told) <= {status.decode() for status in REFUSALS}

    async def _send(self, name: str, client: Client, request: bytes) -> str:
        """Send something, and hang up where the rest is waited for."""
        told = ""
        with contextlib.suppress(ssl.SSLError, ConnectionError, asyncio.TimeoutError):
            told = (await asyncio.wait_for(client.send(request), PATIENCE_SECONDS))[9:12].decode()
        self.told[f"{name}: {told}"] += 1
        return told

    async def hold(self, count: int) -> list[asyncio.StreamWriter]:
        """Open connections and say hardly anything, with and without a handshake."""
        held = []
        for number in range(count):
            slow = self.client(self.people.job) if number % 10 == 0 else Client(port=self.port)
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                _, writer = await slow.connect()
                writer.write(b"G")
                held.append(writer)
        return held


@pytest.fixture(scope="module")
def people(tmp_path_factory) -> People:
    return make_people(tmp_path_factory.mktemp("people"))


@pytest.fixture
def besieged(start, token, people):
    """Start a SideCar at a port, and a training that says its steps."""
    [port] = choose_ports(1)
    doors = ("--listen", f"127.0.0.1:{port}", "--tls", str(people.sidecar), "--job-uid", JOB)
    progress = ("--progress-log", r"step (?P<iteration>\d+)", "--poll-seconds", "0.1")
    command = (sys.executable, "-S", "-c", STEPS, token)
    sidecar = start(command=command, options=(*doors, *progress))
    sidecar.wait_ready()
    sidecar.run(1)
    sidecar.wait_for(lambda s: s.progress.iteration > 0)
    return sidecar, Network(port, people)


def see_undisturbed(sidecar: SideCar, before: State) -> None:
    """See that the same process trains on, and that nothing was declared."""
    now = sidecar.state()
    after = sidecar.wait_for(lambda s: s.progress.iteration > now.progress.iteration)
    assert (after.phase, after.target) == (Phase.RUNNING, before.target)
    assert after.processes == before.processes
    assert after.problems == ()


def test_whoever_has_no_business_here_disturbs_nothing_and_costs_no_memory(besieged):
    sidecar, network = besieged
    before, chance = sidecar.state(), random.Random(4)

    async def siege(rounds: int) -> None:
        for _ in range(rounds):
            await asyncio.wait_for(network.attack(chance), LONGEST_SECONDS)

    asyncio.run(siege(ROUNDS))
    growth: list[int] = []
    # A leak grows with each siege; one in which the SideCar stood still has left it with more at once.
    while not growth or (growth[-1] >= MOST_GROWTH_KIB and len(growth) < SIEGES):
        memory = read_memory_kib(sidecar)
        asyncio.run(siege(ROUNDS))
        growth.append(read_memory_kib(sidecar) - memory)
    assert growth[-1] < MOST_GROWTH_KIB
    see_undisturbed(sidecar, before)
    told: dict[str, set[str]] = {}
    for name, _, status in (key.partition(": ") for key in network.told):
        told.setdefault(name, set()).add(status)
    assert {name: told[name] for name in told if name not in {"nonsense", "large"}} == {
        "anonymous": {"no connection"},
        "forger": {"no connection"},
        "expired": {"no connection"},
        "other_job": {"403"},
        "stranger": {"403"},
        "job": {"403"},
        "plain": {""},
        "malformed": {"400"},
        "path": {"404"},
        "headers": {""},
    }
    # The SideCar hangs up on a client that goes on sending, which may or may not see the answer.
    assert told["large"] <= {"413", ""}


def test_who_only_holds_connections_keeps_neither_the_controller_nor_the_training(besieged):
    sidecar, network = besieged
    before = sidecar.state()

    async def siege() -> None:
        held = await network.hold(MOST_CONNECTIONS + SLOW)
        try:
            controller = network.client(network.people.controller)
            state = (await controller.get("/v1/state")).state()
            assert state.incarnation == before.incarnation
            held += await network.hold(SLOW)
            answer = await controller.put(run(2))
            assert json.loads(answer.body)["error"] == "OtherIncarnation"
        finally:
            for writer in held:
                writer.transport.abort()
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(siege(), LONGEST_SECONDS))
    see_undisturbed(sidecar, before)
    # An event that every client can cause does not fill the log.
    assert sidecar.told().count("too many connections") == 1


async def ask_again(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Ask over a connection that stays."""
    writer.write(b"GET /v1/state HTTP/1.1\r\nHost: d\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head.splitlines()[0]
    length = re.search(rb"(?i)content-length: (\d+)", head)
    assert length is not None
    await reader.readexactly(int(length[1]))


def test_a_job_with_its_own_certificate_keeps_its_controller_neither_out_nor_waiting(besieged):
    sidecar, network = besieged
    before = sidecar.state()
    paths = ("/v1/state", "/v1/state?after=1000000&wait=60")

    async def siege() -> None:
        controller = network.client(network.people.controller)
        reader, writer = await controller.connect()
        held = [writer]
        try:
            for number in range(MOST_CONNECTIONS + SLOW):
                guest = network.client(network.people.job)
                with contextlib.suppress(ssl.SSLError, ConnectionError):
                    _, its = await guest.connect()
                    held.append(its)
                    its.write(f"GET {paths[number % 2]} HTTP/1.1\r\nHost: d\r\n\r\n".encode())
                if number % 4 == 0:  # A connection that asks nothing for long is hung up on.
                    await ask_again(reader, writer)
            # One that came before them all is still there, and new ones come in.
            await ask_again(reader, writer)
            for _ in range(5):
                state = (await controller.get("/v1/state")).state()
                assert state.incarnation == before.incarnation
            assert (await controller.put(run(2))).status != 403
        finally:
            for each in held:
                each.transport.abort()
            # An aborted connection is closed in the next turn of the loop, which ends with this.
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(siege(), LONGEST_SECONDS))
    see_undisturbed(sidecar, before)
