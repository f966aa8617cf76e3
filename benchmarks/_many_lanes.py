"""A store with the traces of a week of a large cluster, and a server of the page over it (``python _many_lanes.py STORE``)."""

import asyncio
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dljob.cli.verbs.server.profiles import open_profiles
from dljob.control.recording.composing import compose, make_memory
from dljob.core.model import JobId, NodeName, Placement
from dljob.core.recording.record import (
    Decided,
    Ended,
    Expected,
    Given,
    Gpu,
    Header,
    Line,
    Phase,
    Progress,
    Record,
    Source,
    Stage,
    Submitted,
)
from dljob.store.opening import open_store
from dljob.store.rows import RecordRow
from dljob_web.guarding import Guard
from dljob_web.listening import listen, serve
from dljob_web.serving import Server

TOKEN = "of-this-benchmark"  # noqa: S105 - it guards nothing
ON_A_NODE = 8
IN_A_POOL = 16
"""Two jobs share two nodes, and the border between them moves."""
TURN = 5
"""After this number of moves the first job of a pool ends, and another one comes."""
SAMPLES = 20_000
SWITCH_S = 40.0
EXPECTED = Expected(
    iterations_per_second=12.5, confidence=0.8, remaining_seconds=7200.0, pause_seconds=SWITCH_S
)


class Size(NamedTuple):
    """How much there is."""

    gpus: int
    days: float
    changes: int


class _Holding(NamedTuple):
    job: JobId
    generation: int
    placement: Placement | None


def place(pool: int, first: int, end: int) -> Placement:
    """Return the GPUs of a pool from one number to another."""
    by_node: dict[NodeName, list[int]] = {}
    for number in range(pool * IN_A_POOL + first, pool * IN_A_POOL + end):
        node, gpu = divmod(number, ON_A_NODE)
        by_node.setdefault(NodeName(f"node-{node:03}"), []).append(gpu)
    return Placement.of(by_node, "A100")


class Week:
    """Jobs that come, change and go on all GPUs."""

    def __init__(self, size: Size, until: float) -> None:
        self._size = size
        self._until = until
        self._chance = random.Random(0)
        self.lines: list[Line] = []
        self.history: list[RecordRow] = []
        self._begin = until - size.days * 86_400.0
        for number in range(size.gpus):
            node, gpu = divmod(number, ON_A_NODE)
            name = f"node-{node:03}"
            self.lines.append(Gpu(at=self._begin, node=name, gpu=gpu, gpu_type="A100"))
        for pool in range(size.gpus // IN_A_POOL):
            self._fill(pool)
        self.lines += self._samples()

    def _fill(self, pool: int) -> None:
        moves = self._size.changes * IN_A_POOL // self._size.gpus // 2
        step = (self._until - self._begin) / (moves + 1)
        jobs = [self._submit(pool, each, self._begin) for each in range(2)]
        for move in range(moves):
            at = self._begin + move * step + self._chance.uniform(1.0, step - SWITCH_S)
            border = self._chance.randint(1, IN_A_POOL - 1)
            if move and move % TURN == 0:
                self.lines.append(Ended(at=at - 0.5, job=jobs[0].job, outcome="Completed"))
                jobs[0] = self._submit(pool, move + 2, at - 1.0)
            jobs = [
                self._decide(jobs[0], at, place(pool, 0, border), jobs[1].job),
                self._decide(jobs[1], at, place(pool, border, IN_A_POOL), jobs[0].job),
            ]

    def _submit(self, pool: int, number: int, at: float) -> _Holding:
        job = JobId(f"team-{pool % 12}/train-{pool}-{number}")
        self.lines.append(Submitted(at=at, job=job, options=(1, 2, 4, 8, 15), model="resnet50"))
        return _Holding(job, 0, None)

    def _decide(self, held: _Holding, at: float, new: Placement, other: JobId) -> _Holding:
        job, generation = held.job, held.generation + 1
        self.history.append(
            RecordRow.of(
                Decided(
                    job=job,
                    at=at,
                    step="reshape" if held.placement else "start",
                    generation=generation,
                    cause="gain",
                    for_job=other,
                    sentence=f"goes to {new.gpus} GPUs, which gains more than they would for {other}",
                    old=held.placement,
                    new=new,
                    expected=EXPECTED,
                    cost_seconds=SWITCH_S,
                ),
                f"{job}/{generation}",
            )
        )
        self.lines.append(Given(at=at, job=job, generation=generation, placement=new))
        for after, stage in ((1.0, Stage.SAVING), (SWITCH_S, Stage.FIRST_STEP)):
            self.lines.append(Phase(at=at + after, job=job, phase=stage, generation=generation))
        return _Holding(job, generation, new)

    def _samples(self) -> Iterator[Line]:
        given = [line for line in self.lines if isinstance(line, Given)]
        for number in range(SAMPLES):
            line = given[number * len(given) // SAMPLES]
            yield Progress(
                at=line.at + 60.0,
                job=line.job,
                iteration=1000.0 * line.generation,
                iterations_total=50_000.0,
                iterations_per_second=12.5,
            )

    def write(self, path: Path) -> None:
        """Write all of it into a store, as a controller would have."""
        store = open_store(str(path), environment={})
        try:
            store.record(self.history)
            store.record([make_row(line, str(number)) for number, line in enumerate(self.lines)])
        finally:
            store.close()


def make_row(line: Line, name: str) -> RecordRow:
    return RecordRow.of(line, f"{type(line).__name__.lower()}/{name}")


class StoreSource:
    """A store, as the page's server of a machine reads it; there is no controller."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._decode = make_memory()

    def read_record(self, since: float) -> Record:
        with open_profiles(str(self._path), None) as store:
            kept = store.rows()
        header = Header(source=Source.MACHINE, since=since, until=time.time(), title="a week")
        return compose(kept, (), header=header, decode=self._decode)

    def list_jobs(self) -> list[Any]:
        return []

    def list_nodes(self) -> list[Any]:
        return []

    def explain(self, name: str) -> Any:
        raise NotImplementedError(name)

    @property
    def withheld(self) -> str:
        raise NotImplementedError

    def what_if(self, question: object, *, is_gone: Callable[[], bool]) -> Any:
        raise NotImplementedError(question)

    def plan(self, documents: list[Any], token: str) -> Any:
        raise NotImplementedError

    def read_log(self, name: str, *, node: str, token: str) -> Any:
        raise NotImplementedError


def main(path: str) -> None:
    with listen("127.0.0.1", 0) as door:
        print(door.getsockname()[1], flush=True)
        application = Server(StoreSource(Path(path))).application(Guard(TOKEN, loopback=True))
        asyncio.run(serve(application, door, until=_wait_for_end))


async def _wait_for_end() -> None:
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    main(*sys.argv[1:])
