"""A workload has the jobs of a trace, with a true speed for every possible shape."""

import math
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from dljob.core.model import Cluster, Mechanism, Node
from dljob.core.predicting.predictor import Predictor
from dljob.core.profiles import Costs, JobType
from dljob.sim.errors import BadInput
from dljob.sim.jobs.workloads import Learning, TracedJob, Workload
from dljob_wire.messages import Shape
from tests.sim.worlds import read_workload

TRACES = Path(__file__).parents[1] / "data" / "traces"
ALL = sorted(path for path in TRACES.glob("*.csv.gz") if "published" not in path.name)
QUICK = {"philly_e13805", "itp_cluster01_models", "gavel_static_100", "pollux_1.0_workload-1"}
"""Traces, one of each format, that are read in the gate; all others are ``slow``."""
CLUSTER = Cluster([Node.of("n", 8)])
HEADER = "job_id,submit_time_s,duration_s,num_gpus\n"
MODELS = "job_id,submit_time_s,duration_s,num_gpus,model,global_batch_size,iterations\n"


def read(path: Path | str, **changes) -> Workload:
    path = path if isinstance(path, Path) else TRACES / f"{path}.csv.gz"
    return read_workload(path, **changes)


def predict(workload: Workload, traced: TracedJob, *shape) -> float:
    """Return the speed that the world and the policies assume."""
    predictor = Predictor(
        profiles=workload.truths, costs=Costs(), mechanism=Mechanism.IN_PLACE, cluster=CLUSTER
    )
    return predictor.speed(traced.job, Shape(*shape))


def test_rigid_jobs_run_as_requested_with_speed_one_everywhere():
    workload = read("philly_ee9e8c", rigid=True, gpu_types=("P100", "V100"))
    for traced in workload.jobs:
        demand = traced.job.gpus
        assert demand.options == (demand.requested,)
        assert traced.job.type == JobType("as-requested")
        assert traced.iterations == traced.job.training.iterations
    counts = {traced.job.gpus.requested for traced in workload.jobs}
    shapes = [(gpus, nodes) for gpus in counts for nodes in {1, 2, 3, 8, gpus} if nodes <= gpus]
    for kind in ("P100", "V100"):
        assert {predict(workload, workload.jobs[0], *shape, kind) for shape in shapes} == {1.0}


@pytest.mark.parametrize("gpu_types", [("",), ("V100", "P100")])
def test_drawn_job_keeps_its_duration_as_requested(gpu_types):
    workload = read("philly_2869ce", gpu_types=gpu_types, node_gpus=4)
    for traced in workload.jobs:
        asked = traced.job.gpus.requested
        for nodes in {1, math.ceil(asked / 4)}:
            assert predict(workload, traced, asked, nodes, gpu_types[0]) == 1.0


def test_draws_depend_on_seed_and_job_name_only(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "b,0,60,2\na,5,60,2\n", encoding="utf-8")
    few = {str(traced.job.id): traced.job.type for traced in read(path).jobs}
    path.write_text(HEADER + "x,0,9,1\na,5,60,2\nb,7,60,2\n", encoding="utf-8")
    more = {str(traced.job.id): traced.job.type for traced in read(path).jobs}
    assert more["a"] == few["a"]
    assert more["b"] == few["b"]


@pytest.mark.slow
def test_draws_are_the_same_in_every_process():
    script = (
        "from pathlib import Path; from dljob.sim.jobs import workloads;"
        f"w = workloads.read(Path({str(TRACES / 'philly_e13805.csv.gz')!r}), rigid=False,"
        "speeds=None, seed=3, gpu_types=('',), largest=64);"
        "print([(j.job, j.iterations) for j in w.jobs], [p.speeds for p in w.truths.values()])"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            check=True,
            timeout=120.0,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1


def test_job_beyond_every_curve_gets_the_longest():
    workload = read("philly_ee9e8c", largest=128)
    (note,) = workload.notes
    assert note.startswith("no measured curve rises beyond 64 GPUs: the 3 jobs that ask for more")
    widest = max(workload.jobs, key=lambda traced: traced.job.gpus.requested)
    assert widest.job.gpus.options == (1, 2, 4, 8, 16, 32, 64, 128)
    assert predict(workload, widest, 128, 16, "") == 1.0


def test_elasticflow_jobs_have_measured_speeds():
    workload = read("itp_cluster01_models")
    traced = workload.jobs[0]
    assert traced.job.type == JobType("resnet50", "", 256)
    assert traced.job.gpus.options == (1, 2, 4, 8, 16, 32, 64)
    assert traced.iterations == 45775
    assert predict(workload, traced, 8, 1, "") == 10.3787
    # Its authors computed the iterations from the duration on the requested GPUs.
    for traced in workload.jobs:
        asked = traced.job.gpus.requested
        speed = predict(workload, traced, asked, 1, "")
        assert traced.iterations / speed >= 600


def test_gavel_steps_are_divided_by_gpus():
    workload = read("gavel_continuous_96")
    traced = next(t for t in workload.jobs if t.job.gpus.requested == 4)
    # ResNet-18 (batch size 128) on four V100: 69.95 steps a second, a fourth of it each.
    assert traced.job.type == JobType("ResNet-18", "", 512)
    assert traced.iterations == 925982 / 4
    assert predict(workload, traced, 4, 1, "") == pytest.approx(69.95 / 4, rel=1e-3)
    assert predict(workload, traced, 4, 4, "") < predict(workload, traced, 4, 1, "")


@pytest.mark.parametrize(
    ("content", "field", "words"),
    [
        (
            MODELS + "0,0,60,1,resnet50,100,99\n",
            "model",
            "not measured at a global batch of 100; take one of 64, 128, 256",
        ),
        (
            "job_id,submit_time_s,job_type,num_gpus,total_steps\n0,0,LM (batch size 7),1,9\n",
            "job_type",
            "not measured at a global batch of 7",
        ),
        (
            "name,time,application,num_replicas,batch_size\na,0,cifar10,1,100\n",
            "batch_size",
            "was not trained with a batch of 100; take one from 128 to 4096",
        ),
        (
            "job_id,submit_time_s,duration_s,num_gpus,model,iterations\n0,0,0,1,vgg19,5\n",
            "duration_s",
            "5 iterations in no time",
        ),
    ],
)
def test_unknown_job_is_refused_with_its_line(tmp_path, content, field, words):
    path = tmp_path / "trace.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(BadInput, match=words) as caught:
        read(path)
    assert caught.value.line == 2
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.remedy


def name_of(path: Path) -> str:
    return path.name.removesuffix(".csv.gz")


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path, marks=[] if name_of(path) in QUICK else [pytest.mark.slow], id=name_of(path)
        )
        for path in ALL
    ],
)
@pytest.mark.parametrize("rigid", [True, False], ids=["rigid", "elastic"])
def test_every_possible_shape_has_a_speed(path, rigid):
    workload = read(path, rigid=rigid, gpu_types=("V100", "P100"))
    assert workload.known == workload.truths
    assert workload.name == name_of(path)
    times = [traced.job.submitted_at for traced in workload.jobs]
    assert times == sorted(times)
    for kind, demand in {(traced.job.type, traced.job.gpus) for traced in workload.jobs}:
        assert demand.requested in demand.options
        assert list(demand.options) == sorted(set(demand.options))
        speeds = workload.truths[kind].speeds
        for count, gpu_type in product(demand.options, ("V100", "P100")):
            assert 0.0 < speeds[Shape(count, 1, gpu_type)].iterations_per_s < math.inf


def test_learning_curve_reaches_its_target():
    rising = Learning(b0=0.002, b1=1.5, c=0.93)
    falling = Learning(b0=0.002, b1=0.5, c=0.3, falls=True)
    assert rising.truth_at(rising.iterations_to(0.9)) == pytest.approx(0.9)
    assert falling.truth_at(falling.iterations_to(0.4)) == pytest.approx(0.4)
    assert rising.iterations_to(0.93) == math.inf
    assert falling.iterations_to(0.3) == math.inf
    assert rising.iterations_to(0.1) == 0.0
