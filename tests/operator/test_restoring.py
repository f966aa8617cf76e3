"""Trainings go on after the control plane was restored from a backup."""

from functools import partial
from pathlib import Path

import pytest

from dljob.kube.leases import RISEN
from tests.operator.stages import Stage, staged
from tests.operator.visitors import Visitor
from tests.servers.controlplane import ControlPlane
from tests.servers.namespaces import make_namespace, remove_namespace

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

ONE = {"gpus": {"options": [1]}}
LONG = 10**6


def test_trainings_survive_a_restored_control_plane(control_plane: ControlPlane, tmp_path: Path):
    with control_plane.api() as api:
        namespace = make_namespace(api)
        with staged(control_plane, namespace, tmp_path, {"gpu-b": 2}) as stage:
            live_through_a_restore(stage)
        remove_namespace(api, namespace)


def live_through_a_restore(stage: Stage) -> None:
    """Restore the Lease and a job from before the last operators, but not its pod."""
    stage.start_operator()
    stage.submit("stays", iterations=LONG, **ONE)
    stage.wait_for_phase("stays", "Running")
    [found] = stage.pods_of("stays")
    pod = found["metadata"]["name"]
    for epoch in (2, 3):
        stage.operators[-1].stop()
        stage.start_operator()
        stage.wait(partial(is_stamped, stage, pod, epoch))
    stage.operators[-1].stop()
    trainings = stage.kubelets.trainings(pod)
    lease = stage.lease()
    stage.api.merge(lease, {"spec": {"leaseTransitions": 1}})
    stage.api.merge(f"{stage.path('stays')}/status", {"status": {"epoch": 1}})
    operator = stage.start_operator()
    stage.wait(partial(is_stamped, stage, pod, 4))
    assert "goes on in epoch 4" in operator.log.read_text()
    risen = stage.api.get(lease)
    assert risen["spec"]["leaseTransitions"] == 4
    assert "restored from a backup" in risen["metadata"]["annotations"][RISEN]
    stage.wait_for_phase("stays", "Running")
    status = stage.status("stays")
    assert (status.get("restarts", 0), status.get("failures", 0)) == (0, 0)
    assert stage.kubelets.trainings(pod) == trainings
    assert operator.is_running
    stage.api.delete(stage.path("stays"))
    stage.wait(partial(stage.is_gone, "stays"))


def is_stamped(stage: Stage, pod: str, epoch: int) -> bool:
    """Whether the SideCar of a pod obeys the operator of this epoch."""
    own = stage.kubelets.folder / pod / "tls"
    return Visitor(stage, pod, own).state().epoch == epoch
