"""GPUs that other programs use, and GPUs whose indices shift after the death of one."""

from collections.abc import Iterator

import pytest

from tests.operator.stages import Stage, staged
from tests.operator.test_gpus import known, place_of, said, why_out
from tests.servers.api import Api
from tests.sidecar.standins import StandIn, Witness, build_nvml, consume

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

A = "gpu-a"
SETTINGS = {"pods.virtualGpus": "false"}


@pytest.fixture
def stage(control_plane, namespace, tmp_path) -> Iterator[Stage]:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    with staged(control_plane, namespace, tmp_path, {A: 3}) as stage:
        stage.kubelets.machines = tmp_path / "machines"
        (stage.kubelets.machines / A).mkdir(parents=True)
        stage.kubelets.driver = build_nvml(stage.kubelets.machines)
        yield stage


@pytest.fixture
def machine(stage) -> StandIn:
    machine = StandIn(stage.kubelets.machines / A)
    machine.count(3)
    return machine


def submit(stage: Stage, name: str, *options: int) -> None:
    """Submit a job that uses GPU memory by CUDA, and can stop at any time."""
    job = stage.make_job(name, iterations=10**6)
    job["spec"]["gpus"] = {"options": list(options)}
    job["spec"]["checkpoint"] = {"trusted": True, "graceSeconds": 1}
    container = job["spec"]["template"]["spec"]["containers"][0]
    container["command"] = list(consume(700, name))
    stage.api.post(stage.path(), job)


def relabel(api: Api, gpus: int) -> None:
    labels = {"metadata": {"labels": {"dljob.io/gpu-count": str(gpus)}}}
    api.merge(f"/api/v1/nodes/{A}", labels)


def test_occupied_gpu_is_out_until_it_is_seen_empty(stage, machine):
    (machine.folder / "memory-1").write_text("700")
    operator = stage.start_operator(settings=SETTINGS)
    with Witness(machine) as witness:
        submit(stage, "job", 2, 3)
        stage.wait(lambda: machine.users().keys() == {0, 2})
        stage.wait_for_phase("job", "Running")
        assert place_of(stage, "job") == {A: [0, 2]}
        assert stage.status("job")["failures"] == 0
        why = "it is not empty: GPU 1 (GPU-standin-1): 700 MiB of it are in use by others"
        stage.wait(lambda: why_out(stage, A, "1") == why)
        assert f"GPU {A}/1 gets no jobs: {why}" in said(operator)
        stage.wait(lambda: any(reason == "GPUNotEmpty" for reason, _ in stage.events("job")))
        # It is seen empty, and the job grows.
        (machine.folder / "memory-1").unlink()
        stage.wait(lambda: machine.users().keys() == {0, 1, 2})
        stage.wait(lambda: why_out(stage, A, "1") == "")
        assert f"GPU {A}/1 gets jobs again" in said(operator)
    assert (witness.shared, witness.looks > 0) == ({}, True)


def test_dead_gpu_shifts_no_job_to_a_neighbours_gpu(stage, machine):
    """Without UUIDs on the wire, the new job would get index 1 and use a neighbour's GPU."""
    stage.start_operator(settings=SETTINGS)
    with Witness(machine) as witness:
        for name in ("a", "b", "c"):
            submit(stage, name, 1)
            stage.wait_for_phase(name, "Running")
        stage.wait(lambda: machine.users().keys() == {0, 1, 2})
        places = {place_of(stage, name)[A][0]: name for name in ("a", "b", "c")}
        stage.api.delete(stage.path(places[1]))
        stage.wait(lambda: stage.is_gone(places[1]))
        machine.set("gone-1")
        submit(stage, "late", 1)
        stage.wait(lambda: any(reason == "GPUsVanished" for reason, _ in stage.events("late")))
        # The other containers have it open, and tell nothing about new ones.
        stage.wait(lambda: "a new SideCar on its node does not see" in why_out(stage, A, "1"))

        # The node has fewer GPUs than before: those left keep their numbers and jobs.
        relabel(stage.api, 2)
        names = {"0": "GPU-standin-0", "2": "GPU-standin-2"}
        stage.wait(lambda: known(stage)[A]["uuids"] == names)
        for number in (0, 2):
            assert place_of(stage, places[number]) == {A: [number]}
            assert stage.status(places[number])["restarts"] == 0

        # The next operator knows the numbers, and a new job gets the right device.
        stage.api.delete(stage.path(places[2]))
        stage.wait(lambda: machine.users().keys() == {0, 2})
        stage.wait_for_phase("late", "Running")
        assert place_of(stage, "late") == {A: [2]}
    assert (witness.shared, witness.looks > 0) == ({}, True)
