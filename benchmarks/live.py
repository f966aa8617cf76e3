"""
The pause of a training that gets more or fewer GPUs: live, by a warm and a cold restart, and in a new pod.

SideCars, processes, PyTorch, DistributedDataParallel over gloo and checkpoints are real, on the processor; this benchmark is
their controller, and two SideCars on this machine are two containers. One training goes each of the four ways through the
same numbers of ranks. A pause is from the end of the last step that counts before the change to the beginning of the first one
after it, both by the slowest rank. So it has in it the checkpoint, the steps that are done once more after it, and the end and
the start of processes. ``_lost_ms`` is to the end of that first step, less the usual time between two steps on the new ranks: it
has in it as well what new ranks do for the first time, and what leavers take of the processor.

``restarted_warm`` starts from interpreters that have imported PyTorch, as newcomers of a live change do, and
``restarted_cold`` from nothing. ``recreated`` ends the SideCars and starts new ones, and the training cold: what a new container takes at
the least, without its image, its scheduling and its mounts. The size is that of the whole state, as in the checkpoint: a
third are parameters, two thirds are Adam's.
"""

import enum
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import click
from _measuring import describe_machine, print_result, summarize
from _progress import ROOT, CannotRun, run, say, wait_until
from _sidecars import FIRST_PORT, SideCar
from reshape import find_torch

from dljob import training
from dljob_wire import codec
from dljob_wire.messages import Live, Peer, Phase, Run, State, Stop, Target
from tests.sidecar.live_boards import LOOPBACK, Container

USUAL_STEPS = 5
BOUNDARIES = 20_000
COMPARED_STEPS = 1_500
COMPARED_SIZE = 1.0
"""Of the state in MB: the shorter a step, the larger is the share of its boundary."""
SAVING = (Phase.RUNNING, Phase.CHECKPOINTING)

Layout = tuple[int, ...]
"""The number of ranks in each container."""

ROUNDS: dict[int, list[tuple[str, Layout]]] = {
    1: [("4 -> 2", (2,)), ("2 -> 4", (4,)), ("4 -> 1", (1,)), ("1 -> 4", (4,))],
    2: [
        ("4 -> 2", (1, 1)),
        ("2 -> 4", (2, 2)),
        ("4 -> 2, two containers to one", (2, 0)),
        ("2 -> 1, in one container", (1, 0)),
        ("1 -> 4, one container to two", (2, 2)),
    ],
}
"""For each number of containers; they begin and end with four ranks."""


class Way(enum.Enum):
    LIVE = "live"
    WARM = "restarted_warm"
    COLD = "restarted_cold"
    RECREATED = "recreated"

    @property
    def has_spares(self) -> bool:
        return self in (Way.LIVE, Way.WARM)


class Cost(NamedTuple):
    """What a change costs a training, in seconds."""

    pause: float
    """Without a step."""
    lost: float
    """The time that it lags behind."""


class Journal:
    """The steps of all ranks, as the training writes them down."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._ends: dict[int, dict[int, list[float]]] = {}
        """When each rank had done each step of each generation."""
        self._begins: dict[int, dict[int, list[float]]] = {}

    def update(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as lines:
            lines.seek(self._read)
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                row = json.loads(line)
                for moments, what in ((self._ends, "ended"), (self._begins, "began")):
                    steps = moments.setdefault(int(row["generation"]), {})
                    steps.setdefault(row["step"], []).append(row[what])

    def whole(self, generation: int, ranks: int) -> list[int]:
        """Return the steps that all ranks of a generation have done."""
        steps = self._ends.get(generation, {})
        return sorted(step for step, ends in steps.items() if len(ends) == ranks)

    def last_end(self, generation: int, step: int) -> float:
        return max(self._ends[generation][step])

    def last_begin(self, generation: int, step: int) -> float:
        return max(self._begins[generation][step])


class Containers:
    """The containers of a job, and this benchmark as their controller."""

    def __init__(self, way: Way, python: str, count: int) -> None:
        self._temporary = tempfile.TemporaryDirectory()
        self.folder = folder = Path(self._temporary.name)
        self.way = way
        self.layout: Layout = (0,) * count
        self.generation = 0
        self.journal = Journal(folder / "journal")
        script = str(ROOT / "tests" / "sidecar" / "live_ddp.py")
        self._command = [python, script, str(folder / "journal")]
        self._most = 4 // count
        # As in a container with this many GPUs: so many interpreters wait.
        os.environ["NVIDIA_VISIBLE_DEVICES"] = ",".join(map(str, range(self._most)))
        self._options = {
            "processes": "perGpu",
            "checkpoint.signal": "SIGUSR1",
            "checkpoint.confirm": "file",
            "checkpoint.path": str(folder / "checkpoints"),
            "checkpoint.files": "step-*",
            "checkpoint.complete": "marker",
            "checkpoint.timeoutSeconds": 300,
            "liveSeconds": 120,
            "preload": ["torch", "torch.distributed"] if way.has_spares else [],
            "mostSpares": self._most,
        }
        (folder / "checkpoints").mkdir()
        self._sidecars = [self._start(number) for number in range(count)]
        for sidecar in self._sidecars:
            sidecar.wait_ready()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as ends:
            ends.enter_context(self._temporary)
            for sidecar in self._sidecars:
                ends.push(sidecar)
            # All at once and without a checkpoint, for which one would wait for the others.
            self.generation += 1
            for sidecar in self._sidecars:
                self._end_training(sidecar)

    def _start(self, number: int) -> SideCar:
        folder = self.folder / f"container-{number}"
        folder.mkdir(exist_ok=True)
        return SideCar(folder, self._command, options=self._options)

    # --- targets ----------------------------------------------------------------------------------

    def change(self, layout: Layout) -> Cost:
        """Go to another layout in this job's way."""
        before, ranks = self.generation, sum(layout)
        if self.way is Way.LIVE:
            self._declare(layout, self._find_members(layout))
        elif self.way is Way.RECREATED:
            self._stop()
            self._recreate()
            self._declare(layout)
        else:
            # A single container saves, stops and starts by one target.
            if len(layout) > 1:
                self._stop()
            self._declare(layout)
        first = self._wait_for_steps(1)[0]
        if self.way is Way.LIVE:
            self._check_live(ranks)
        usual = self.settle()
        ended = self.journal.last_end(before, first - 1)
        return Cost(
            pause=self.journal.last_begin(self.generation, first) - ended,
            lost=self.journal.last_end(self.generation, first) - ended - usual,
        )

    def settle(self) -> float:
        """Wait until all is ready for the next change; return the usual time between two steps until then."""
        if self.way.has_spares:
            for number, sidecar in enumerate(self._sidecars):
                sidecar.wait_for(
                    lambda state: state.warmth.ready >= self._most,
                    f"container {number} is warm",
                )
        for sidecar, count in zip(self._sidecars, self.layout, strict=True):
            if self.way is Way.LIVE and count:
                sidecar.wait_for(partial(_is_capable, count=count), "all ranks can change live")
        ranks = sum(self.layout)
        self.journal.update()
        begun = len(self.journal.whole(self.generation, ranks))
        steps = self._wait_for_steps(begun + USUAL_STEPS + 1)[begun:]
        ends = [self.journal.last_end(self.generation, step) for step in steps]
        return statistics.median(after - end for end, after in itertools.pairwise(ends))

    def begin(self, layout: Layout) -> None:
        self._declare(layout)
        self._wait_for_steps(1)
        self.settle()

    def measure_steps(self, count: int) -> dict[int, float]:
        """Return the seconds from the beginning of each step to that of the next one."""
        steps = self._wait_for_steps(count)
        begins = [(step, self.journal.last_begin(self.generation, step)) for step in steps]
        return {step: after - begin for (step, begin), (_, after) in itertools.pairwise(begins)}

    def _wait_for_steps(self, count: int) -> list[int]:
        """Wait until all ranks have done this many steps of this generation; return these."""

        def are_done() -> bool:
            self.journal.update()
            return len(self.journal.whole(self.generation, sum(self.layout))) >= count

        wait_until(are_done, f"{count} steps are done", every_s=0.02)
        return self.journal.whole(self.generation, sum(self.layout))

    def _find_members(self, layout: Layout) -> Live:
        members: list[int] = []
        for number, (old, new) in enumerate(zip(self.layout, layout, strict=True)):
            first = sum(self.layout[:number])
            members += [first + rank if rank < old else -1 for rank in range(new)]
        port = FIRST_PORT + self.generation + 1
        return Live(self.generation, tuple(members), LOOPBACK, port)

    def _declare(self, layout: Layout, live: Live | None = None) -> None:
        """Let the containers run this layout; those that lose all their ranks live take part in it."""
        self.generation += 1
        peers = tuple(Peer(LOOPBACK, count) for count in layout if count)
        for number, (sidecar, count) in enumerate(zip(self._sidecars, layout, strict=True)):
            gpus = tuple(str(index) for index in range(count))
            target: Target = (
                Run(
                    epoch=1,
                    generation=self.generation,
                    incarnation=sidecar.incarnation,
                    gpus=gpus,
                    rank_offset=sum(layout[:number]),
                    world_size=sum(layout),
                    peers=peers,
                    rendezvous_port=FIRST_PORT + self.generation,
                    live=live and Live(live.since, live.members),
                )
                if count
                else Stop(1, self.generation, sidecar.incarnation, checkpoint=False, live=live)
            )
            if count or (live and self.layout[number]):
                self._put(sidecar, target)
        self.layout = layout

    def _end_training(self, sidecar: SideCar) -> None:
        self._put(sidecar, Stop(1, self.generation, sidecar.incarnation, checkpoint=False))

    def _put(self, sidecar: SideCar, target: Target) -> None:
        sidecar.ask("PUT", "/v1/target", codec.encode_target(target))

    def _stop(self) -> None:
        """Let the first container save, and end the others as soon as it has, as a controller does."""
        self.generation += 1
        leader, *others = self._sidecars
        self._put(leader, Stop(1, self.generation, leader.incarnation))
        leader.wait_for(lambda state: state.phase not in SAVING, "the leader has saved")
        for other in others:
            self._end_training(other)
        for sidecar in self._sidecars:
            sidecar.wait_for(lambda state: state.released, "a container has released its GPUs")

    def _recreate(self) -> None:
        for number, sidecar in enumerate(self._sidecars):
            sidecar.end()
            self._sidecars[number] = self._start(number)
        for sidecar in self._sidecars:
            sidecar.wait_ready()

    def _check_live(self, ranks: int) -> None:
        """Raise if the processes were restarted instead."""

        def is_settled(state: State) -> bool:
            return state.phase is not Phase.CHANGING

        for sidecar, count in zip(self._sidecars, self.layout, strict=True):
            state = sidecar.wait_for(is_settled, "the change is over")
            if count and (state.change is None or not state.change.live):
                raise RuntimeError(f"{ranks} ranks were restarted: {state.live}")


def _is_capable(state: State, count: int) -> bool:
    return state.live is not None and state.live.capable == count


# --- pauses -------------------------------------------------------------------------------------------


def measure(
    python: str, size: float, containers: int, ways: Mapping[Way, int]
) -> Iterator[dict[str, Any]]:
    """Yield the pauses of each change, by each way."""
    costs: dict[str, dict[Way, list[Cost]]] = {name: {} for name, _ in ROUNDS[containers]}
    for way, count in ways.items():
        for name, cost in go_around(python, containers, way, count, size=size):
            costs[name].setdefault(way, []).append(cost)
    for name, found in costs.items():
        yield {
            "what": f"{name}: {size:g} MB of state, {containers} container(s)",
            "changes": {way.value: len(each) for way, each in found.items()},
            **{
                f"{way.value}_{kind}_ms": summarize([1000 * getattr(one, kind) for one in each])
                for way, each in found.items()
                for kind in Cost._fields
            },
            **{
                f"live_{kind}_of_warm": round(
                    _middle(found[Way.LIVE], kind) / _middle(found[Way.WARM], kind), 3
                )
                for kind in Cost._fields
            },
        }


def _middle(costs: Sequence[Cost], kind: str) -> float:
    return statistics.median([float(getattr(cost, kind)) for cost in costs])


def go_around(
    python: str, containers: int, way: Way, count: int, *, size: float
) -> Iterator[tuple[str, Cost]]:
    """Go the rounds of one training in one way."""
    say(f"{way.value}: {size:g} MB of state, {containers} container(s)")
    with (
        give_options(megabytes=size / 3, pace=0.05),
        Containers(way, python, containers) as job,
    ):
        job.begin(ROUNDS[containers][-1][1])
        for what, layout in ROUNDS[containers] * count:
            say(f"{way.value}: {what}")
            yield what, job.change(layout)


@contextmanager
def give_options(**options: Any) -> Iterator[None]:
    """Set the options of the trainings, which SideCars pass on with all of their environment."""
    os.environ.update(LIVE_DDP=json.dumps(options), OMP_NUM_THREADS="1")
    try:
        yield
    finally:
        del os.environ["LIVE_DDP"]


# --- the steps between changes ------------------------------------------------------------------------


def compare_steps(python: str, size: float, containers: int) -> dict[str, Any]:
    """Compare the steps of one training that end with nothing, with should_save and with a boundary, in turns."""
    say(f"steps with and without a boundary, {size:g} MB of state, {containers} container(s)")
    options = {"megabytes": size / 3, "alternates": True}
    with give_options(**options), Containers(Way.COLD, python, containers) as job:
        job.begin((2 // containers,) * containers)
        spans = job.measure_steps(COMPARED_STEPS)
    ends: dict[str, list[float]] = {"nothing": [], "should_save": [], "boundary": []}
    for step, span in [*spans.items()][USUAL_STEPS:]:
        ends[[*ends][step % 3]].append(1000 * span)
    medians = [statistics.median(each) for each in ends.values()]
    return {
        "what": f"a step of two ranks, {size:g} MB of state, {containers} container(s)",
        **{f"with_{end}_ms": summarize(each) for end, each in ends.items()},
        "should_save_takes_of_nothing": round(medians[1] / medians[0], 4),
        "boundary_takes_of_should_save": round(medians[2] / medians[1], 4),
    }


def measure_boundary() -> dict[str, Any]:
    """Measure a boundary at which no change is pending, in this process."""
    with tempfile.TemporaryDirectory() as name:
        container = Container(Path(name) / "container")
        os.environ.update(
            DLJOB_LIVE=str(container.folder),
            DLJOB_LIVE_SLOT="0",
            DLJOB_AGREEMENT=str(container.folder / "agreement"),
            WORLD_SIZE="4",
            LOCAL_WORLD_SIZE="4",
        )
        training.live(training.batches(1000, 10))
        taken = list(time_boundaries())
        container.close()
    for variable in (
        "DLJOB_LIVE",
        "DLJOB_LIVE_SLOT",
        "DLJOB_AGREEMENT",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
    ):
        del os.environ[variable]
    return {
        "what": "a boundary between changes in one container, which also answers should_save",
        "boundaries": BOUNDARIES,
        "us": summarize(taken),
        "share_of_a_step_of_100_ms": f"{statistics.median(taken) / 1e5:.4%}",
    }


def time_boundaries() -> Iterator[float]:
    for step in range(1, BOUNDARIES + 1):
        began = time.perf_counter()
        training.boundary(step)
        yield 1e6 * (time.perf_counter() - began)


def read_sizes(_: object, __: object, text: str) -> list[float]:
    return [float(size) for size in text.split(",") if size]


def choose_python(_: object, __: object, python: str) -> str:
    """Prefer the latest PyTorch that is installed for the tests."""
    installed = [ROOT / ".frameworks" / name / "bin" / "python" for name in ("latest", "pytorch")]
    candidates = [python] if python else [*map(str, filter(Path.exists, installed)), sys.executable]
    return next((each for each in candidates if find_torch(each)), "")


@click.command(help=__doc__)
@click.option("--sizes", default="1", callback=read_sizes, help="MB of state, such as 1,100,1000.")
@click.option("--live", type=click.IntRange(1), default=1, help="Rounds of live changes.")
@click.option("--warm", type=click.IntRange(1), default=1, help="Rounds of warm restarts.")
@click.option(
    "--cold", type=click.IntRange(0), default=1, help="Rounds of cold restarts, and of new pods."
)
@click.option("--python", default="", callback=choose_python, help="An interpreter with PyTorch.")
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(
    *, sizes: Sequence[float], live: int, warm: int, cold: int, python: str, form: str
) -> None:
    """Measure one training after the other."""
    if not python:
        raise CannotRun("no PyTorch; make test-frameworks installs one")
    torch = find_torch(python)
    ways = {Way.LIVE: live, Way.WARM: warm}
    if cold:
        ways |= {Way.COLD: cold, Way.RECREATED: cold}
    machine = {**describe_machine(), "load": os.getloadavg()[0]}
    rows = []
    for row in measure_all(python, sizes, ways):
        # A long run that is cut short has told what it has found.
        say(json.dumps(row))
        rows.append({**row, "torch": torch, "machine": machine})
    print_result(rows, form)


def measure_all(
    python: str, sizes: Sequence[float], ways: Mapping[Way, int]
) -> Iterator[dict[str, Any]]:
    yield measure_boundary()
    for containers in ROUNDS:
        yield compare_steps(python, COMPARED_SIZE, containers)
    for size in sizes:
        for containers in ROUNDS:
            yield from measure(python, size, containers, ways)


if __name__ == "__main__":
    run(main)
