"""
Rubick's jobs as data-parallel ones: the best measured plan for each number of GPUs and of nodes.

Called by :mod:`dljob.sim.jobs.scaling` for traces of Rubick (AlibabaPAI, "reconfigurable-dl-scheduler").
Its authors measured the time of an iteration by model, execution plan (data, tensor or pipeline
parallelism, recomputation, offloading) and placement, and their scheduler chooses the plan. A
policy of ours chooses GPUs, so a job here always runs the best plan that was measured for the GPUs
and nodes that it has: the change of plan is part of the change of GPUs and of its cost.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from dljob.core.profiles import JobType, Profile, Speed
from dljob.sim.inputs.shipped import find_folder
from dljob.sim.inputs.tables import Row, Table
from dljob.sim.inputs.traces import Request
from dljob.sim.jobs.curves import Curve, Ground
from dljob_wire.messages import Shape

GPU_TYPE = "A800"
"""The type of GPU of all measurements, eight a node."""

FEWEST: Mapping[str, int] = {"llama30": 40}
"""
On fewer GPUs a model is not offered, unless a job asks for just that number.

Of LLaMA-30B below 40 GPUs only two placements were measured: 24 on six half nodes, which takes
2.4 times as long as 48, and 32 on four nodes.
"""


def load_rubick(folder: Path | None = None) -> Mapping[JobType, Profile]:
    """Read the speed of the best measured plan, by model, number of GPUs and number of nodes."""
    table = Table.read(
        (folder or find_folder()) / "rubick" / "iteration_times.csv",
        required=("model", "exec_plan", "placement", "iteration_s"),
    )
    speeds: dict[JobType, dict[Shape, Speed]] = {}
    for row in table:
        kind, shape = JobType(row.name("model")), _read_placement(row)
        speed = Speed(1.0 / row.positive("iteration_s"))
        known = speeds.setdefault(kind, {})
        known[shape] = max(known.get(shape, speed), speed)
    return {kind: Profile(kind, dict(sorted(speeds[kind].items()))) for kind in sorted(speeds)}


def _read_placement(row: Row) -> Shape:
    """Read a placement, which has one digit a node: ``233`` is 2, 3 and 3 GPUs."""
    digits = row.name("placement")
    if not (digits.isascii() and digits.isdigit() and "0" not in digits):
        raise row.error(
            f"{digits!r} is no placement",
            field="placement",
            remedy="write one digit from 1 to 9 for each node",
        )
    return Shape(sum(map(int, digits)), len(digits), GPU_TYPE)


def choose_counts(curve: Curve, request: Request, ground: Ground) -> tuple[int, ...]:
    """
    Choose on which numbers of GPUs a job may run.

    Those on which the model was measured faster than on every smaller one; the request is always
    among them. A guaranteed job is never slower than on its requested GPUs, so it gets none of the
    numbers on which it would be; the job itself does not allow these, so every policy obeys.
    """
    kind = curve.standard_type(ground)
    counts = list(_rising(curve, kind, least=FEWEST.get(request.model, 1)))
    if request.guaranteed:
        promised = curve.speed(request.gpus, kind)
        counts = [count for count in counts if curve.speed(count, kind) >= promised]
    within = {count for count in counts if count <= ground.largest}
    return tuple(sorted(within | {request.gpus}))


def _rising(curve: Curve, kind: str, *, least: int) -> Iterable[int]:
    best = 0.0
    for count in curve.counts(kind):
        speed = curve.speed(count, kind)
        if count >= least and speed > best:
            best = speed
            yield count
