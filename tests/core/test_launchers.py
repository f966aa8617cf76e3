"""The default number of processes of a job, and the recognition of launchers."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dljob.core.documents import jobfile
from dljob.core.documents.launchers import launcher_of, notice_of

LEAST = Path(__file__).parent / "data" / "good_jobs" / "least.yaml"


def make_template(*command: str, **fields: Any) -> dict[str, Any]:
    trainer = {"name": "trainer", "image": "x", "command": list(command), **fields}
    return {"spec": {"containers": [{"name": "logger", "command": ["torchrun"]}, trainer]}}


def make_document(**spec: Any) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(LEAST.read_text())
    progress = {"log": r"step (?P<iteration>\d+)"}
    document["spec"] = {**document["spec"], "gpus": {"max": 4}, "progress": progress, **spec}
    return document


def processes(**spec: Any) -> str:
    return jobfile.parse(make_document(**spec)).processes


def test_processes_without_rank_default_to_per_node():
    assert processes() == "perNode"
    assert processes(framework="none") == "perNode"
    assert processes(framework="none", processes="perGpu") == "perGpu"


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow", "horovod", "jax"])
def test_processes_with_rank_default_to_per_gpu(framework: str):
    assert processes(framework=framework) == "perGpu"
    assert processes(framework=framework, processes="perNode") == "perNode"


@pytest.mark.parametrize(
    ("command", "launcher"),
    [
        (["/opt/conda/bin/torchrun", "--standalone", "train.py"], "torchrun"),
        (["python3.11", "-u", "-m", "torch.distributed.run", "train.py"], "torchrun"),
        (["accelerate", "launch", "train.py"], "accelerate"),
        (["accelerate", "config"], ""),
        (["python", "-m", "deepspeed.launcher.runner", "train.py"], "deepspeed"),
        (["mpirun", "-np", "2", "python", "train.py"], "mpirun"),
        (["env", "-u", "X", "A=1", "torchrun", "train.py"], "torchrun"),
        (["timeout", "-k", "10s", "1h", "bash", "-c", "torchrun x"], "torchrun"),
        (["nice", "python", "train.py", "torchrun"], ""),
        (["uv", "run", "--with", "x", "python", "-m", "torch.distributed.run"], "torchrun"),
        (["conda", "run", "-n", "env", "torchrun", "train.py"], "torchrun"),
        (["uv", "run", "train.py", "torchrun"], ""),
        (["python", "-W", "ignore", "-m", "torch.distributed.run", "x"], "torchrun"),
        (["bash", "-euxo", "pipefail", "-c", "--", "torchrun x"], "torchrun"),
        (["bash", "-ceo", "pipefail", "torchrun x"], "torchrun"),
        (["bash", "-c", "python x.py", "torchrun"], ""),
        (["sh", "-c", "if ! torchrun x; then exit 3; fi"], "torchrun"),
        (["sh", "-c", "{ timeout 9 torchrun x; }"], "torchrun"),
        (["sh", "-c", "echo then torchrun"], ""),
        (["bash", "-euc", "cd /app && A=1 exec torchrun train.py | tee log"], "torchrun"),
        (["bash", "-c", "pip list\npython -m torch.distributed.run train.py"], "torchrun"),
        (["bash", "-c", "echo 'torchrun"], ""),
        (["python", "train.py", "-m", "torch.distributed.run"], ""),
        (["python", "-m"], ""),
        (["bash", "-c"], ""),
    ],
)
def test_launcher_is_recognised_in_commands(command: list[str], launcher: str):
    assert launcher_of(make_template(*command)) == launcher


def test_container_arguments_belong_to_the_command():
    assert launcher_of(make_template("bash", "-c", args=["torchrun x.py"])) == "torchrun"


@pytest.mark.parametrize(
    "template", [None, "", {}, {"spec": []}, {"spec": {"containers": [1, {"name": "trainer"}]}}]
)
def test_template_without_command_has_no_launcher(template: object):
    assert launcher_of(template) == ""


def test_launcher_runs_once_per_node_with_a_notice():
    spec = {"framework": "pytorch", "template": make_template("torchrun", "train.py")}
    assert processes(**spec) == "perNode"
    assert notice_of(spec).startswith("spec.processes is perNode, because torchrun starts")
    assert notice_of({**spec, "processes": "perNode"}) == ""
    assert notice_of({"template": make_template("torchrun")}) == ""


@pytest.mark.parametrize(
    ("command", "fixed"),
    [
        (["torchrun", "--standalone", "--nproc-per-node=2", "train.py"], "--nproc-per-node=2"),
        (["torchrun", "--nproc_per_node", "4", "train.py"], "--nproc_per_node 4"),
        (["sh", "-c", "accelerate launch --num_processes 2 x.py"], "--num_processes 2"),
        (["mpirun", "-np", "2", "python", "x.py"], "-np 2"),
        (["sh", "-c", "accelerate launch --num_processes $PET_NPROC_PER_NODE x.py"], ""),
        (["torchrun", "--nproc-per-node=gpu", "train.py"], ""),
        (["python", "train.py", "--num-gpus", "2"], ""),
    ],
)
def test_fixed_process_count_is_named(command: list[str], fixed: str):
    spec = {"gpus": {"options": [1, 2, 4]}, "template": make_template(*command)}
    notice = notice_of(spec)
    assert notice.startswith(f"{fixed} stays the same when") if fixed else notice == ""
    assert notice_of({**spec, "gpus": {"options": [2]}}) == ""


def test_launcher_per_gpu_is_refused():
    spec = {
        "framework": "pytorch",
        "processes": "perGpu",
        "template": make_template("torchrun", "train.py"),
    }
    with pytest.raises(jobfile.JobFileError) as refused:
        jobfile.parse(make_document(**spec))
    (line,) = refused.value.lines()
    assert line == (
        'spec.processes: "perGpu" starts torchrun once for each GPU, and each of them starts'
        " processes for all GPUs, at the same port; write processes: perNode, or start your script"
        " by python instead of torchrun"
    )
    assert processes(**spec, gpus={"options": [1]}) == "perGpu"
