"""
Whatever comes in which order, with real processes: 200 stories, a witness watching.

The controller declares newer, older, repeated and contradicting targets and loses answers; training
processes are killed, ignore SIGTERM, fork twice, leave their session and clear their environment;
checkpoints hang; SideCars are killed and started anew. At the end of each story the newest target
is reached, and where a SideCar says *released*, no process of the job is to be found.
"""

import asyncio
import os
import random
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dlsidecar.machine import TABLE, Word
from dlwire import codec
from dlwire.messages import Peer, Phase, Run, State, Stop, Target, Term
from tests.sidecar.drivers import find_processes, wait_until
from tests.sidecar.sidecars import TRAINER, SideCar
from tests.sidecar.witnesses import Witness

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]

NEVER_SAVED = ("SIGCONT", "--checkpoint-confirm", "file", "--checkpoint-path", "/nowhere")
SAVED = ("SIGUSR1", "--checkpoint-confirm", "log", "--checkpoint-log", "^saved ")
"""SIGUSR1 kills whoever does not listen to it: a checkpoint that fails."""

MANNERS = {
    "polite": (("save={folder}/checkpoint",), SAVED),
    "deaf": (("deaf",), NEVER_SAVED),
    "leaving others behind": (("fork", "lone"), SAVED),
    "hiding": (("daemon", "setsid", "clearenv", "deaf"), NEVER_SAVED),
    "crashing": (("quit=3",), NEVER_SAVED),
    "short": (("quit=0", "fork"), NEVER_SAVED),
    "missing": (None, NEVER_SAVED),
}
"""How the training behaves (None: there is no such command), and how it is asked to save itself."""

OPTIONS = (
    *("--framework", "pytorch", "--processes", "perGpu", "--grace-seconds", "0.1"),
    *("--checkpoint-to", "all", "--checkpoint-seconds", "0.2"),
)
TOLD = re.compile(r"INFO ([\w ,]+): (\w+) -> \w+;")

SEEN: Counter[tuple[str, str]] = Counter()


class Container:
    """One place where a SideCar runs, and whenever it was killed the next one."""

    def __init__(self, folder: Path, token: str, manner: str) -> None:
        folder.mkdir()
        manners, saving = MANNERS[manner]
        command = ["no-such-command", token]
        if manners is not None:
            given = [manner.format(folder=folder) for manner in manners]
            command = [sys.executable, "-S", TRAINER, token, *given]
        options = (*OPTIONS, "--checkpoint-signal", *saving)
        self._begin = lambda: SideCar(folder, token, *command, options=options)
        self.ends_by_itself = manner in {"crashing", "short", "missing"}
        self.sidecar = self._begin()
        self.sidecar.wait_ready()
        self.accepted: Target | None = None

    @property
    def term(self) -> Term:
        return Term(1, 0) if self.accepted is None else self.accepted.term

    def declare(self, target: Target) -> int:
        target = replace(target, incarnation=self.sidecar.incarnation)
        status = self.sidecar.declare(target).status
        if status == 200:
            self.accepted = target
        return status

    def declare_unheard(self, target: Target) -> None:
        """Declare something, and hang up before there is an answer."""
        target = replace(target, incarnation=self.sidecar.incarnation)
        body = codec.encode_target(target)
        head = f"PUT /v1/target HTTP/1.1\r\nHost: d\r\nContent-Length: {len(body)}\r\n\r\n"

        async def hang_up() -> None:
            _, writer = await self.sidecar.client.connect()
            writer.write(head.encode() + body)
            await writer.drain()
            writer.close()

        asyncio.run(hang_up())
        wait_until(lambda: self.sidecar.state().term == target.term, what="what was declared")
        self.accepted = target

    def end(self, how: signal.Signals) -> None:
        self.sidecar.process.send_signal(how)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Wait for the end of this start of the container, and begin the next one."""
        self.sidecar.wait_ended()
        self.sidecar.log.close()
        self.sidecar = self._begin()
        self.sidecar.wait_ready()
        self.accepted = None

    def settle(self) -> State:
        """Wait until the newest target is reached."""
        return self.sidecar.wait_for(self._is_settled)

    def _is_settled(self, state: State) -> bool:
        if state.target != self.accepted:
            return False
        if isinstance(state.target, Run):
            is_at_rest = state.phase in {Phase.RUNNING, Phase.EXITED, Phase.FAILED}
            return is_at_rest and state.held_generation == state.generation
        return state.released

    def close(self) -> None:
        told = self.sidecar.told()
        SEEN.update((phase, word) for word, phase in TOLD.findall(told))
        self.sidecar.close()


def run_of(term: Term, *, processes: int = 2, peers: int = 1, node: int = 0) -> Run:
    return Run(
        epoch=term.epoch,
        generation=term.generation,
        incarnation="to-be-filled-in",
        gpus=tuple(str(index) for index in range(processes)),
        rank_offset=node * processes,
        world_size=peers * processes,
        peers=tuple(Peer(f"node-{index}", processes) for index in range(peers)),
        rendezvous_port=20000 + term.generation,
    )


def stop_of(term: Term, *, checkpoint: bool = True) -> Stop:
    return Stop(term.epoch, term.generation, "to-be-filled-in", checkpoint)


# --- one SideCar --------------------------------------------------------------------------


class Story:
    """What may happen to one container; each move is drawn from a seed."""

    def __init__(self, container: Container, token: str, chance: random.Random) -> None:
        self.container = container
        self.token = token
        self.chance = chance

    def newer(self) -> Term:
        epoch, generation = self.container.term
        return Term(epoch, generation + self.chance.randint(1, 3))

    def declare_a_run(self) -> None:
        target = run_of(self.newer(), processes=self.chance.randint(1, 3))
        assert self.container.declare(target) == 200

    def declare_a_stop(self) -> None:
        target = stop_of(self.newer(), checkpoint=self.chance.random() < 0.3)
        assert self.container.declare(target) == 200

    def declare_unheard(self) -> None:
        self.container.declare_unheard(run_of(self.newer()))

    def repeat(self) -> None:
        if self.container.accepted is not None:
            assert self.container.declare(self.container.accepted) == 200

    def stamp(self) -> None:
        known = self.container.accepted
        if known is not None:
            assert self.container.declare(replace(known, epoch=known.epoch + 1)) == 200

    def say_what_is_old(self) -> None:
        epoch, generation = self.container.term
        if self.container.accepted is not None and generation > 0:
            assert self.container.declare(run_of(Term(epoch, generation - 1))) == 409
            assert self.container.declare(run_of(Term(epoch - 1, generation + 5))) == 409

    def contradict(self) -> None:
        if self.container.accepted is not None:
            other = run_of(self.container.term, processes=5)
            assert self.container.declare(other) == 409

    def kill_a_process(self) -> None:
        processes = [one for one in find_processes(self.token) if read_port(one)]
        if processes:
            os.kill(self.chance.choice(processes), signal.SIGKILL)

    def wait(self) -> None:
        self.container.settle()

    def wait_for_the_end(self) -> None:
        if self.container.ends_by_itself and self.container.accepted is not None:
            self.container.settle()
            self.container.sidecar.wait_for(lambda state: state.released)

    def let_it_train(self) -> None:
        """Wait until the training listens to signals, which is some time after its start."""
        if self.container.ends_by_itself or not isinstance(self.container.accepted, Run):
            return
        sidecar = self.container.sidecar
        wanted = self.container.settle().processes

        def is_listening() -> bool:
            ready = all(f"pid={process.pid} " in sidecar.told() for process in wanted)
            return ready or sidecar.state().phase is not Phase.RUNNING

        wait_until(is_listening, what="the training")

    def end_the_sidecar(self) -> None:
        how = self.chance.choice([signal.SIGKILL, signal.SIGTERM, None])
        if how is None:
            assert self.container.declare(replace(stop_of(self.newer()), leave=True)) == 200
            self.container.begin_anew()
        else:
            self.container.end(how)
        assert self.container.sidecar.trainings() == []

    def moves(self) -> list[Callable[[], None]]:
        often = [self.declare_a_run, self.declare_a_run, self.declare_a_stop, self.wait]
        usual = [self.repeat, self.stamp, self.say_what_is_old, self.contradict]
        patient = [self.wait_for_the_end, self.wait_for_the_end, self.let_it_train]
        return [*often, *often, *usual, *patient, self.kill_a_process, self.declare_unheard]

    def tell(self) -> None:
        for move in self.chance.choices(self.moves(), k=self.chance.randint(3, 9)):
            move()
        if self.chance.random() < 0.15:
            self.end_the_sidecar()
        state = self.container.settle()
        if state.released:
            assert self.container.sidecar.trainings() == []


def read_port(pid: int) -> bool:
    """Whether this is a process that was started by a SideCar, as its environment tells."""
    try:
        return b"MASTER_PORT=" in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


@contextmanager
def watched(token: str) -> Iterator[None]:
    witness = Witness(token)
    witness.start()
    yield
    witness.dismiss()


@pytest.mark.parametrize("manner", MANNERS)
def test_one_sidecar_keeps_the_laws(tmp_path, token, manner):
    chance = random.Random(manner)
    container = Container(tmp_path / "container", token, manner)
    try:
        with watched(token):
            for _ in range(22):
                Story(container, token, chance).tell()
    finally:
        container.close()


# --- three SideCars of one job ------------------------------------------------------------


class Job:
    """A controller as the protocol wants it: stop everywhere, see it released, run everywhere."""

    def __init__(self, containers: list[Container], chance: random.Random) -> None:
        self.containers = containers
        self.chance = chance
        self.generation = 0

    def stop(self) -> None:
        self.generation += 1
        for container in self.containers:
            term = Term(1, self.generation)
            assert container.declare(stop_of(term, checkpoint=False)) == 200

    def run(self) -> None:
        """Change together; on the way the controller may change its mind."""
        self.stop()
        while self.chance.random() < 0.3:
            self.stop()
        for container in self.containers:
            container.sidecar.wait_for(lambda state: state.released)
        self.generation += 1
        processes = self.chance.randint(1, 2)
        for node, container in enumerate(self.containers):
            term, peers = Term(1, self.generation), len(self.containers)
            target = run_of(term, processes=processes, peers=peers, node=node)
            assert container.declare(target) == 200

    def kill_a_process(self, token: str) -> None:
        processes = [one for one in find_processes(token) if read_port(one)]
        if processes:
            os.kill(self.chance.choice(processes), signal.SIGKILL)

    def kill_a_sidecar(self) -> None:
        # What it held is released by its next start, and the others are told to stop.
        self.chance.choice(self.containers).end(signal.SIGKILL)

    def tell(self, token: str) -> None:
        """Live through one change, and what may befall it."""
        self.run()
        fate = self.chance.random()
        if fate < 0.3:
            self.kill_a_process(token)
        elif fate < 0.45:
            self.kill_a_sidecar()
        elif fate < 0.8:
            self.settle()

    def settle(self) -> None:
        for container in self.containers:
            container.settle()


@pytest.mark.parametrize("manner", ["polite", "hiding"])
def test_three_sidecars_change_together(tmp_path, token, manner):
    containers = [Container(tmp_path / f"c{n}", token, manner) for n in range(3)]
    job = Job(containers, random.Random(manner))
    try:
        with watched(token):
            for _ in range(25):
                job.tell(token)
            job.stop()
            job.settle()
            assert find_trainings(token, containers) == []
    finally:
        for container in containers:
            container.close()


def find_trainings(token: str, containers: list[Container]) -> list[int]:
    known = [set(container.sidecar.trainings()) for container in containers]
    # Each names what is not its own SideCar; the training is what none of them knows.
    return sorted(set.intersection(*known)) if token else []


def test_what_occurred_is_told(capsys):
    """Runs last in this file, and so sees what all the stories came upon."""
    if not SEEN or "PYTEST_XDIST_WORKER" in os.environ:
        pytest.skip("not all stories were told in this process")
    rows = [f"{'':48}" + "".join(f"{phase.value[:7]:>8}" for phase in TABLE)]
    for word in Word:
        cells = [
            str(SEEN[phase.value, word.value]) if word in TABLE[phase] else "." for phase in TABLE
        ]
        rows.append(f"{word.value:48}" + "".join(f"{cell:>8}" for cell in cells))
    with capsys.disabled():
        sys.stdout.write("\n" + "\n".join(rows) + "\n")
    assert {phase for phase, _ in SEEN} == {phase.value for phase in Phase}
