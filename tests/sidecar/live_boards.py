"""
Stand-ins for the SideCars of one job: they start its processes, and declare live changes on their boards.

Used by the tests of :mod:`dljob.training` and by ``benchmarks/live.py``. A change takes no part of a real SideCar but
the shared memory and its files; the processes are real.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

SLOTS = 256
SIZE = 64 * (SLOTS + 1)
HEADER, SLOT = struct.Struct("=4sIqqq"), struct.Struct("=qqqqqqqq")
LIMIT_SECONDS = 120.0
LOOPBACK = "127.0.0.1"


class Process(Protocol):
    """What is used of a process."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


@dataclass(frozen=True)
class Slot:
    """What a process has written."""

    pid: int
    capable: int
    seen: int
    step: int
    joined: int
    joined_step: int
    pause_us: int
    failed: int


class Failed(Exception):
    """A process ended, or told that the change failed."""


class Container:
    """One container: its folder, its board and the numbers of its slots."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.slots = 0
        (folder / "board").write_bytes(HEADER.pack(b"DLJ1", SLOTS, 0, -1, 0).ljust(SIZE, b"\0"))
        (folder / "agreement").touch()
        self._file = os.open(folder / "board", os.O_RDWR)

    def close(self) -> None:
        os.close(self._file)

    @contextmanager
    def alone(self) -> Iterator[None]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    @property
    def at(self) -> int:
        _, _, _, at, _ = HEADER.unpack(os.pread(self._file, HEADER.size, 0))
        return int(at)

    def declare(self, pending: int, *, at: int = -1, withdrawn: int = 0) -> None:
        header = HEADER.pack(b"DLJ1", SLOTS, pending, at, withdrawn)
        os.pwrite(self._file, header, 0)

    def read(self, slot: int) -> Slot:
        return Slot(*SLOT.unpack(os.pread(self._file, SLOT.size, 64 * (slot + 1))))


@dataclass
class Member:
    """A process of the job."""

    container: Container
    slot: int
    process: Process
    environment: Mapping[str, str]

    @property
    def told(self) -> Slot:
        return self.container.read(self.slot)


@dataclass(frozen=True)
class Change:
    """A change that all its processes have gone through."""

    at: int
    pauses: tuple[float, ...]
    """Seconds, of the processes that stayed."""
    leavers: tuple[Member, ...]


Spawn = Callable[[Sequence[str], Mapping[str, str]], Process]


def spawn_program(command: Sequence[str], environment: Mapping[str, str]) -> Process:
    return subprocess.Popen(command, env={**os.environ, **environment})


class Spares:
    """Starts trainings of :mod:`tests.sidecar.live_ddp` as forks of one process, as a SideCar starts its spares."""

    def __init__(self, python: str, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [python, "-m", "tests.sidecar.live_ddp"],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def __call__(self, command: Sequence[str], environment: Mapping[str, str]) -> Process:
        """Start a training; the last word of the command is its journal."""
        pid = self.ask({"journal": command[-1], "variables": dict(environment)})
        assert pid is not None
        return Fork(self, pid)

    def ask(self, request: Mapping[str, Any]) -> int | None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: int | None = json.loads(self._process.stdout.readline())
        return answer


class Fork:
    """A process that :class:`Spares` has started."""

    def __init__(self, spares: Spares, pid: int) -> None:
        self._spares = spares
        self.pid = pid

    def poll(self) -> int | None:
        return self._spares.ask({"poll": self.pid})

    def wait(self, timeout: float | None = None) -> int:
        end = time.monotonic() + (timeout or LIMIT_SECONDS)
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("a training", timeout or LIMIT_SECONDS)
            time.sleep(0.005)
        return code

    def kill(self) -> None:
        # Not reaped before its end has been told, so the number is its own.
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def find_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as free:
        port: int = free.getsockname()[1]
        return port


class Job:
    """A job whose processes train; ``homes`` names the container of each rank of the first start."""

    def __init__(
        self,
        folder: Path,
        command: Sequence[str],
        homes: Sequence[int],
        *,
        environment: Mapping[str, str] | None = None,
        seconds: float = 60.0,
        spawn: Spawn = spawn_program,
    ) -> None:
        self._folder, self._command, self._spawn = folder, command, spawn
        self._environment = {"OMP_NUM_THREADS": "1", **(environment or {})}
        self._seconds = seconds
        self._everyone: list[Member] = []
        self.containers: dict[int, Container] = {}
        self.generation = 1
        self._trials = 0
        port = find_port()
        self.members = [
            self._start(homes, rank, self.generation, port=port) for rank in range(len(homes))
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self._everyone:
            if member.process.poll() is None:
                member.process.kill()
            member.process.wait()
        for container in self.containers.values():
            container.close()

    def _start(
        self, homes: Sequence[int], rank: int, generation: int, *, port: int, joins: int = 0
    ) -> Member:
        home = homes[rank]
        if home not in self.containers:
            self.containers[home] = Container(self._folder / f"container-{home}")
        container = self.containers[home]
        local = list(homes[:rank]).count(home)
        place = {
            "RANK": rank,
            "LOCAL_RANK": local,
            "WORLD_SIZE": len(homes),
            "LOCAL_WORLD_SIZE": list(homes).count(home),
            "MASTER_ADDR": LOOPBACK,
            "MASTER_PORT": port,
            "DLJOB_AGREEMENT": container.folder / "agreement",
            "DLJOB_LIVE": container.folder,
            "DLJOB_LIVE_SLOT": container.slots,
            "DLJOB_GENERATION": generation,
            **({"DLJOB_JOINS": joins} if joins else {}),
        }
        environment = {**self._environment, **{name: str(value) for name, value in place.items()}}
        process = self._spawn(self._command, environment)
        member = Member(container, container.slots, process, environment)
        container.slots += 1
        self._everyone.append(member)
        return member

    def wait_for(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait; raises Failed if a process fails meanwhile."""
        end = time.monotonic() + LIMIT_SECONDS
        while not is_so():
            for member in self.members:
                if member.told.failed or member.process.poll() not in (None, 0):
                    raise Failed(self._describe(member))
            if time.monotonic() > end:
                raise TimeoutError(f"{what}: {[member.told for member in self.members]}")
            time.sleep(0.001)

    def _describe(self, member: Member) -> str:
        reason = member.container.folder / f"failed-{member.slot}"
        text = reason.read_text(encoding="utf-8") if reason.exists() else "no reason"
        return f"slot {member.slot} ({member.process.poll()}): {text}"

    def wait_for_step(self, step: int) -> None:
        self.wait_for(
            lambda: all(
                member.told.capable and member.told.step >= step for member in self.members
            ),
            f"step {step}",
        )

    @property
    def step(self) -> int:
        return max(member.told.step for member in self.members)

    # --- changes ------------------------------------------------------------------------------

    def declare(
        self,
        members: Sequence[int],
        homes: Sequence[int] | None = None,
        *,
        batch_size: int = 0,
        factor: float = 1.0,
        trial: int = 0,
    ) -> list[Member]:
        """Start the newcomers and declare a change; return the processes by new rank."""
        generation = self.generation if trial else self.generation + 1
        number = -trial or generation
        homes = homes or [0] * len(members)
        port = find_port()
        new = [
            self.members[old]
            if old >= 0
            else self._start(homes, rank, generation, port=port, joins=generation)
            for rank, old in enumerate(members)
        ]
        containers = len({*homes})
        old_containers = [member.container for member in self.members]
        is_spread = len({id(each.container) for each in [*self.members, *new]}) > 1
        for container in {
            id(each): each for each in [*old_containers, *self.containers.values()]
        }.values():
            store = (
                {"host": LOOPBACK, "port": port}
                if is_spread
                else {"file": str(container.folder / f"store{number}")}
            )
            here = {rank: each for rank, each in enumerate(new) if each.container is container}
            document = {
                "generation": generation,
                "since": self.generation,
                "members": list(members),
                "containers": max(containers, 1 + is_spread),
                "store": store,
                "batchSize": batch_size,
                "learningRateFactor": factor,
                "seconds": self._seconds,
                "slots": {str(rank): each.slot for rank, each in here.items()},
                "localRanks": {str(rank): local for local, rank in enumerate(here)},
            }
            path = container.folder / f"change-{number}.json"
            path.write_text(json.dumps(document), encoding="utf-8")
            with container.alone():
                container.declare(number)
        return new

    def change(
        self, members: Sequence[int], homes: Sequence[int] | None = None, **how: float
    ) -> Change:
        """Carry a change out, and wait until all its processes have joined and the others have left."""
        batch_size, factor = int(how.get("batch_size", 0)), how.get("factor", 1.0)
        before = self.members
        new = self.declare(members, homes, batch_size=batch_size, factor=factor)
        return self.complete(before, new)

    def try_live(self) -> Change:
        """Go through a change with the same members."""
        self._trials += 1
        before = self.members
        homes = [list(self.containers.values()).index(member.container) for member in before]
        new = self.declare(range(len(before)), homes, trial=self._trials)
        return self.complete(before, new, trial=True)

    def complete(
        self, before: Sequence[Member], new: list[Member], *, trial: bool = False
    ) -> Change:
        generation = self.generation if trial else self.generation + 1
        leavers = tuple(member for member in before if member not in new)
        self.members = [*before, *(member for member in new if member not in before)]

        def has_joined(member: Member) -> bool:
            at, told = member.container.at, member.told
            return told.joined == generation and 0 <= at == told.joined_step

        self.wait_for(lambda: all(map(has_joined, new)), "all have joined")
        at = new[0].told.joined_step
        for leaver in leavers:
            self.wait_for(lambda leaver=leaver: leaver.process.poll() is not None, "a leaver ends")  # type: ignore[misc]
            assert leaver.told.joined == -generation
        self.members, self.generation = new, generation
        for container in self.containers.values():
            with container.alone():
                container.declare(0)
        pauses = tuple(each.told.pause_us / 1e6 for each in new if each in before)
        return Change(at, pauses, leavers)

    def withdraw(self) -> bool:
        """Withdraw the change that is pending, in one container; return False if its step is agreed."""
        (container,) = self.containers.values()
        with container.alone():
            if container.at >= 0:
                return False
            container.declare(0, withdrawn=self.generation + 1)
        self.generation += 1
        return True

    def wait(self) -> None:
        """Wait for the end of the training."""
        for member in self.members:
            if member.process.wait(LIMIT_SECONDS) != 0:
                raise Failed(self._describe(member))
