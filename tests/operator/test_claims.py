"""A claim with adminAccess: a real scheduler gives it all GPUs of a node, and it holds none."""

from collections.abc import Iterator

import pytest

from tests.operator.stages import Stage, staged
from tests.servers.api import Json
from tests.sidecar.standins import build_nvml

pytestmark = [pytest.mark.cluster, pytest.mark.processes]


NODE = "gpu-a"
GPUS = 2
DRIVER = "gpu.nvidia.com"
DEVICES = "/apis/resource.k8s.io/v1"
SETTINGS = {"pods.virtualGpus": "false", "pods.gpuAccess": "dra-admin", "pace.periodSeconds": 2}
LONG = 10**6
ONE = {"gpus": {"options": [1]}}


@pytest.fixture
def stage(control_plane, namespace, tmp_path) -> Iterator[Stage]:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    with staged(control_plane, namespace, tmp_path, {NODE: GPUS}) as stage:
        folder = tmp_path / "nvml"
        folder.mkdir()
        stage.kubelets.driver = build_nvml(folder)
        allowed = {"labels": {"resource.kubernetes.io/admin-access": "true"}}
        stage.api.merge(f"/api/v1/namespaces/{namespace}", {"metadata": allowed})
        chosen = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
        class_path = f"{DEVICES}/deviceclasses"
        named = {"metadata": {"name": namespace}}
        stage.api.post(class_path, {**named, "spec": {"selectors": [chosen]}})
        whole = {"deviceClassName": namespace, "allocationMode": "All", "adminAccess": True}
        make_template(stage, "dljob-gpus", whole)
        try:
            yield stage
        finally:
            stage.api.delete(f"{class_path}/{namespace}")


def make_template(stage: Stage, name: str, exactly: Json) -> None:
    spec = {"spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}}
    path = f"{DEVICES}/namespaces/{stage.namespace}/resourceclaimtemplates"
    stage.api.post(path, {"metadata": {"name": name}, "spec": spec})


def allocations(stage: Stage) -> list[list[Json]]:
    claims = stage.api.get(f"{DEVICES}/namespaces/{stage.namespace}/resourceclaims")["items"]
    found = [(each.get("status") or {}).get("allocation") for each in claims]
    return [each["devices"]["results"] for each in found if each]


def submit_foreign(stage: Stage) -> str:
    """Submit a pod that tolerates everything and claims one GPU; return its path."""
    make_template(stage, "theirs", {"deviceClassName": stage.namespace, "count": 1})
    container = {"name": "c", "image": "c", "resources": {"claims": [{"name": "gpu"}]}}
    claim = {"name": "gpu", "resourceClaimTemplateName": "theirs"}
    spec = {
        "containers": [container],
        "resourceClaims": [claim],
        "tolerations": [{"operator": "Exists"}],
    }
    path = stage.pod_path()
    stage.api.post(path, {"metadata": {"name": "theirs", "labels": {}}, "spec": spec})
    return f"{path}/theirs"


def test_admin_claims_show_all_gpus_and_hold_none(stage: Stage):
    operator = stage.start_operator(settings=SETTINGS)
    stage.submit("first", iterations=LONG, **ONE)
    # No pod can be bound before a driver offers GPUs.
    stage.wait(
        lambda: "no DRA driver offers GPUs there" in stage.status("first").get("message", "")
    )
    devices = [{"name": f"gpu-{number}"} for number in range(GPUS)]
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": devices}
    slices = f"{DEVICES}/resourceslices"
    stage.api.post(slices, {"metadata": {"name": stage.namespace}, "spec": spec})
    try:
        stage.submit("second", iterations=LONG, **ONE)
        for name in ("first", "second"):
            stage.wait_for_phase(name, "Running")
        given = allocations(stage)
        assert [len(results) for results in given] == [GPUS, GPUS], "each sees all of them"
        assert all(each["adminAccess"] for results in given for each in results)
        # The scheduler also gives these GPUs to claims of others, so the jobs leave.
        theirs = submit_foreign(stage)
        stage.wait(lambda: "has GPUs by the ResourceClaim" in operator.log.read_text())
        stage.wait(lambda: not stage.kubelets.pids())
        for name in ("first", "second"):
            assert stage.phase(name) != "Running"
        stage.api.delete(theirs, gracePeriodSeconds=0)
        for name in ("first", "second"):
            stage.wait_for_phase(name, "Running")
    finally:
        stage.api.delete(f"{slices}/{stage.namespace}")
