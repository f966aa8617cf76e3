"""
A job's status names the part that is missing, and no other job is disturbed.

The stories share a stage, and end with an older definition of DLJobs.
"""

import copy
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dljob.kube.certificates import CA_SECRET
from dljob.kube.names import secret_name
from dljob.operator.jobs import crd
from tests.operator.stages import Stage, install, lasting_stage, staged
from tests.servers.api import Json
from tests.servers.controlplane import ControlPlane
from tests.servers.ports import choose_ports

pytestmark = [pytest.mark.cluster, pytest.mark.processes]


NODE, POOR_NODE = "gpu-a", "gpu-none"
POOL = "dljob.io/pool"
QUICK: dict[str, object] = {"rules.retrySeconds": 0.2}


@pytest.fixture(scope="module")
def stage(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with lasting_stage(control_plane, tmp_path_factory, {NODE: 4}) as stage:
        stage.start_operator(settings=QUICK)
        yield stage


@pytest.fixture
def poor_stage(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Stage]:
    """A stage with its own pool, of one node without GPUs."""
    with staged(control_plane, namespace, tmp_path, {POOR_NODE: 0}) as stage:
        stage.api.merge(f"/api/v1/nodes/{POOR_NODE}", {"metadata": {"labels": {POOL: "poor"}}})
        stage.start_operator(settings=QUICK | {"pool.value": "poor"})
        yield stage


def says(stage: Stage, name: str, kind: str, reason: str) -> Callable[[], str]:
    """A function that returns the message of a condition once it is false for this reason."""

    def said() -> str:
        found = stage.condition(name, kind)
        is_it = (found.get("status"), found.get("reason")) == ("False", reason)
        return str(found["message"]) if is_it else ""

    return said


def test_pool_without_gpus_is_named(poor_stage: Stage):
    poor_stage.submit("poor", iterations=50)
    message = poor_stage.wait(says(poor_stage, "poor", "Scheduled", "TooLarge"))
    assert "no node of this cluster has a GPU to give" in message
    labels = {"labels": {"dljob.io/gpu-count": "4"}}
    poor_stage.api.merge(f"/api/v1/nodes/{POOR_NODE}", {"metadata": labels})
    poor_stage.wait_for_phase("poor", "Completed")


def test_deleted_certificate_is_named_and_made_again(stage: Stage):
    secret = f"/api/v1/namespaces/{stage.namespace}/secrets/{secret_name('bare')}"
    stage.kubelets.silent.add(NODE)
    stage.submit("bare", iterations=50)
    stage.wait(lambda: any(pod["spec"].get("nodeName") for pod in stage.pods_of("bare")))
    stage.api.delete(secret)
    stage.kubelets.silent.clear()
    assert "a Secret" in stage.wait(says(stage, "bare", "Initialized", "NotStarted"))
    stage.api.delete(stage.pod_path("bare-1"))
    stage.wait_for_phase("bare", "Completed")
    assert stage.api.get(secret)["data"].keys() == {"tls.crt", "tls.key", "ca.crt"}


def test_deleted_authority_is_restored(stage: Stage):
    stage.submit("calm", iterations=10**6)
    stage.wait_for_phase("calm", "Running")
    pids = stage.kubelets.pids()
    secret = f"/api/v1/namespaces/{stage.namespace}/secrets/{CA_SECRET}"
    before = stage.api.get(secret)["data"]
    stage.api.delete(secret)

    def is_back() -> bool:
        items = stage.api.get(f"/api/v1/namespaces/{stage.namespace}/secrets")["items"]
        return any(each["metadata"]["name"] == CA_SECRET for each in items)

    stage.wait(is_back)
    assert stage.api.get(secret)["data"] == before
    stage.wait(lambda: "was deleted and is restored" in stage.operators[-1].log.read_text())
    assert stage.kubelets.pids() == pids
    assert stage.status("calm").get("restarts", 0) == 0
    stage.api.delete(stage.path("calm"))
    stage.wait(lambda: stage.is_gone("calm"))


def older() -> Json:
    """The definition before it had the requested pods."""
    document = copy.deepcopy(crd.definition())
    schema = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["status"]["properties"]["pods"]
    return document


def readiness(port: int) -> str:
    """The answer of /readyz; empty if no server listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=240.0) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return str(error.read().decode())
    except OSError:
        return ""


def test_operator_waits_for_the_present_definition(stage: Stage):
    stage.operators[-1].stop()
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd.NAME}"
    installed = stage.api.get(path)
    (port,) = choose_ports(1)
    health = {"health": f"127.0.0.1:{port}"}
    try:
        stage.api.put(path, installed | {"spec": older()["spec"]})
        operator = stage.start_operator(launches=True, settings=QUICK | health)
        missing = "does not keep status.pods"
        stage.wait(lambda: missing in readiness(port))
        assert "kubectl apply --server-side --force-conflicts -k crds" in readiness(port)
        assert missing in operator.last_words()
        stage.submit("waits", iterations=50)
        assert stage.status("waits") == {}
    finally:
        install(stage.api)
    stage.wait_for_phase("waits", "Completed")
    assert readiness(port) == "ok\n"
