"""
Measures what a change of GPUs costs on this machine, nothing modelled: in place, and by recreation.

Two jobs, each on a controller of its own, have half of the GPUs and all of them in turn. One keeps its SideCar; the
whole tree of processes of the other is ended and created again. The measured time is from the command
to stop the training until its processes exist again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dljob.control.scheduling import Options
from dljob.core.model import JobId, Mechanism
from dljob.core.profiles import JobType
from dljob.local.measuring import Bench, GivenGpus
from dljob.sim.results.scoring import Latency, summarise
from dljob_lab.demonstrating.journal import Journal
from dljob_lab.demonstrating.reading import read_interruptions, read_stints
from dljob_lab.demonstrating.script import (
    Document,
    Training,
    write_replay,
    write_speeds,
)
from dljob_lab.demonstrating.stage import Place
from dljob_lab.reproducing.sidecar.case import GPUS

PROBE = JobId("probe")
STEPS_PER_S = 50.0
ENDLESS = 10**9
STEPS_BETWEEN = 10
"""The number of steps that it trains between two changes."""
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Reshapes:
    """How long changes took, in seconds."""

    mechanism: Mechanism
    seconds: tuple[float, ...]

    @property
    def latency(self) -> Latency:
        return summarise(self.seconds)


def write_probe(folder: Path) -> Document:
    """A job that trains for ever, and waits out nothing but its steps."""
    kind = JobType("probe")
    speeds = folder / "speeds.csv"
    turns = turns_of(GPUS)
    write_speeds(speeds, {(kind, gpus): STEPS_PER_S for gpus in turns})
    document = write_replay(
        folder / PROBE,
        PROBE,
        options=sorted(turns),
        kind=kind,
        arguments=(f"--speeds={speeds}", f"--iterations={ENDLESS}"),
    )
    document["spec"]["training"]["iterations"] = ENDLESS
    return document


def write_real_probe(training: Training, folder: Path, *, gpus: int) -> Document:
    """The real training, for ever."""
    return training.write(folder / PROBE, PROBE, options=sorted(turns_of(gpus)), iterations=ENDLESS)


def turns_of(gpus: int) -> tuple[int, int]:
    """The numbers of GPUs that a job has in turn."""
    return gpus, gpus // 2


async def measure_reshapes(
    mechanism: Mechanism,
    changes: int,
    *,
    place: Place,
    journal: Journal,
    write: Callable[[Path], Document],
) -> Reshapes:
    """Change the GPUs of a job several times."""
    label = f"measured {mechanism.value}"
    setup = place.set_up(
        Options(policy=GivenGpus(), mechanism=mechanism),
        listener=lambda key, state, at: journal.note_state(label, key, state=state, at=at),
    )
    async with Bench(setup) as bench:
        turns = turns_of(len(place.node.gpus))
        journal.note_submission(label, PROBE)
        # It begins with the last of the turns, so that the first round is a change already.
        bench.put(write(place.folder), turns[-1])
        await bench.have(PROBE, turns[-1], patience_s=PATIENCE_S)
        for change in range(changes):
            await bench.train(PROBE, STEPS_BETWEEN, PATIENCE_S)
            await bench.have(PROBE, turns[change % len(turns)], patience_s=PATIENCE_S)
    found = read_interruptions(read_stints(journal.lines, label, job=PROBE))
    return Reshapes(mechanism, tuple(found))
