"""
Containers whose trainings obey the test, for cases that a random story meets only by chance.

A training reads orders from a pipe; a stopped warm interpreter delays a start; and a stopped SideCar
receives several declarations in one step.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

from dljob_sidecar.behaviour.table import Trigger
from dljob_wire.messages import Phase, Run, State, Target, Term
from tests.sidecar.containers import Container, Manner, ask_for, find_sidecar, run_of
from tests.sidecar.drivers import LIMIT_SECONDS, read_proc, read_state, wait_until
from tests.sidecar.matrices import Pair, read_pairs

PRELOADED = "json"
"""The test recognises warm interpreters by this imported module."""


class Stage:
    """Makes the containers, and gathers the pairs of phase and event in them."""

    def __init__(self, folder: Path, token: str) -> None:
        self._folder = folder
        self._token = token
        self._count = 0
        self._lock = threading.Lock()
        self.heard: Counter[Pair] = Counter()
        self.excused: dict[Pair, str] = {}
        """The pairs that this machine cannot produce, and the reasons."""

    @contextmanager
    def container(self, manner: Manner) -> Iterator[Actors]:
        with self._lock:
            self._count += 1
            name = str(self._count)
        container = Actors(self._folder / name, f"{self._token}.{name}.0.", manner)
        try:
            yield container
        finally:
            container.close()
            with self._lock:
                self.heard.update(container.heard)


class Actors(Container):
    """A container whose training obeys the test."""

    @property
    def generation(self) -> int:
        return self.sidecar.state().held_generation

    def wait_journal(self, line: str) -> None:
        wait_until(lambda: line in self.journal(), what=f"{line!r} in {self.folder}")

    def run_and_wait(self, processes: int = 1) -> int:
        """Let it train, and return the generation when all ranks listen."""
        self.run(processes)
        generation = self.term.generation
        for rank in range(processes):
            self.wait_journal(f"ready {generation}.{rank}")
        self.wait_for_phase(Phase.RUNNING)
        return generation

    def order(self, rank: int, what: str) -> None:
        pipe = os.open(
            self.folder / f"orders-{self.generation}.{rank}", os.O_WRONLY | os.O_NONBLOCK
        )
        os.write(pipe, f"{what}\n".encode())
        os.close(pipe)

    def ask_to_save(self, processes: int) -> None:
        """Restart the training and declare a newer target, so that the leader has to save."""
        self.stop(checkpoint=False)
        self.settle()
        generation = self.run_and_wait(processes)
        self.run()
        self.wait_journal(f"asked {generation}.0")

    def try_checkpoint(self) -> None:
        """Declare one more trial of the checkpoint."""
        known = self.accepted
        assert isinstance(known, Run)
        assert self.declare(replace(known, trial=known.trial + 1)) == 200

    def wait_heard(self, phase: Phase, trigger: Trigger) -> None:
        pair = (phase, trigger.value)
        wait_until(lambda: pair in read_pairs(self.sidecar.read_log()), what=f"{pair}")

    def declare_without_effect(self, phase: Phase) -> State:
        """Repeat, stamp and contradict the target; declare an older one and one of another container."""
        known = self.accepted
        assert known is not None
        assert self.declare(known) == 200
        stamped = replace(known, epoch=known.epoch + 1)
        assert self.declare(stamped) == 200
        assert self.declare(run_of(Term(stamped.epoch, known.generation - 1))) == 409
        assert self.declare(run_of(stamped.term, batch_size=77)) == 409
        self.address_another()
        state = self.sidecar.state()
        assert (state.phase, state.target) == (phase, self.accepted)
        return state

    def address_another(self) -> None:
        assert self.declare_to("another", run_of(self.newer())) == 409

    def declare_at_once(self, *targets: Target) -> list[int]:
        """Send several declarations to the stopped SideCar; return the statuses."""
        incarnation = self.sidecar.incarnation
        targets = tuple(replace(target, incarnation=incarnation) for target in targets)
        with ExitStack() as stack:
            lines = [stack.enter_context(Line(self.sidecar.socket)) for _ in targets]
            with stopped([self.pid]):
                for line, target in zip(lines, targets, strict=True):
                    line.send(ask_for(target))
            statuses = [line.read_status() for line in lines]
        for target, status in zip(targets, statuses, strict=True):
            if status == 200:
                self.accept(target)
        return statuses

    @property
    def pid(self) -> int:
        return find_sidecar(self.sidecar.process.pid)

    def spares(self, count: int) -> list[int]:
        """Stop, and return ``count`` warm interpreters in the order of their start."""
        # A running training that was a spare looks like a spare.
        self.stop(checkpoint=False)
        self.settle()
        self.wait_for(lambda state: state.warmth.ready == count)
        children = read_proc(self.pid, f"task/{self.pid}/children").split()
        found = [
            int(child)
            for child in children
            if read_proc(int(child), "cmdline").endswith(f"\0{PRELOADED}\0".encode())
        ]
        assert len(found) == count
        return sorted(found)


class Line:
    """A connection on which the SideCar already waits for a request."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(LIMIT_SECONDS)
        self._socket.connect(str(path))
        self.send(b"GET /v1/state HTTP/1.1\r\nHost: d\r\n\r\n")
        assert self.read_status() == 200

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, request: bytes) -> None:
        self._socket.sendall(request)

    def read_status(self) -> int:
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self._receive()
        head, _, body = answer.partition(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        )
        while len(body) < length:
            body += self._receive()
        return int(head.split()[1])

    def _receive(self) -> bytes:
        block = self._socket.recv(1 << 16)
        assert block, "the SideCar hung up"
        return block


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """Stop processes with SIGSTOP meanwhile."""
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: all(read_state(pid) == "T" for pid in pids), what="a standstill")
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
