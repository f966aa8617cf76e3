"""
A whole demonstration: the approaches side by side, and what changes of GPUs cost on this machine.

When it ends, even by an error, no process and no file is left.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from dljob.control.scheduling import Options
from dljob.core.model import JobId, Mechanism, Node
from dljob.core.profiles import Profile
from dljob.local.gpus.devices import find_gpus
from dljob.local.gpus.nvml import NoGpusError
from dljob.local.measuring import Bench, GivenGpus
from dljob.local.profiling import Course, profile_job
from dljob_lab.demonstrating.closing import Result, read_result
from dljob_lab.demonstrating.journal import Journal
from dljob_lab.demonstrating.reshaping import (
    Reshapes,
    measure_reshapes,
    turns_of,
    write_real_probe,
)
from dljob_lab.demonstrating.script import Document, Script, Training
from dljob_lab.demonstrating.stage import Place, Stage, together
from dljob_lab.reproducing.sidecar.case import (
    APPROACHES,
    GPUS,
    JOB_1,
    JOB_2,
)

NODE = "node"


@dataclass(frozen=True, slots=True)
class Machine:
    """The four GPUs that are shown."""

    node: Node
    virtual_gpus: bool


def find_machine(gpus: int = GPUS) -> Machine:
    """Take the first GPUs of this machine, or virtual ones if it has too few."""
    try:
        (node,) = find_gpus().nodes()
    except NoGpusError:
        node = Node.of(NODE, 0)
    if len(node.gpus) < gpus:
        return Machine(Node.of(NODE, gpus), virtual_gpus=True)
    # Without a type, because nothing was measured on theirs.
    return Machine(Node(node.name, node.gpus[:gpus]), virtual_gpus=False)


def find_real_machine(cores: int) -> Machine:
    """Take GPUs for real training; of virtual ones no more than there are cores to stand for them."""
    machine = find_machine()
    return machine if not machine.virtual_gpus or cores >= GPUS else find_machine(LEAST_GPUS)


@dataclass(frozen=True, slots=True)
class Hall:
    """The place of demonstrations: a temporary folder, and the one event log."""

    folder: Path
    machine: Machine
    journal: Journal

    def place(self, name: str) -> Place:
        """Make a place of its own for a controller."""
        folder = self.folder / name
        folder.mkdir()
        machine = self.machine
        return Place(folder=folder, node=machine.node, virtual_gpus=machine.virtual_gpus)


Write = Callable[[Path], Script]
"""Writes the script of an approach into its folder."""


@asynccontextmanager
async def build_stages(hall: Hall, write: Write) -> AsyncIterator[list[Stage]]:
    """A stage for each approach; what is left on it in the end is removed."""
    stages: list[Stage] = []
    try:
        for approach in APPROACHES:
            place = hall.place(approach.name)
            # In the list at once, so that one which cannot be made leaves no former one behind.
            stages.append(Stage(approach, write(place.folder), place=place, journal=hall.journal))
        yield stages
    finally:
        # All at the same time, because each may wait for its SideCars for some seconds.
        ends = (stage.end() for stage in stages)
        # Not before all have ended, because an error of one would leave the SideCars of another.
        for error in await asyncio.gather(*ends, return_exceptions=True):
            if error is not None:
                raise error


async def play_together(stages: Sequence[Stage], watch: Callable[[], None]) -> None:
    """Play all at once."""
    await together(*(stage.play(watch) for stage in stages))


async def play_in_turn(stages: Sequence[Stage], watch: Callable[[], None]) -> None:
    """Play one after the other, because each needs the machine for itself."""
    for stage in stages:
        await stage.play(watch)


def read_results(hall: Hall, stages: Iterable[Stage]) -> list[Result]:
    """Read from the event log what came out of each approach."""
    return [
        read_result(hall.journal.lines, stage.approach, script=stage.script) for stage in stages
    ]


async def measure_all(
    hall: Hall, changes: Mapping[Mechanism, int], *, write: Callable[[Path], Document]
) -> list[Reshapes]:
    """Measure what changes of GPUs cost, in place and by recreation."""
    found = []
    for mechanism, number in changes.items():
        place = hall.place(f"measured-{mechanism.value}")
        found.append(
            await measure_reshapes(
                mechanism, number, place=place, journal=hall.journal, write=write
            )
        )
    return found


# --- real training ------------------------------------------------------------------------

LEAST_GPUS = 2
"""A job that gives up half of its GPUs has two at least."""

LONG_S = {JOB_1: 60.0, JOB_2: 40.0}
"""How long the real jobs would train about on as many GPUs as they ask for: much longer than a change."""

LEAST_GAIN = 1.25
"""With less than this by twice as many GPUs nothing is to be gained by giving GPUs to one job or another."""

PROFILED_S = 8.0


async def profile_training(
    hall: Hall, training: Training, *, watch: Callable[[str], None]
) -> Profile:
    """Measure how fast the real training is here, as the paper does offline."""
    place = hall.place("profiled")
    gpus = len(hall.machine.node.gpus)
    setup = place.set_up(Options(policy=GivenGpus()), sample_seconds=PROFILED_S)
    document = write_real_probe(training, place.folder, gpus=gpus)
    async with Bench(setup) as bench:
        return await profile_job(bench, document, course=Course(counts=turns_of(gpus)), watch=watch)


def gain_of(profile: Profile, gpus: int) -> float:
    """Return how many times as fast the training is on all GPUs as on half of them."""
    speeds = _speeds(profile)
    return speeds[gpus] / speeds[gpus // 2]


def choose_iterations(profile: Profile, gpus: int) -> dict[JobId, int]:
    """Return how many iterations the real jobs have, so that all is done in a few minutes."""
    speeds = _speeds(profile)
    return {
        JOB_1: max(1, round(LONG_S[JOB_1] * speeds[gpus])),
        JOB_2: max(1, round(LONG_S[JOB_2] * speeds[gpus // 2])),
    }


def _speeds(profile: Profile) -> dict[int, float]:
    return {shape.gpus: speed.iterations_per_s for shape, speed in profile.speeds.items()}
