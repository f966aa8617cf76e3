"""
Measured speeds from files: those that are shipped in ``profiles/``, and those of a user.

The command and :mod:`dljob.sim.jobs.workloads` call it before a run. It turns the measurements of others
into profiles at a fixed global batch, which is the rule of the papers that DLJob follows;
``profiles/README.md`` says how each set was measured, and under which licence it is included.

Job types bear the names of their source (``ResNet-18``, ``imagenet``) and name no dataset.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dljob.core.documents import profilefile
from dljob.core.profiles import JobType, Profile, Speed
from dljob.sim.inputs import yamlfiles
from dljob.sim.inputs.tables import Row, Table
from dljob_wire.messages import Shape

Speeds = dict[JobType, dict[Shape, Speed]]

A100_NODE = 8
"""ElasticFlow measured on servers of eight A100, filling one after the other."""

BATCH_DOUBLINGS = 6
"""Pollux measured by local batch; profiles are made for its smallest batch and its doublings."""

SMALLEST_BATCH = {
    "bert": 12,
    "cifar10": 128,
    "deepspeech2": 20,
    "imagenet": 200,
    "ncf": 256,
    "yolov3": 8,
}
"""The batch size each of Pollux's applications was written for on one GPU."""


def find_folder() -> Path:
    """Return where the shipped profiles are: inside the package when installed, else in the checkout."""
    here = Path(__file__).resolve()
    packaged = here.parents[1] / "_profiles"
    return packaged if packaged.is_dir() else here.parents[4] / "profiles"


def load_shipped(folder: Path | None = None) -> Mapping[JobType, Profile]:
    """Everything that is shipped, as profiles at fixed global batches."""
    folder = folder or find_folder()
    speeds: Speeds = {}
    for kind, shapes in (
        *_read_elasticflow(folder).items(),
        *_read_gavel(folder).items(),
        *_read_pollux(folder).items(),
    ):
        speeds.setdefault(kind, {}).update(shapes)
    return _as_profiles(speeds)


def _as_profiles(speeds: Speeds) -> Mapping[JobType, Profile]:
    return {kind: Profile(kind, dict(sorted(speeds[kind].items()))) for kind in sorted(speeds)}


# --- a user's own -------------------------------------------------------------------------


def load_profiles(path: Path) -> Mapping[JobType, Profile]:
    """
    Read profiles as ``dljob profiles export`` writes them, with speeds, curves and costs.

    Raises :class:`~dljob.core.documents.profilefile.ProfileFileError` with the mistakes in them.
    """
    profiles: dict[JobType, Profile] = {}
    for line, document in yamlfiles.load(path):
        for profile in profilefile.parse_all(document, source=f"{path}:{line}"):
            profiles[profile.type] = profile
    return profiles


def load_speeds(path: Path, *, gpus_per_node: int = 8) -> Mapping[JobType, Profile]:
    """
    Read a file of measured speeds (``--speeds``).

    CSV with the columns ``gpu_type,model,global_batch_size,num_gpus,iterations_per_s`` and, if
    wanted, ``nodes`` and ``dataset``. Where no nodes are said, the GPUs filled as few nodes of
    ``gpus_per_node`` as possible.
    """
    table = Table.read(
        path,
        required=("gpu_type", "model", "global_batch_size", "num_gpus", "iterations_per_s"),
        optional=("nodes", "dataset"),
    )
    speeds: Speeds = {}
    lines: dict[tuple[JobType, Shape], int] = {}
    for row in table:
        batch = row.whole("global_batch_size", least=0, default=0)
        kind = JobType(row.name("model"), row.text("dataset"), batch)
        shape = _read_shape(row, gpus_per_node)
        first = lines.setdefault((kind, shape), row.line)
        if first != row.line:
            raise row.error(
                f"{kind} on {shape} was already given on line {first}",
                remedy="keep one of the two rows",
            )
        speed = Speed(row.positive("iterations_per_s"))
        speeds.setdefault(kind, {})[shape] = speed
    return _as_profiles(speeds)


def _read_shape(row: Row, gpus_per_node: int) -> Shape:
    gpus = row.whole("num_gpus", least=1)
    nodes = row.whole("nodes", least=1, default=math.ceil(gpus / gpus_per_node))
    if nodes > gpus:
        raise row.error(
            f"{gpus} GPUs cannot be on {nodes} nodes",
            field="nodes",
            remedy="give at most as many nodes as GPUs",
        )
    return Shape(gpus, nodes, row.text("gpu_type"))


# --- ElasticFlow: iterations per second at a global batch, as we want them ----------------


def _read_elasticflow(folder: Path) -> Speeds:
    path = folder / "elasticflow" / "throughput.csv"
    # Its T4 rows were computed from the measurements that we read from Pollux, nodes included.
    return {
        kind: dict(profile.speeds)
        for kind, profile in load_speeds(path, gpus_per_node=A100_NODE).items()
        if all(shape.gpu_type == "A100" for shape in profile.speeds)
    }


# --- Gavel: steps per second at a local batch ---------------------------------------------


class _Workers(NamedTuple):
    """The setup in which a column of Gavel's table was measured."""

    model: str
    shape: Shape


def _read_gavel(folder: Path) -> Speeds:
    table = Table.read(
        folder / "gavel" / "isolated_throughput.csv",
        required=(
            "gpu_type",
            "consolidated",
            "model",
            "local_batch_size",
            "num_gpus",
            "steps_per_s",
        ),
    )
    steps: dict[_Workers, dict[int, float]] = {}
    for row in table:
        gpus = row.whole("num_gpus", least=1)
        # Unconsolidated workers were one on each server; alone, a worker is the same either way.
        nodes = 1 if row.whole("consolidated", least=0) else gpus
        workers = _Workers(row.name("model"), Shape(gpus, nodes, row.text("gpu_type").upper()))
        local = row.whole("local_batch_size", least=1, default=0)
        speed = row.number("steps_per_s")
        # Where the memory of the K80 did not suffice, it says 0.
        if speed > 0.0:
            steps.setdefault(workers, {})[local] = speed
    return _at_global_batches(steps)


def _at_global_batches(steps: Mapping[_Workers, Mapping[int, float]]) -> Speeds:
    """
    Turn steps per second at local batches into iterations per second at global ones.

    Gavel adds up the steps of all workers, and an iteration is a step of each, so n workers make
    the n-th part of that many iterations. A worker has the n-th part of the global batch. Where
    that is more than was measured, it takes the largest measured one several times (as training code
    does by accumulating gradients), so samples per second stay the same as for that one.
    """
    speeds: Speeds = {}
    for workers, by_local in steps.items():
        gpus = workers.shape.gpus
        for batch in _batches_of(steps, workers.model):
            local, rest = divmod(batch, gpus)
            largest = max(by_local)
            times = math.ceil(local / largest) if largest else 1
            measured = by_local.get(local // times) if not rest else None
            if measured is not None and local % times == 0:
                kind = JobType(workers.model, "", batch)
                speeds.setdefault(kind, {})[workers.shape] = Speed(measured / times / gpus)
    return speeds


def _batches_of(steps: Mapping[_Workers, Mapping[int, float]], model: str) -> list[int]:
    """Every global batch that a measured worker had: local ones times the GPUs."""
    return sorted(
        {
            local * workers.shape.gpus
            for workers, by_local in steps.items()
            if workers.model == model
            for local in by_local
        }
    )


# --- Pollux: the time of a step at a local batch ------------------------------------------


class StepTime(NamedTuple):
    """A measured step of all workers together, and the part of it spent on synchronising."""

    local_batch: int
    step: float
    sync: float


class StepTimes:
    """The measured steps of one application, from which its speed follows at any batch size."""

    def __init__(self, measured: Mapping[Shape, Iterable[StepTime]]) -> None:
        self._measured = {shape: sorted(steps) for shape, steps in measured.items()}

    @property
    def measured(self) -> Mapping[Shape, Sequence[StepTime]]:
        """The steps by shape, in order of their local batch."""
        return self._measured

    def speeds_at(self, batch: int) -> dict[Shape, Speed]:
        """Iterations per second at a global batch, for every shape that can train it."""
        speeds = ((shape, self._speed(shape, batch)) for shape in self._measured)
        return {shape: Speed(speed) for shape, speed in speeds if speed is not None}

    def _speed(self, shape: Shape, batch: int) -> float | None:
        """
        As Pollux and ElasticFlow compute it from the same measurements.

        A local batch too large for the GPU is taken in several parts, and only the last of them
        is synchronised; between two measured sizes the times are interpolated. A batch smaller
        than was measured has no speed.
        """
        steps = self._measured[shape]
        local = batch / shape.gpus
        parts = math.ceil(local / steps[-1].local_batch)
        timed = _interpolate(steps, local / parts)
        if timed is None:
            return None
        return 1.0 / (parts * (timed.step - timed.sync) + timed.sync)


def _interpolate(steps: list[StepTime], local: float) -> StepTime | None:
    lower = max((step for step in steps if step.local_batch <= local), default=None)
    upper = min((step for step in steps if step.local_batch >= local), default=None)
    if lower is None or upper is None:
        return None
    if lower == upper:
        return lower
    share = (local - lower.local_batch) / (upper.local_batch - lower.local_batch)
    return StepTime(
        round(local),
        lower.step + share * (upper.step - lower.step),
        lower.sync + share * (upper.sync - lower.sync),
    )


def load_step_times(folder: Path | None = None) -> Mapping[str, StepTimes]:
    """Pollux's measured step times by application, all on T4."""
    files = sorted(((folder or find_folder()) / "pollux").glob("*.csv"))
    return {path.stem: StepTimes(_read_steps(path)) for path in files}


def _read_steps(path: Path) -> Mapping[Shape, list[StepTime]]:
    table = Table.read(
        path, required=("num_gpus", "num_nodes", "local_batch_size", "step_time_s", "sync_time_s")
    )
    steps: dict[Shape, list[StepTime]] = {}
    for row in table:
        shape = Shape(row.whole("num_gpus", least=1), row.whole("num_nodes", least=1), "T4")
        local = row.whole("local_batch_size", least=1)
        timed = StepTime(local, row.positive("step_time_s"), row.positive("sync_time_s"))
        steps.setdefault(shape, []).append(timed)
    return steps


def _read_pollux(folder: Path) -> Speeds:
    return {
        JobType(application, "", batch): times.speeds_at(batch)
        for application, times in load_step_times(folder).items()
        for exponent in range(BATCH_DOUBLINGS + 2)
        for batch in [SMALLEST_BATCH[application] << exponent]
    }
