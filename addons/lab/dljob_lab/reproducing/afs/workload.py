"""
The workload of AFS (section 5.1, Tables 3 and 4): Philly's jobs, each with one of nine models by lot.

:mod:`dljob_lab.reproducing.afs.plays` plays it. Table 4 prints the batch size of each model and the most
GPUs that it can use; its speeds are not published. So each model has a curve that ElasticFlow measured on A100,
by one rule, up to the most GPUs of Table 4:

* the curve of the model itself or of another version of it, at the nearest batch size that was measured;
* without one, that of ResNet-50 for a convolutional model and that of GPT-2 for one of sequences, at the
  model's own batch size.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from dljob.core.model import Checkpoint, GpuDemand, Job, JobId, Training
from dljob.core.profiles import JobType, Profile
from dljob.sim.clusters import Machines
from dljob.sim.inputs.traces import Request, read_trace
from dljob.sim.jobs.curves import Curve, Ground, lay_out
from dljob.sim.jobs.scaling import load_standard_curves
from dljob.sim.jobs.workloads import TracedJob, Workload, name_of
from dljob_lab.worlds import is_packed

CLUSTERS: Mapping[str, int] = {
    "0e4a51": 2465,
    "6c71a0": 14791,
    "b436b2": 9033,
    "e13805": 938,
    "6214e9": 51288,
    "7f04ca": 1461,
    "103959": 2677,
    "ee9e8c": 5781,
    "2869ce": 956,
    "11cb48": 19070,
    "ed69ec": 1401,
}
"""The jobs of each virtual cluster of Table 3, in its order."""

MACHINES = Machines(16, 4)

GPU_TYPE = "A100"

GROUND = Ground(gpu_types=("",), largest=MACHINES.nodes * MACHINES.gpus, node_gpus=MACHINES.gpus)


class Model(NamedTuple):
    """A row of Table 4, and the measured model that it scales like."""

    name: str
    batch_size: int
    most: int
    """The column "Max #GPUs"."""
    nearest: JobType

    @property
    def curve(self) -> Curve:
        """The measured curve."""
        return _read_curves()[self.nearest]

    @property
    def useful(self) -> int:
        """The most GPUs that it can use here: a measured curve may end its rise before Table 4's number."""
        return min(self.most, self.curve.peak(GPU_TYPE))


MODELS = (
    Model("VGG16", 256, 8, JobType("vgg16", "", 256)),
    Model("GoogLeNet", 128, 20, JobType("inception3", "", 128)),
    Model("Inception-v4", 256, 52, JobType("inception3", "", 128)),
    Model("ResNet-50", 128, 28, JobType("resnet50", "", 128)),
    Model("DCGAN", 256, 20, JobType("resnet50", "", 256)),
    Model("Video Prediction", 64, 28, JobType("resnet50", "", 64)),
    Model("Chatbot", 256, 4, JobType("gpt2", "", 256)),
    Model("Deep Speech 2", 64, 20, JobType("deepspeech2", "", 64)),
    Model("Transformer", 256, 44, JobType("gpt2", "", 256)),
)


@cache
def _read_curves() -> Mapping[JobType, Curve]:
    table = load_standard_curves()
    return {model.nearest: Curve(table[model.nearest]) for model in MODELS}


def draw_model(gpus: int, key: str) -> Model:
    """Draw one of the models that scale to these GPUs, or else the one that scales furthest; by the key alone."""
    furthest = max(MODELS, key=lambda model: model.most)
    able = [model for model in MODELS if model.most >= gpus] or [furthest]
    return random.Random(key).choice(able)


class _Kind(NamedTuple):
    """Jobs that are alike but for their length."""

    model: Model
    requested: int

    @property
    def type(self) -> JobType:
        return JobType(f"{self.model.name}@{self.requested}", "", self.model.batch_size)

    @property
    def options(self) -> tuple[int, ...]:
        """The numbers of GPUs that network packing (section 4.4) allows up to the most, and the request."""
        useful = range(1, self.model.useful + 1)
        packed = {n for n in useful if is_packed(n, MACHINES.gpus, only_powers=True)}
        return tuple(sorted(packed | {self.requested}))

    def make_profile(self) -> Profile:
        """Its speeds, of which that on the requested GPUs is one iteration a second."""
        curve = self.model.curve
        norm = curve.speed_on(self.requested, "", ground=GROUND)
        return Profile(self.type, lay_out(curve, self.options, ground=GROUND, norm=norm))


# Plays of one trace follow each other, and the largest has 41,226 jobs.
@lru_cache(maxsize=2)
def make_workload(path: Path, cluster: str, *, seed: int, is_greedy: bool = False) -> Workload:
    """
    Give each job of a trace a model, and as much work as it did in the trace on that model.

    The lot depends on the seed, the cluster and the name of the job. Greedy jobs request the most GPUs that
    their model can use, where that is more; their work stays (Figure 6).
    """
    kinds: dict[JobType, _Kind] = {}
    jobs = []
    for request in read_trace(path).requests:
        kind = _Kind(draw_model(request.gpus, f"{seed}/{cluster}/{request.id}"), request.gpus)
        kinds.setdefault(kind.type, kind)
        jobs.append(_make_job(request, kind, is_greedy=is_greedy))
    profiles = {name: kind.make_profile() for name, kind in sorted(kinds.items())}
    return Workload(name_of(path), tuple(jobs), profiles, profiles)


def _make_job(request: Request, kind: _Kind, *, is_greedy: bool) -> TracedJob:
    fits = request.gpus <= GROUND.largest
    options = kind.options if fits else (request.gpus,)
    demand = GpuDemand(options=options, requested=request.gpus)
    if is_greedy and fits:
        demand = replace(demand, requested=max(request.gpus, kind.model.useful))
    job = Job(
        id=JobId(request.id),
        gpus=demand,
        training=Training(iterations=math.ceil(request.duration), batch_size=kind.model.batch_size),
        type=kind.type,
        submitted_at=request.submitted_at,
        checkpoint=Checkpoint(shared=True),
    )
    return TracedJob(job, request.duration, curve=str(kind.model.nearest), is_drawn=True)
