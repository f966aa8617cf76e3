"""
The cost of following hundreds of SideCars for a controller, and how soon they get their commands.

The SideCars are peers that speak the real protocol and obey at once, many in one process, each with
news of its progress every second; with ``--kind real`` they are real SideCars with a training each
(about 50 MB and three processes a piece). The share of a core is that of this process, which does
nothing but follow them; its memory includes the libraries that it has loaded.

While all of them talk, some quiet peers in a process of their own get commands one by one, timed
from the call to the moment at which the peer has read it, by one clock of the machine
(CLOCK_MONOTONIC). In the end all get a command at once; that is given as processor time of the
controller, because the peers share the cores with it as no SideCars would.
"""

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import click
from _measuring import describe_machine, print_result, summarize
from _progress import attempts, read_line, run
from _sidecars import SideCar

from dljob.control.sidecars.dialing import DialSettings
from dljob.control.sidecars.following import SideCars, Surroundings
from dljob.control.situation.ports import Address, PodKey
from dljob.core.model import JobId, NodeName
from dljob_wire.messages import Peer, Run

LIMIT_SHARE, LIMIT_MB, LIMIT_MS = 0.25, 300.0, 20.0
QUIET_PEERS, TOLD_ALONE = 10, 200
QUIET_S = 1e6
HERE = Path(__file__).parent
SLEEP = (sys.executable, "-S", "-c", "import time; time.sleep(10000)")
GPUS = tuple(str(index) for index in range(8))


class Counts:
    """The meter."""

    polls = 0
    failures = 0

    def __init__(self) -> None:
        self.round_trips_ms: list[float] = []

    def polled(self) -> None:
        self.polls += 1

    def told(self, seconds: float) -> None:
        self.round_trips_ms.append(1000 * seconds)

    def failed(self) -> None:
        self.failures += 1


class Controller:
    """Follows all SideCars, and commands them to run."""

    def __init__(self, sockets: Sequence[Path]) -> None:
        self.counts = Counts()
        self._changed = asyncio.Event()
        around = Surroundings(heard=self._hear, meter=self.counts)
        self.sidecars = SideCars(around, DialSettings())
        self.keys = [PodKey(JobId(f"job-{n}"), NodeName("n")) for n in range(len(sockets))]
        self._generation = 0
        for key, path in zip(self.keys, sockets, strict=True):
            self.sidecars.follow(key, Address(socket=str(path)))

    def _hear(self, *_: object) -> None:
        self._changed.set()

    def run(self, key: PodKey) -> None:
        """Declare another run than before."""
        state = self.sidecars.contact(key).state
        assert state is not None
        self._generation += 1
        run = Run(
            epoch=1,
            generation=self._generation,
            incarnation=state.incarnation,
            gpus=GPUS,
            rank_offset=0,
            world_size=1,
            peers=(Peer("localhost", 1),),
            rendezvous_port=20_000 + self._generation % 10_000,
            reason=repr(time.monotonic()),
        )
        self.sidecars.declare(key, run)

    async def until(self, is_so: Callable[[], bool], what: str) -> None:
        for left in attempts(what):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._until(is_so), left)
                return

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._changed.clear()
            await self._changed.wait()

    def is_met(self) -> bool:
        return all(self.sidecars.contact(key).reachable for key in self.keys)

    def is_answered(self) -> bool:
        return not any(self.sidecars.contact(key).unanswered for key in self.keys)


async def follow(sockets: Sequence[Path], seconds: float) -> dict[str, Any]:
    """Follow them for a while, then command the first ones, and at last all of them."""
    controller = Controller(sockets)
    counts, keys = controller.counts, controller.keys
    began = time.monotonic()
    await controller.until(controller.is_met, "all SideCars answer")
    met_s = time.monotonic() - began
    polls, processor, began = counts.polls, time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)
    share = (time.process_time() - processor) / (time.monotonic() - began)
    polls_per_second = (counts.polls - polls) / (time.monotonic() - began)
    for number in range(TOLD_ALONE):
        controller.run(keys[number % min(len(keys), QUIET_PEERS)])
        await controller.until(controller.is_answered, "all commands are answered")
        await asyncio.sleep(0.005)
    round_trips_ms = list(counts.round_trips_ms)
    processor = time.process_time()
    for key in keys:
        controller.run(key)
    await controller.until(controller.is_answered, "all commands are answered")
    burst_ms = 1000 * (time.process_time() - processor)
    await controller.sidecars.close()
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    return {
        "sidecars": len(sockets),
        "met_s": round(met_s, 3),
        "followed_s": round(seconds, 1),
        "polls_per_second": round(polls_per_second, 1),
        "core_share": round(share, 4),
        "memory_mb": round(memory_mb, 1),
        "failures": counts.failures,
        "round_trip_ms": summarize(round_trips_ms),
        "burst_processor_ms_each": round(burst_ms / len(keys), 3),
        "is_cheap": share < LIMIT_SHARE and memory_mb < LIMIT_MB,
    }


# --- the SideCars -------------------------------------------------------------------------


@contextmanager
def serve_peers(
    folder: Path, numbers: range, progress: float, delays: list[float]
) -> Iterator[None]:
    """Have peers; how long declarations were under way is known when they have ended."""
    command = [sys.executable, str(HERE / "_peers.py"), str(folder)]
    command += [str(numbers.start), str(numbers.stop), str(progress)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert read_line(process.stdout, "the peers are ready") == "ready\n"
        yield
        process.stdin.close()
        delays += json.loads(read_line(process.stdout, "the peers name their delays"))


@contextmanager
def start_real(folder: Path, count: int) -> Iterator[None]:
    sidecars: list[SideCar] = []
    with ExitStack() as stack:
        for number in range(count):
            own = folder / str(number)
            own.mkdir()
            sidecars.append(stack.enter_context(SideCar(own, SLEEP)))
        yield
        for sidecar in sidecars:
            # All at once; on the way out each is waited for.
            sidecar.process.terminate()


@click.command(help=__doc__)
@click.option("--sidecars", type=click.IntRange(20, 1000), default=200, show_default=True)
@click.option("--kind", type=click.Choice(["peers", "real"]), default="peers", show_default=True)
@click.option("--seconds", type=float, default=10.0, show_default=True, help="To follow them.")
@click.option("--progress", type=float, default=1.0, show_default=True, help="How often, peers.")
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(sidecars: int, kind: str, seconds: float, progress: float, form: str) -> None:
    """Measure it once."""
    delays: list[float] = []
    with tempfile.TemporaryDirectory(prefix="sidecars-") as name, ExitStack() as stack:
        folder = Path(name)
        if kind == "real":
            sockets = [folder / str(number) / "control" for number in range(sidecars)]
            stack.enter_context(start_real(folder, sidecars))
        else:
            sockets = [folder / str(number) for number in range(sidecars)]
            quiet, others = range(QUIET_PEERS), range(QUIET_PEERS, sidecars)
            stack.enter_context(serve_peers(folder, others, progress, []))
            stack.enter_context(serve_peers(folder, quiet, QUIET_S, delays))
        result = asyncio.run(follow(sockets, seconds))
    if delays:
        result["declare_to_read_ms"] = summarize(delays[:TOLD_ALONE])
        result["is_soon"] = result["declare_to_read_ms"]["p99"] < LIMIT_MS
    print_result({"kind": kind, **result, "machine": describe_machine()}, form)


if __name__ == "__main__":
    run(main)
