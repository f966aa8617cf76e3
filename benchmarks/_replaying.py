"""
A workload of jobs that replay speeds, for benchmarks that play it on this machine for real.

Nothing is computed in them, but all else is real: controllers, SideCars, processes, checkpoints. They
take as long as the figures here say, which is short of what real trainings take in the same measure
throughout: a job is done in about a minute, and a change of its GPUs costs it two seconds.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from dljob.core.profiles import JobType
from dljob_lab.demonstrating.script import write_replay, write_speeds

Document = dict[str, Any]

OPTIONS = (1, 2, 3, 4, 8)
NARROW, WIDE = (1, 2, 3, 4), (4, 8)
"""Most jobs fit on a node, as those of the SideCar paper do; one in twelve can have both nodes."""
ONE_IN = 12
SPEEDS = {
    JobType("wide", "", 512): (8.0, 15.5, 22.5, 29.0, 52.0),
    JobType("narrow", "", 64): (10.0, 18.0, 25.0, 31.0, 48.0),
}
"""Iterations a second by the number of GPUs: of one that scales well, and of one that does not."""

INITIALIZATION_S = 1.2
"""The time that loading a framework and a model would take."""
SAVING_S = 0.3

ENDLESS = 10**9


def write_table(folder: Path) -> Path:
    """Write the speeds at which trainings go."""
    path = folder / "speeds.csv"
    write_speeds(
        path,
        {
            (kind, gpus): speed
            for kind, speeds in SPEEDS.items()
            for gpus, speed in zip(OPTIONS, speeds, strict=True)
        },
    )
    return path


def make_document(
    folder: Path,
    table: Path,
    name: str,
    kind: JobType,
    *,
    iterations: int,
    options: Sequence[int] = OPTIONS,
    waits: bool = True,
) -> Document:
    """
    A job of ``iterations`` iterations, which keeps its checkpoints in a folder of its own.

    With ``waits`` it waits out what it would take to load a model and to save it.
    """
    loading, saving = (INITIALIZATION_S, SAVING_S) if waits else (0.0, 0.0)
    document = write_replay(
        folder / name,
        name,
        options=options,
        kind=kind,
        arguments=(
            f"--speeds={table}",
            f"--iterations={iterations}",
            f"--initialization={loading}",
            f"--saving={saving}",
        ),
    )
    # Over several nodes each process needs to know their number.
    document["spec"] |= {"framework": "pytorch", "processes": "perGpu"}
    document["spec"]["training"]["iterations"] = iterations
    # All virtual nodes of this machine see the folder; else a job stays on the node of its checkpoint.
    document["spec"]["checkpoint"]["shared"] = True
    return document


class Job(NamedTuple):
    """The drawn properties of a job."""

    name: str
    submitted_at: float
    kind: JobType
    options: tuple[int, ...]
    iterations: int


def draw_jobs(
    seed: int, *, jobs: int, every_s: float, shortest_s: float, longest_s: float
) -> Iterator[Job]:
    """Draw jobs that come at random; the first comes at once."""
    chance, at = random.Random(seed), 0.0
    for number in range(jobs):
        kind = chance.choice(tuple(SPEEDS))
        seconds = chance.uniform(shortest_s, longest_s)
        options = WIDE if number % ONE_IN == ONE_IN // 2 else NARROW
        yield Job(f"job-{number:02}", at, kind, options, round(seconds * SPEEDS[kind][0]))
        at = round(at + chance.uniform(0.6, 1.4) * every_s, 1)


def make_documents(folder: Path, table: Path, jobs: Iterable[Job]) -> list[Document]:
    """The jobs as files have them, for a simulation and for a controller alike."""
    documents = []
    for job in jobs:
        document = make_document(
            folder,
            table,
            job.name,
            job.kind,
            iterations=job.iterations,
            options=job.options,
        )
        document["metadata"]["annotations"] = {"dljob.io/submit-at": f"{job.submitted_at:g}"}
        documents.append(document)
    return documents


def write_files(folder: Path, documents: Sequence[Document]) -> list[Path]:
    """Write one file a job."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for document in documents:
        paths.append(folder / f"{document['metadata']['name']}.yaml")
        paths[-1].write_text(yaml.safe_dump(document), encoding="utf-8")
    return paths
