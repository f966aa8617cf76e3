"""
The script of a demonstration: two jobs as DLJob documents, when each comes, and their profiles.

There are two scripts. The usual one is the case study of the SideCar paper with the constants of
``dljob reproduce sidecar``, faster by a factor: its training paces its steps, and waits for the time
that a framework and a model would take, and its pods take as long as the paper's.
The real one trains ``examples/pytorch`` or ``examples/digits``, and waits for nothing.
"""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dljob.core.model import JobId
from dljob.core.profiles import Costs, JobType, Profile
from dljob.local.pods.pod_states import AT_ONCE, PodTimes
from dljob_lab.demonstrating.examples import load_example
from dljob_lab.reproducing.sidecar.case import JOB_1, JOB_2, make_workload
from dljob_lab.reproducing.sidecar.constants import FROZEN

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Act:
    """A job, and when it is submitted."""

    job: JobId
    at: float
    """In real seconds after the first one."""
    document: Document
    requested: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Everything about a performance except the approach. Times are in real seconds."""

    acts: tuple[Act, ...]
    factor: float = 1.0
    """The factor by which it is faster than the shown times."""
    profiles: tuple[Profile, ...] = ()
    """The profiles that were measured offline."""
    costs: Costs = Costs()
    pod_times: PodTimes = AT_ONCE

    @property
    def jobs(self) -> tuple[JobId, ...]:
        """The names of the jobs, in the order in which they come."""
        return tuple(act.job for act in self.acts)


# --- the case study -----------------------------------------------------------------------


def write_case(folder: Path, factor: float) -> Script:
    """The case study, faster by ``factor``; ``folder`` takes the files of its training."""
    workload = make_workload(FROZEN)
    speeds = folder / "speeds.csv"
    write_speeds(
        speeds,
        {
            (profile.type, shape.gpus): speed.iterations_per_s
            for profile in workload.known.values()
            for shape, speed in profile.speeds.items()
        },
    )
    acts = []
    for traced in workload.jobs:
        job = traced.job
        document = write_replay(
            folder / job.id,
            job.id,
            options=job.gpus.options,
            kind=job.type,
            arguments=(
                f"--speeds={speeds}",
                f"--iterations={job.training.iterations}",
                *_wait_out(FROZEN.costs, factor),
            ),
        )
        document["spec"]["training"]["iterations"] = job.training.iterations
        acts.append(Act(job.id, job.submitted_at / factor, document, job.gpus.requested))
    return Script(
        acts=tuple(acts),
        factor=factor,
        profiles=tuple(_faster(profile, factor) for profile in workload.known.values()),
        costs=FROZEN.costs.faster(factor),
        pod_times=PodTimes.of(FROZEN.costs, faster=factor),
    )


def write_replay(
    folder: Path,
    job: str,
    *,
    options: Iterable[int],
    kind: JobType,
    arguments: Iterable[str],
) -> Document:
    """A job of ``examples/replay`` that replays a type of job."""
    example = load_example("replay")
    document = _named(example.document, job, options=options, folder=folder)
    _set_type(document, kind)
    _container(document)["command"] = [
        *example.command,
        f"--model={kind.model}",
        f"--batch={kind.batch_size}",
        f"--checkpoint={folder}/iteration",
        *arguments,
    ]
    return document


def _wait_out(costs: Costs, factor: float) -> tuple[str, ...]:
    """The waiting times of the training in addition to its steps."""
    return (
        f"--faster={factor:g}",
        f"--initialization={costs.process_initialization:g}",
        f"--initialization-per-gpu={costs.process_initialization_per_gpu:g}",
    )


def list_modelled() -> tuple[str, ...]:
    """Return what is waited out, and how long that takes in the paper's time."""
    costs = FROZEN.costs
    pod = _describe_start(costs.pod_initialization, costs.pod_initialization_per_gpu)
    framework = _describe_start(costs.process_initialization, costs.process_initialization_per_gpu)
    return (
        "the steps of the training",
        f"the start of a pod ({pod}) and its end ({costs.pod_termination:g} s)",
        f"the start of the framework ({framework})",
    )


def _describe_start(seconds: float, per_gpu: float) -> str:
    return f"{seconds:g} s, and {per_gpu:g} s more for each GPU"


def _faster(profile: Profile, factor: float) -> Profile:
    speeds = {
        shape: speed._replace(iterations_per_s=speed.iterations_per_s * factor)
        for shape, speed in profile.speeds.items()
    }
    return replace(profile, speeds=speeds)


SPEED_COLUMNS = ("gpu_type", "model", "global_batch_size", "num_gpus", "iterations_per_s")
REPLAYED_TYPE = "A100"
"""The type of GPU that ``examples/replay`` looks for by default."""


def write_speeds(path: Path, speeds: Mapping[tuple[JobType, int], float]) -> None:
    """Write what ``examples/replay`` takes its pace from: types, numbers of GPUs, iterations a second."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(SPEED_COLUMNS)
        for (kind, gpus), speed in speeds.items():
            rows.writerow((REPLAYED_TYPE, kind.model, kind.batch_size, gpus, speed))


# --- real training ------------------------------------------------------------------------

BATCH = 8192
"""Images a step: enough that the computation of a process outweighs its communication."""

SECOND_AFTER_S = 10.0


@dataclass(frozen=True, slots=True)
class Training:
    """A real training to be shown."""

    example: str
    kind: JobType
    environment: Mapping[str, str]

    def write(self, folder: Path, job: str, *, options: Iterable[int], iterations: int) -> Document:
        """A job of it: as many processes as it has GPUs, and each a core for itself."""
        example = load_example(self.example)
        document = _named(example.document, job, options=options, folder=folder)
        document["spec"]["training"] = {"iterations": iterations}
        _set_type(document, self.kind)
        container = _container(document)
        container["env"] = [{"name": name, "value": v} for name, v in self.environment.items()]
        container["command"] = [
            *example.command,
            f"--iterations={iterations}",
            f"--batch={self.kind.batch_size}",
            f"--checkpoints={folder}",
        ]
        return document


ONE_CORE = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Otherwise one process takes all cores, and more of them cannot be faster."""

DIGITS = Training("digits", JobType("digits", "drawn", BATCH), ONE_CORE)
PYTORCH = Training("pytorch", JobType("small-resnet", "drawn", 64), ONE_CORE)


def choose_training() -> Training:
    """Take PyTorch where this Python has it, and else plain numpy."""
    return PYTORCH if find_spec("torch") else DIGITS


def write_real(
    training: Training,
    folder: Path,
    *,
    iterations: Mapping[JobId, int],
    profile: Profile,
    gpus: int,
) -> Script:
    """Two real trainings: the first on all GPUs or half of them, the second on half of them."""
    acts = []
    half = gpus // 2
    for job, at, options in ((JOB_1, 0.0, (half, gpus)), (JOB_2, SECOND_AFTER_S, (half,))):
        document = training.write(folder / job, job, options=options, iterations=iterations[job])
        acts.append(Act(job, at, document, max(options)))
    return Script(acts=tuple(acts), profiles=(profile,))


# --- both ---------------------------------------------------------------------------------


def _named(document: Document, job: str, *, options: Iterable[int], folder: Path) -> Document:
    document["metadata"]["name"] = job
    document["spec"]["gpus"] = {"options": list(options)}
    document["spec"]["checkpoint"] |= {
        "path": str(folder),
        "timeoutSeconds": 30,
        "graceSeconds": 3,
    }
    # The volume of the example is a cluster's place for checkpoints; here they are in the folder.
    document["spec"]["template"]["spec"].pop("volumes", None)
    _container(document).pop("volumeMounts", None)
    return document


def _set_type(document: Document, kind: JobType) -> None:
    profile = {"model": kind.model, "dataset": kind.dataset}
    document["spec"]["profile"] = {name: value for name, value in profile.items() if value}
    document["spec"]["training"].pop("batchSize", None)
    if kind.batch_size:
        document["spec"]["training"]["batchSize"] = kind.batch_size


def _container(document: Document) -> Document:
    container: Document = document["spec"]["template"]["spec"]["containers"][0]
    return container
