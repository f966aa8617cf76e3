"""SideCars that fall silent, and jobs on hold, on a real control plane; stopped SideCars keep their trainings."""

import os
import signal
from collections.abc import Iterable, Iterator
from functools import partial

import pytest

from dljob.kube import names
from tests.operator.stages import Stage, lasting_stage
from tests.operator.test_misfortunes import LONG, runs, told
from tests.servers.controlplane import ControlPlane
from tests.sidecar.drivers import find_children, read_proc

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

NODES = {"gpu-a": 3, "gpu-b": 3}
SETTINGS = {
    "policy": "adaptive",
    "rules.lostSeconds": 20,
    "dialing.waitSeconds": 2,
    "dialing.longestPauseSeconds": 0.5,
}
JOBS = [f"quiet-{number}" for number in range(4)]
PODS = {job: f"{job}-1" for job in JOBS}


@pytest.fixture(scope="module")
def stage(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Train four jobs of one GPU."""
    with lasting_stage(control_plane, tmp_path_factory, NODES) as stage:
        stage.start_operator(settings=SETTINGS)
        for job, pod in PODS.items():
            stage.submit(job, iterations=LONG, gpus={"options": [1]})
            stage.wait(partial(runs, stage, job, pod))
        yield stage


def send(stage: Stage, number: signal.Signals, jobs: Iterable[str]) -> None:
    """Signal the SideCars of jobs; each is a child of its container's first process."""
    for job in jobs:
        for child in find_children(stage.kubelets.pids()[PODS[job]]):
            if b"dljob_sidecar" in read_proc(child, "cmdline"):
                os.kill(child, number)


def wait_aside(stage: Stage, jobs: Iterable[str], *, status: str, reason: str) -> None:
    wanted = (status, reason)
    for job in jobs:

        def is_so(job: str = job) -> bool:
            found = stage.condition(job, "SetAside")
            return (found.get("status"), found.get("reason")) == wanted

        stage.wait(is_so)


@pytest.mark.story
def test_silent_sidecars_are_ended_one_by_one_and_never_all(stage: Stage):
    before = stage.kubelets.pids()
    send(stage, signal.SIGSTOP, JOBS)
    try:
        wait_aside(stage, JOBS, status="True", reason="SideCarsSilent")
        assert "DLJob leaves the job as it is" in told(stage, JOBS[0], "SetAside")
        assert stage.kubelets.pids() == before
    finally:
        send(stage, signal.SIGCONT, JOBS)
    wait_aside(stage, JOBS, status="False", reason="Sound")
    assert stage.kubelets.pids() == before

    send(stage, signal.SIGSTOP, JOBS[:1])
    assert "its SideCar has not answered" in told(stage, JOBS[0], "PodRemoved")
    stage.wait(lambda: runs(stage, JOBS[0], f"{JOBS[0]}-2"))
    after = stage.kubelets.pids()
    assert {job: after[PODS[job]] for job in JOBS[1:]} == {
        job: before[PODS[job]] for job in JOBS[1:]
    }


@pytest.mark.parametrize("annotation", [names.HOLD, names.HOLD_ALL])
def test_annotation_of_the_namespace_holds_its_jobs(stage: Stage, annotation: str):
    path, name = f"/api/v1/namespaces/{stage.namespace}", annotation.rpartition("/")[2]

    def annotate(reason: str | None) -> None:
        stage.api.merge(path, {"metadata": {"annotations": {annotation: reason}}})

    annotate("an upgrade")
    wait_aside(stage, JOBS[1:], status="True", reason="OnHold")
    stage.submit(name, iterations=LONG, gpus={"options": [1]})
    wait_aside(stage, [name], status="True", reason="OnHold")
    assert "(an upgrade)" in stage.status(name)["message"]
    assert stage.status(name)["allocation"]["gpus"] == 0
    annotate(None)
    stage.wait(lambda: runs(stage, name, f"{name}-1"))
