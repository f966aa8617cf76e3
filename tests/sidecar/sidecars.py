"""
A SideCar as its controller sees it: the real command in its own process, and a socket.

Each call waits for its result, up to a limit that only a broken program reaches.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from _sidecars import NO_FIELDS, write_fields

from dljob_wire.messages import Peer, Phase, Run, State, Stop, Target
from tests.sidecar.clients import LONGEST_SECONDS, Answer, Client
from tests.sidecar.drivers import HERE, ROOT, find_processes, is_alive, read_children, wait_until


def problem_names(state: State) -> set[str]:
    return {problem.name for problem in state.problems}


TRAINER = str(HERE / "trainers.py")
POLL_SECONDS = 60
"""The longest wait of a poll."""


class SideCar:
    """One start of a container on a plain machine."""

    def __init__(
        self,
        folder: Path,
        token: str,
        *command: str,
        options: Mapping[str, Any] = NO_FIELDS,
        python: tuple[str, ...] = (sys.executable,),
        program: tuple[str, ...] = ("-m", "dljob_sidecar"),
        path: tuple[str, ...] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
        expects_gpus: bool = False,
    ) -> None:
        """``path`` has additional folders of modules."""
        self.token = token
        self.socket = folder / "control"
        self.client = Client(socket=self.socket)
        modules = os.pathsep.join([str(ROOT / "sidecar"), *path])
        given = {**os.environ, **environment, "PYTHONPATH": modules}
        start = [*python, *program, "run", "--socket", str(self.socket)]
        training = {"checkpoint.graceSeconds": 1, "expectsGpus": expects_gpus, **options}
        start += ["--training", write_fields(training), "--", *command]
        self.log = (folder / "log").open("a+b")
        self.process = subprocess.Popen(
            start, env=given, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log
        )
        self.incarnation = ""

    def get(self, path: str) -> Answer:
        return asyncio.run(asyncio.wait_for(self.client.get(path), LONGEST_SECONDS))

    def declare(self, target: Target) -> Answer:
        return asyncio.run(asyncio.wait_for(self.client.put(target), LONGEST_SECONDS))

    def state(self) -> State:
        return self.get("/v1/state").state()

    def wait_ready(self) -> State:
        """Wait until it answers, and remember its incarnation."""
        state = wait_until(self._state_or_none, what="an answer")
        self.incarnation = state.incarnation
        return state

    def wait_for(self, is_reached: Callable[[State], bool]) -> State:
        """Follow the state by long polls until it satisfies a condition."""
        state, moved = self.state(), time.monotonic()
        for _ in range(1000):
            if is_reached(state):
                return state
            path = f"/v1/state?after={state.version}&wait={POLL_SECONDS}"
            following = self.get(path).state()
            if following.version > state.version:
                moved = time.monotonic()
            # A busy machine may take longer for the next step than a poll may last.
            assert time.monotonic() < moved + LONGEST_SECONDS, f"nothing moves any more: {state}"
            state = following
        raise AssertionError(f"it is never reached: {state}")

    def run(self, generation: int, *gpus: str, processes: int = 1, epoch: int = 1) -> Answer:
        target = Run(
            epoch=epoch,
            generation=generation,
            incarnation=self.incarnation,
            gpus=gpus or ("0",),
            rank_offset=0,
            world_size=processes,
            peers=(Peer("localhost", processes),),
            rendezvous_port=20000 + generation,
        )
        return self.declare(target)

    def train(self, generation: int, *gpus: str, processes: int = 1) -> State:
        """Declare a run, and wait until it runs."""
        assert self.run(generation, *gpus, processes=processes).status == 200
        return self.wait_running(generation)

    def wait_running(self, generation: int) -> State:
        return self.wait_for(lambda s: s.phase is Phase.RUNNING and s.held_generation == generation)

    def wait_phase(self, phase: Phase) -> State:
        return self.wait_for(lambda state: state.phase is phase)

    def stop(self, generation: int, *, leave: bool = False, epoch: int = 1) -> Answer:
        target = Stop(epoch=epoch, generation=generation, incarnation=self.incarnation)
        return self.declare(replace(target, leave=leave))

    def _state_or_none(self) -> State | None:
        if self.process.poll() is not None:
            raise AssertionError(f"it has ended: {self.read_log()}")
        try:
            return self.state()
        except (ConnectionError, FileNotFoundError):
            return None

    def read_incarnation(self) -> str:
        """Return the incarnation that answers, perhaps the former one; empty if none does."""
        try:
            return self.state().incarnation
        except (ConnectionError, FileNotFoundError):
            return ""

    def trainings(self) -> list[int]:
        """Return the processes of the job that the kernel lists."""
        ours = {self.process.pid, *read_children(self.process.pid)}
        return [pid for pid in find_processes(self.token) if pid not in ours]

    def read_log(self) -> str:
        return Path(self.log.name).read_text(errors="replace")

    def wait_ended(self) -> int:
        return self.process.wait(LONGEST_SECONDS)

    def kill(self) -> None:
        """Kill the keeper, and wait for the end of the SideCar, which frees the socket."""
        below = read_children(self.process.pid)
        self.process.kill()
        self.wait_ended()
        wait_until(lambda: not any(map(is_alive, below)), what="the end of the SideCar")

    def __enter__(self) -> Self:
        self.wait_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(LONGEST_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(LONGEST_SECONDS)
        self.log.close()
