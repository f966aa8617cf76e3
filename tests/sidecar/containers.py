"""
A container that restarts its SideCar after each end, seen by its controller and by a witness.

It records its targets and the events of the SideCar, and checks each *released* against the processes.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from dljob_sidecar import EXIT_UNAVAILABLE
from dljob_wire import codec
from dljob_wire.messages import Peer, Phase, Run, State, Stop, Target, Term
from tests.sidecar.clients import live_through
from tests.sidecar.drivers import HERE, read_proc, wait_until
from tests.sidecar.matrices import POSSIBLE, REPEATED, STAMPED, Pair, read_pairs
from tests.sidecar.sidecars import TRAINER, SideCar
from tests.sidecar.witnesses import Witness, find_held_gpus, find_trainings

FRAMEWORK = {"framework": "pytorch", "processes": "perGpu"}
FIRST_PORT = 20000
INTERPRETER = (sys.executable,)
UP, GAVE_WAY = "up", "gave way"
BOUNDED = (sys.executable, "-S", str(HERE / "bounded.py"), sys.executable)
"""An interpreter that cannot make namespaces."""


@dataclass(frozen=True)
class Manner:
    """The behaviour of a training, and the options of its SideCar."""

    manners: tuple[str, ...] | None = ()
    """None: there is no such command."""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    flags: tuple[str, ...] = ("-S",)
    """Flags of the interpreter that runs the training."""
    python: tuple[str, ...] = INTERPRETER
    """The interpreter that runs the SideCar."""

    def command(self, token: str, folder: Path) -> list[str]:
        if self.manners is None:
            return ["no-such-command", token]
        given = [manner.format(folder=folder) for manner in self.manners]
        return [sys.executable, *self.flags, TRAINER, token, f"story={folder}", *given]


class Container:
    """A folder with one SideCar after another."""

    def __init__(self, folder: Path, token: str, manner: Manner) -> None:
        """The token names the job and the container in it, as in ``job.0.``."""
        folder.mkdir()
        self.folder = folder
        self.token = token
        self.manner = manner
        self.heard: Counter[Pair] = Counter()
        self.accepted: Target | None = None
        """The last target that this start of the container accepted."""
        self.term = Term(1, 0)
        """The newest declared term."""
        self.sidecar = self._begin(before="")

    def _begin(self, before: str) -> SideCar:
        """Start SideCars until one does not give way to its predecessor."""
        return wait_until(partial(self._try, before), what="the end of the one before")

    def _try(self, before: str) -> SideCar | None:
        sidecar = SideCar(
            self.folder,
            self.token,
            *self.manner.command(self.token, self.folder),
            options={**FRAMEWORK, **self.manner.options},
            python=self.manner.python,
            environment={"TOKEN": self.token},
        )
        with ExitStack() as stack:
            stack.callback(sidecar.close)
            if wait_until(partial(is_decided, sidecar, before), what="a beginning") == GAVE_WAY:
                return None
            sidecar.wait_ready()
            stack.pop_all()
        return sidecar

    def newer(self, rise: int = 1) -> Term:
        return Term(self.term.epoch, self.term.generation + rise)

    def declare(self, target: Target) -> int:
        """Declare a target to this start of the container, and return the status."""
        return self.declare_to(self.sidecar.incarnation, target)

    def declare_to(self, incarnation: str, target: Target) -> int:
        target = replace(target, incarnation=incarnation)
        answer = self.sidecar.declare(target)
        if answer.status == 200:
            state = answer.state()
            if self.accepted is not None and says_the_same(self.accepted, target):
                is_stamp = self.accepted.epoch != target.epoch
                self.heard[state.phase, STAMPED if is_stamp else REPEATED] += 1
            self.accept(target)
            self.see(state)
        return answer.status

    def run(self, processes: int = 1) -> None:
        assert self.declare(run_of(self.newer(), processes=processes)) == 200

    def stop(self, *, checkpoint: bool = True, leave: bool = False) -> None:
        target = stop_of(self.newer(), checkpoint=checkpoint, leave=leave)
        assert self.declare(target) == 200

    def declare_unheard(self, target: Target) -> None:
        """Declare a target, and disconnect before the answer."""
        target = replace(target, incarnation=self.sidecar.incarnation)
        request = ask_for(target)

        async def ask() -> None:
            _, writer = await self.sidecar.client.connect()
            writer.write(request)
            await writer.drain()
            writer.close()
            await writer.wait_closed()

        live_through(ask())
        wait_until(lambda: self.sidecar.state().term == target.term, what="what was declared")
        self.accept(target)

    def accept(self, target: Target) -> None:
        self.accepted, self.term = target, max(self.term, target.term)

    def see(self, state: State) -> State:
        """Check *released* against the processes; nothing may be declared meanwhile."""
        if state.released:
            assert find_trainings(self.token) == []
            assert find_held_gpus(self.folder) == []
        return state

    def wait_for(self, is_reached: Callable[[State], bool]) -> State:
        return self.see(self.sidecar.wait_for(is_reached))

    def wait_for_phase(self, phase: Phase) -> State:
        return self.wait_for(lambda state: state.phase is phase)

    def settle(self) -> State:
        """Wait until the newest target is reached."""
        return self.wait_for(self._is_settled)

    def _is_settled(self, state: State) -> bool:
        if state.target != self.accepted:
            return False
        if isinstance(state.target, Run):
            is_at_rest = state.phase in {Phase.RUNNING, Phase.EXITED, Phase.FAILED}
            return is_at_rest and state.held_generation == state.generation
        return state.released

    def journal(self) -> list[str]:
        """Return the journal of the training."""
        file = self.folder / "journal"
        return file.read_text().splitlines() if file.exists() else []

    def begin_anew(self) -> None:
        """Wait for the end of this start of the container, and begin the next one."""
        self.sidecar.wait_ended()
        self.sidecar.log.close()
        self.sidecar = self._begin(self.sidecar.incarnation)
        self.accepted = None
        self.see(self.sidecar.state())

    def close(self) -> None:
        self.sidecar.close()
        self.heard.update(read_pairs(self.sidecar.read_log()))
        assert set(self.heard) <= POSSIBLE
        assert not [line for line in self.journal() if line.startswith("TWICE")]


def is_decided(sidecar: SideCar, before: str) -> str:
    """Return the fate of a new SideCar; empty while that is open."""
    status = sidecar.process.poll()
    if status is not None:
        assert status == EXIT_UNAVAILABLE, sidecar.read_log()
        return GAVE_WAY
    # The SideCar that answers may still be the former one.
    return UP if sidecar.read_incarnation() not in {"", before} else ""


def says_the_same(one: Target, other: Target) -> bool:
    first, second = (codec.encode_target(replace(target, epoch=0)) for target in (one, other))
    return first == second


def ask_for(target: Target) -> bytes:
    """Return the request that declares a target."""
    body = codec.encode_target(target)
    head = f"PUT /v1/target HTTP/1.1\r\nHost: d\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def run_of(
    term: Term, *, processes: int = 2, peers: int = 1, node: int = 0, batch_size: int = 0
) -> Run:
    """Declare a run to be addressed later."""
    return Run(
        epoch=term.epoch,
        generation=term.generation,
        incarnation="to-be-filled-in",
        gpus=tuple(str(index) for index in range(processes)),
        rank_offset=node * processes,
        world_size=peers * processes,
        peers=tuple(Peer(f"node-{index}", processes) for index in range(peers)),
        rendezvous_port=FIRST_PORT + term.generation,
        batch_size=batch_size,
    )


def stop_of(term: Term, *, checkpoint: bool = True, leave: bool = False) -> Stop:
    return Stop(term.epoch, term.generation, "to-be-filled-in", checkpoint, leave)


def find_sidecar(keeper: int) -> int:
    return int(read_proc(keeper, f"task/{keeper}/children").split()[0])


def find_child(parent: int, pid: int) -> int:
    """Return the child that has this id in the namespace of its parent."""
    children = map(int, read_proc(parent, f"task/{parent}/children").split())
    return next(child for child in children if read_inner_pid(child) == pid)


def read_inner_pid(pid: int) -> int:
    """Return the id of a process in its own namespace, which the kernel lists last."""
    line = read_proc(pid, "status").partition(b"NSpid:")[2].partition(b"\n")[0]
    return int(line.split()[-1]) if line else 0


@contextmanager
def opened(folder: Path, token: str, manner: Manner) -> Iterator[Container]:
    container = Container(folder, token, manner)
    try:
        yield container
    finally:
        container.close()


@contextmanager
def watched(token: str) -> Iterator[None]:
    """Watch all processes whose token has this prefix."""
    witness = Witness(token)
    witness.start()
    try:
        yield
    finally:
        witness.dismiss()
