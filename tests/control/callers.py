"""A controller's side of the conversation with SideCars, and SideCars without processes."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ParamSpec

from dljob.control.sidecars.dialing import DialSettings
from dljob.control.sidecars.following import SideCars, Surroundings
from dljob.control.situation.dialer import Contact
from dljob.control.situation.ports import Address, PodKey
from dljob.core.model import JobId, NodeName
from dljob_sidecar.agent import Agent
from dljob_sidecar.behaviour.machine import Limits
from dljob_sidecar.serving.listening import Servers
from dljob_sidecar.settings import Serving
from dljob_wire.messages import Peer, Run, State, Stop
from tests.control.proxies import Proxy
from tests.sidecar.clients import live_through
from tests.sidecar.fakes import FakeFacts, FakeSupervisor

POD = PodKey(JobId("resnet"), NodeName("n1"))

USUAL = Serving()
HURRIED = DialSettings(
    shortest_pause_seconds=0.01,
    longest_pause_seconds=0.1,
    refused_pause_seconds=0.1,
    progress_seconds=0.05,
    polls_per_second=1000.0,
    changes_per_second=1000.0,
    silence_seconds=60.0,
    dial_seconds=60.0,
)
"""Retries soon after a failure, and gives up no SideCar because the machine stalls."""


P = ParamSpec("P")


def living(story: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test on an event loop, with a time limit."""

    @functools.wraps(story)
    def live(*args: P.args, **kwargs: P.kwargs) -> None:
        live_through(story(*args, **kwargs))

    return live


@dataclass
class Counts:
    """Counts the calls of a caller."""

    polls: int = 0
    failures: list[float] = field(default_factory=list)
    round_trips: list[float] = field(default_factory=list)

    def polled(self) -> None:
        self.polls += 1

    def told(self, seconds: float) -> None:
        self.round_trips.append(seconds)

    def failed(self) -> None:
        self.failures.append(asyncio.get_running_loop().time())


class Caller:
    """Follows SideCars, remembers all reports, and asserts that no report goes backwards."""

    def __init__(
        self,
        settings: DialSettings = HURRIED,
        chance: Callable[[], float] = lambda: 0.5,
        *,
        epoch: int = 1,
    ) -> None:
        self.counts = Counts()
        self.heard: list[tuple[PodKey, bool]] = []
        self._seen: dict[PodKey, list[tuple[str, int]]] = {}
        self._changed = asyncio.Event()
        around = Surroundings(
            heard=self._hear, epoch=epoch, installation="ours", meter=self.counts, chance=chance
        )
        self.sidecars = SideCars(around, settings)

    def _hear(self, key: PodKey, is_material: bool) -> None:
        self.heard.append((key, is_material))
        state = self.sidecars.contact(key).state
        if state is not None:
            self._see(self._seen.setdefault(key, []), state)
        self._changed.set()

    def _see(self, seen: list[tuple[str, int]], state: State) -> None:
        if seen and seen[-1][0] == state.incarnation:
            assert state.version >= seen[-1][1], f"backwards after {seen[-1]}: {state}"
        else:
            assert state.incarnation not in {name for name, _ in seen}, f"back again: {state}"
        seen.append((state.incarnation, state.version))

    def follow(self, place: Path | Address, key: PodKey = POD) -> None:
        address = place if isinstance(place, Address) else Address(socket=str(place))
        self.sidecars.follow(key, address)

    def contact(self, key: PodKey = POD) -> Contact:
        return self.sidecars.contact(key)

    async def until(self, is_reached: Callable[[Contact], object], key: PodKey = POD) -> Contact:
        """Wait until the contact is so; the test as a whole has a limit."""
        while not is_reached(self.contact(key)):
            self._changed.clear()
            await self._changed.wait()
        return self.contact(key)

    async def meet(self, place: Path | Address, key: PodKey = POD) -> State:
        """Follow it, and return its first state."""
        self.follow(place, key)
        contact = await self.until(lambda contact: contact.state, key)
        assert contact.state is not None
        return contact.state

    def run(self, generation: int, *gpus: str, key: PodKey = POD, epoch: int = 1) -> Run:
        """Declare a run for the present incarnation of the container."""
        target = Run(
            epoch=epoch,
            generation=generation,
            incarnation=self._incarnation(key),
            gpus=gpus or ("0",),
            rank_offset=0,
            world_size=1,
            peers=(Peer("localhost", 1),),
            rendezvous_port=20000 + generation,
        )
        self.sidecars.declare(key, target)
        return target

    def stop(
        self, generation: int, *, key: PodKey = POD, epoch: int = 1, leave: bool = False
    ) -> Stop:
        target = Stop(epoch, generation, self._incarnation(key), leave=leave)
        self.sidecars.declare(key, target)
        return target

    def _incarnation(self, key: PodKey) -> str:
        state = self.contact(key).state
        assert state is not None
        return state.incarnation


@asynccontextmanager
async def calling(
    settings: DialSettings = HURRIED, chance: Callable[[], float] = lambda: 0.5, *, epoch: int = 1
):
    caller = Caller(settings, chance, epoch=epoch)
    try:
        yield caller
    finally:
        await caller.sidecars.close()


class Container:
    """The real agent and server, above played processes."""

    def __init__(self, incarnation: str, serving: Serving) -> None:
        self.supervisor = FakeSupervisor()
        self.facts = FakeFacts()
        self.agent = Agent(incarnation=incarnation, limits=Limits())
        self.agent.begin(self.supervisor, self.facts)
        self._serving = serving
        self.open()

    def open(self) -> None:
        self.servers = Servers(self.agent, self._serving)
        self.servers.open()

    async def polled(self) -> None:
        while not self.agent._waiting:
            await asyncio.sleep(0.001)

    async def close(self) -> None:
        await self.servers.close()


@asynccontextmanager
async def contained(
    path: Path | None, *, incarnation: str = "first-start", serving: Serving = USUAL
):
    local = serving if path is None else replace(serving, socket=str(path))
    container = Container(incarnation, local)
    try:
        yield container
    finally:
        await container.close()


@asynccontextmanager
async def wired(folder: Path, settings: DialSettings = HURRIED):
    """A SideCar, a caller that has met it, and the proxy between them."""
    async with (
        contained(folder / "a") as container,
        Proxy(folder / "p", folder / "a") as proxy,
        calling(settings) as caller,
    ):
        await caller.meet(proxy.path)
        yield container, proxy, caller
