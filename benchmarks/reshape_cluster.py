"""
The cost of changing the GPUs of a job on Kubernetes: in place, and by creating its pod again.

Two real kubelets, the operator from its own image, and the same job in all runs, whose GPUs are virtual.
Its training imports numpy, makes its steps, and ends at once on SIGTERM, so that on neither side any grace
period runs out and no checkpoint causes a wait. Each time the benchmark changes the job's allowed GPUs, and times it
from the controller's decision, as the status has it, to the first step of the training on the
other GPUs, as the training reports it; both read the clock of the machine.

``in_place_cold_ms`` starts the process again in its container, ``in_place_warm_ms`` has an interpreter wait
that has imported numpy, and ``recreate_ms`` deletes the pod and makes another one: delete, schedule, start.
Images are on the nodes already, and nothing waits for GPUs to be initialised: both would only be added to
the new pod. It needs root, and installs the Debian packages of a node where they are missing.
"""

import json
import tempfile
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
from _measuring import describe_machine, print_result, summarize
from _progress import CannotRun, run, say, wait_until

from tests.cluster.clusters import Cluster, install, opened, values
from tests.servers.binaries import Unavailable
from tests.servers.images import TRAINER

Json = dict[str, Any]

JOB = "measured"
TOLD = "/told"
LIMIT_S = 180.0
LOOK_S = 0.05
MANY = 10**9

TRAINING = f"""
import json, os, time
import numpy

generator = numpy.random.default_rng(0)
weights, data = generator.normal(size=(784, 128)), generator.normal(size=(256, 784))
is_first, step = True, 0
while True:
    weights -= 1e-3 * data.T @ numpy.tanh(data @ weights)
    step += 1
    if is_first:
        with open("{TOLD}/first-steps", "a") as file:
            gpus = os.environ["CUDA_VISIBLE_DEVICES"]
            file.write(json.dumps({{"at": time.time(), "gpus": len(gpus.split(","))}}) + chr(10))
        is_first = False
    if step % 20 == 0:
        print(f"step {{step}}", flush=True)
    time.sleep(0.05)
"""


@click.command()
@click.option("--changes", type=click.IntRange(2), default=4, show_default=True)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
def main(*, changes: int, output: str) -> None:
    """Measure how long a change of GPUs takes, in place and by another pod."""
    say("builds images where they are missing, and starts two nodes")
    try:
        with (
            tempfile.TemporaryDirectory(prefix="dljob-reshape-") as folder,
            opened(Path(folder)) as cluster,
        ):
            cluster.give_gpus(node1=2)
            result = _measure(cluster, changes)
    except Unavailable as error:
        raise CannotRun(f"no real nodes can be had here: {error}") from error
    print_result({"changes": changes, **result, **describe_machine()}, output)


def _measure(cluster: Cluster, changes: int) -> Json:
    say("installs the operator …")
    install(cluster)
    cold = _measure_job(cluster, "in-place-cold", changes)
    warm = _measure_job(cluster, "in-place-warm", changes, warmStart={"preload": ["numpy"]})
    settings = {**values()["settings"], "mechanism": "recreate"}
    say("has the operator create pods again …")
    install(cluster, settings=settings)
    recreated = _measure_job(cluster, "recreate", changes)
    return {
        "in_place_warm_ms": summarize(warm),
        "in_place_cold_ms": summarize(cold),
        "recreate_ms": summarize(recreated),
        "warm_ratio": round(median(recreated) / median(warm), 1),
        "cold_ratio": round(median(recreated) / median(cold), 1),
    }


def _measure_job(cluster: Cluster, way: str, changes: int, **spec: Any) -> list[float]:
    """Change the GPUs of a job so often, one after the other; return the milliseconds."""
    folder = cluster.folder / way
    folder.mkdir()
    (folder / "train.py").write_text(TRAINING, encoding="utf-8")
    manifest = _job(folder, **spec)
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    wait_until(lambda: len(_first_steps(folder)) == 1, f"{way}: the training makes its first step")
    found = []
    for number, gpus in zip(range(changes), _in_turn(), strict=False):
        # Twice, because an interpreter that has imported nearly all is not ready yet.
        for _ in range(2):
            wait_until(lambda: _is_calm(cluster, manifest), f"{way}: the job is at rest")
        starts = partial(_has_more, folder, len(_first_steps(folder)))
        change = json.dumps({"spec": {"gpus": {"options": [gpus]}}})
        cluster.kubectl("patch", "dljob", JOB, "--type=merge", "-p", change)
        wait_until(starts, f"{way}: the training starts on {gpus} GPUs")
        step = _first_steps(folder)[-1]
        if step["gpus"] != gpus:
            raise click.ClickException(f"{way}: starts on {step['gpus']} GPUs instead of {gpus}")
        found.append(1000.0 * (step["at"] - _decided_at(cluster)))
        say(f"{way} {number + 1}: {found[-1]:.0f} ms")
    cluster.kubectl("delete", "dljob", JOB, "--timeout=120s")
    return found


def _has_more(folder: Path, before: int) -> bool:
    return len(_first_steps(folder)) > before


def _in_turn() -> Iterator[int]:
    while True:
        yield 1
        yield 2


def _is_calm(cluster: Cluster, manifest: Json) -> bool:
    job = cluster.ask("dljob", JOB)
    if job.get("status", {}).get("phase") != "Running":
        return False
    wanted = 2 if "warmStart" in manifest["spec"] else 1
    # Beside the pod that trains, the one before it may still be on its way out.
    pods = cluster.ask("pods", "-l", f"dljob.io/job={JOB}")["items"]
    if len(pods) != 1 or "deletionTimestamp" in pods[0]["metadata"]:
        return False
    words = ("exec", pods[0]["metadata"]["name"], "-c", "trainer", "--", "python", "-c", WITH_NUMPY)
    said = cluster.kubectl.try_to(*words)
    # A pod may go between the two questions.
    return said.code == 0 and int(said.out) >= wanted


# How many processes have numpy in their memory: the training, and what waits to become one.
WITH_NUMPY = """
import os
def has(pid):
    try:
        return "_umath_linalg" in open(f"/proc/{pid}/maps").read()
    except OSError:
        return False
print(sum(map(has, filter(str.isdigit, os.listdir("/proc")))))
"""


def _decided_at(cluster: Cluster) -> float:
    text = cluster.ask("dljob", JOB)["status"]["allocation"]["decidedAt"]
    return datetime.fromisoformat(text).timestamp()


def _first_steps(folder: Path) -> list[Json]:
    file = folder / "first-steps"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _job(folder: Path, **spec: Any) -> Json:
    trainer = {
        "name": "trainer",
        "image": TRAINER,
        "imagePullPolicy": "Never",
        "command": ["python", f"{TOLD}/train.py"],
        "volumeMounts": [{"name": "told", "mountPath": TOLD}],
    }
    told = {"name": "told", "hostPath": {"path": str(folder), "type": "Directory"}}
    usual: Json = {
        "gpus": {"options": [2]},
        "framework": "none",
        "processes": "perNode",
        "training": {"iterations": MANY, "batchSize": 256},
        "progress": {"log": r"step (?P<iteration>\d+)"},
        "checkpoint": {"timeoutSeconds": 5, "graceSeconds": 30},
        "template": {"spec": {"containers": [trainer], "volumes": [told]}},
    }
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": JOB},
        "spec": {**usual, **spec},
    }


if __name__ == "__main__":
    run(main)
