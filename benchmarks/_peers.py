"""
SideCars without processes, many in one process: the real server, agent and table, each at its socket.

``python _peers.py FOLDER FIRST END SECONDS`` serves ``FOLDER/FIRST`` up to before ``FOLDER/END``; each
has news of its progress every ``SECONDS``. It says ``ready``, and when its input is closed, as
one line of JSON, for how many milliseconds each declaration was under way: the time at which it was
made, by the clock of the machine, is expected in its reason.
"""

import asyncio
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from dljob_sidecar.agent import Agent
from dljob_sidecar.behaviour.events import (
    CheckpointDone,
    Event,
    Gone,
    Started,
)
from dljob_sidecar.behaviour.machine import Limits
from dljob_sidecar.diagnosing.tracebacks import LastWords
from dljob_sidecar.serving.listening import Servers
from dljob_sidecar.settings import Serving
from dljob_wire.messages import Gpu, Post, Problem, Process, Progress, Refused, Run, Target, Warmth

GPUS = tuple(
    Gpu(index, uuid=f"GPU-{index:032x}", model="NVIDIA H100 80GB HBM3", memory_total=80 * 10**9)
    for index in range(8)
)


class Training:
    """A job whose processes obey at once."""

    def __init__(self, agent: Agent, seconds: float) -> None:
        self._agent = agent
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._attempt = 0
        self._processes: tuple[Process, ...] = ()
        self._progress = Progress(metrics={"loss": 2.0, "top5": 0.5})

    # --- as its supervisor

    def start(self, run: Run, attempt: int, *, joins: bool = False) -> None:  # noqa: ARG002 - none joins
        self._attempt = attempt
        self._processes = tuple(
            Process(rank, 100 + rank, (gpu,)) for rank, gpu in enumerate(run.gpus)
        )
        self._report(Started(attempt))

    def prepare(self, processes: int) -> None:
        """It has no spares."""

    def checkpoint(self, *, is_trial: bool = False) -> None:  # noqa: ARG002 - all go on here
        self._report(CheckpointDone(self._attempt))

    def terminate(self) -> None:
        self._report(Gone(self._attempt))

    def give_up_checkpoint(self) -> None:
        """None is under way."""

    def change(self, run: Run, target: Target) -> None:
        """Never asked, because no process registers."""

    def try_live(self, run: Run, number: int) -> None:
        """Never asked either."""

    def withdraw(self) -> None:
        """Never asked either."""

    def kill(self) -> None:
        self._report(Gone(self._attempt))

    def _report(self, event: Event) -> None:
        self._loop.call_soon(self._agent.happen, event)

    # --- as what is known of it

    def advance(self) -> None:
        iteration = self._progress.iteration + 5
        self._progress = replace(self._progress, iteration=iteration, iterations_per_second=5.0)
        self._agent.changed()
        self._loop.call_later(self._seconds, self.advance)

    def processes(self) -> tuple[Process, ...]:
        return self._processes

    def progress(self) -> Progress:
        return self._progress

    def gpus(self) -> tuple[Gpu, ...]:
        return GPUS

    def warmth(self) -> Warmth:
        return Warmth(wanted=8, ready=8, memory_bytes=10**9)

    def problems(self) -> tuple[Problem, ...]:
        return ()

    def last_words(self) -> LastWords:
        return LastWords()

    def post(self, post: Post) -> None:
        """Nothing is posted to it."""


class Peer(Agent):
    """An agent that notes when it gets a command."""

    def __init__(self, incarnation: str, delays: list[float]) -> None:
        super().__init__(incarnation=incarnation, limits=Limits())
        self._delays = delays

    def declare(self, target: Target) -> Refused | None:
        self._delays.append(1000 * (time.monotonic() - float(target.reason)))
        return super().declare(target)


async def serve(folder: Path, numbers: range, seconds: float) -> None:
    delays: list[float] = []
    loop = asyncio.get_running_loop()
    for number in numbers:
        agent = Peer(f"start-of-{number}", delays)
        training = Training(agent, seconds)
        agent.begin(training, training)
        # Not all at the same moment, as they would not be in life.
        loop.call_later(seconds * number / numbers.stop, training.advance)
        Servers(agent, Serving(socket=str(folder / str(number)))).open()
    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    print(json.dumps(delays), flush=True)
    # At once, because no client is left that waits for a last answer.
    os._exit(0)


if __name__ == "__main__":
    place, first, end, pause = sys.argv[1:]
    asyncio.run(serve(Path(place), range(int(first), int(end)), float(pause)))
