"""The reports of SideCars about GPUs: their UUIDs, faults and losses, on Kubernetes."""

import json
import os
import signal
import urllib.request
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import pytest

from tests.operator.stages import Stage, staged
from tests.servers.api import Refused
from tests.servers.ports import choose_ports
from tests.servers.processes import Server
from tests.sidecar.standins import build_nvml

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

A, B = "gpu-a", "gpu-b"
BOTH = "GPU-standin-0,GPU-standin-1"


@pytest.fixture
def stage(control_plane, namespace, tmp_path):
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    with staged(control_plane, namespace, tmp_path, {A: 2, B: 2}) as stage:
        folder = tmp_path / "nvml"
        folder.mkdir()
        stage.kubelets.driver = build_nvml(folder)
        yield stage


def place_of(stage: Stage, job: str) -> dict[str, list[int]]:
    allocation = stage.status(job).get("allocation") or {}
    return {node["name"]: node["gpuIds"] for node in allocation.get("nodes", ())}


def pod_of(stage: Stage, job: str) -> str:
    (booking,) = stage.status(job)["pods"]
    return f"{job}-{booking['serial']}"


def say(stage: Stage, pod: str, file: str, text: str = "") -> None:
    """Write a file for the played NVML of a pod's container."""
    folder = stage.kubelets.gpus_of(pod)
    (folder / "new").write_text(text)
    (folder / "new").rename(folder / file)


def troubles(stage: Stage, job: str) -> str:
    conditions = stage.status(job).get("conditions", ())
    return next((c["reason"] for c in conditions if c["type"] == "Troubled"), "")


def test_uuids_faults_and_lost_gpus_are_handled(stage):
    (port,) = choose_ports(1)
    settings = {"pods.virtualGpus": "false", "health": f"127.0.0.1:{port}"}
    operator = stage.start_operator(settings=settings)

    # The first SideCar of a node reports the UUIDs.
    stage.submit("first", iterations=10**6, gpus={"options": [2], "ids": "uuid"})
    stage.wait_for_phase("first", "Running")
    assert BOTH in stage.kubelets.trainings(pod_of(stage, "first")).values()
    stage.wait(lambda: 'uuid="GPU-standin-1"' in metrics(port))

    # A broken GPU goes to no further job.
    (broken,) = place_of(stage, "first")
    (other,) = {A, B} - {broken}
    say(stage, pod_of(stage, "first"), "xid", "1 79")
    stage.wait(lambda: any(reason == "GpuBroken" for reason, _ in stage.events("first")))
    assert f"GPU {broken}/1: it reported Xid 79" in str(stage.events("first"))
    stage.api.delete(stage.path("first"))
    stage.wait(lambda: stage.is_gone("first"))
    wide = stage.make_job("wide", iterations=10**6)
    wide["spec"]["gpus"] = {"options": [2]}
    # A process that cannot prove its end is killed after this time, and a bit more.
    wide["spec"]["checkpoint"] |= {"timeoutSeconds": 2, "graceSeconds": 1}
    stage.api.post(stage.path(), wide)
    stage.wait_for_phase("wide", "Running")
    stage.submit("narrow", iterations=10**6, gpus={"options": [1]})
    stage.wait_for_phase("narrow", "Running")
    assert (place_of(stage, "wide"), place_of(stage, "narrow")) == ({other: [0, 1]}, {broken: [0]})

    stage.wait(lambda: "it reported Xid 79" in why_out(stage, broken, "1"))
    assert known(stage)[broken]["uuids"] == {"0": "GPU-standin-0", "1": "GPU-standin-1"}

    # A lost GPU is reported, and the training goes on.
    former = pod_of(stage, "wide")
    stage.wait(lambda: stage.kubelets.trainings(former))
    say(stage, former, "lost-0")
    stage.wait(lambda: troubles(stage, "wide") == "GPUsVanished")
    assert f"GPU {other}/0 gets no jobs: it vanished from a SideCar" in said(operator)
    assert (stage.phase("wide"), pod_of(stage, "wide")) == ("Running", former)
    stage.wait(lambda: "it vanished from a SideCar" in why_out(stage, other, "0"))

    # When the training fails, a new container brings the GPU back; that is no failure of the job.
    for pid in stage.kubelets.trainings(former):
        # It may end with the one before it.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    stage.wait(lambda: any(reason == "GPUsVanished" for reason, _ in warnings(stage, "wide")))
    stage.wait(lambda: stage.phase("wide") == "Running" and pod_of(stage, "wide") != former)
    assert stage.status("wide")["failures"] == 0
    assert place_of(stage, "wide") == {other: [0, 1]}
    assert f"GPU {other}/0 gets jobs again" in said(operator)
    stage.wait(lambda: troubles(stage, "wide") == "Solved")


def metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=240.0) as answer:
        told: str = answer.read().decode()
        return told


def known(stage: Stage) -> dict[str, Any]:
    """The table that the operator publishes for ``dljob gpu list``."""
    path = f"/api/v1/namespaces/{stage.namespace}/configmaps/dljob-gpus"
    try:
        table = stage.api.get(path)
    except Refused as refused:
        if refused.code != HTTPStatus.NOT_FOUND:
            raise
        # A job may run before the operator has written its first table.
        return {}
    told: dict[str, Any] = json.loads(table["data"]["gpus.json"])
    return told


def why_out(stage: Stage, node: str, gpu: str) -> str:
    """The recorded reason why no job gets a GPU; empty if it is in service."""
    why: str = known(stage).get(node, {}).get("out", {}).get(gpu, "")
    return why


def warnings(stage: Stage, job: str) -> list[tuple[str, str]]:
    """The Events about a restart, without those about observations."""
    return [each for each in stage.events(job) if "all its processes restart" in each[1]]


def said(operator: Server) -> str:
    return operator.log.read_text(encoding="utf-8")
