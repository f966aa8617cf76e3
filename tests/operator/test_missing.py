"""
A job's status names what the job misses, and nothing else is disturbed.

The stories share a stage, and end with an operator that finds an older definition of DLJobs.
"""

import copy
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dljob.kube.certificates import CA_SECRET
from dljob.kube.names import secret_name
from dljob.operator.jobs import crd
from tests.operator.stages import Stage, install, staged
from tests.servers.controlplane import ControlPlane
from tests.servers.namespaces import make_namespace, remove_namespace
from tests.servers.ports import choose_ports

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

Json = dict[str, Any]

NODE, POOR_NODE = "gpu-a", "gpu-none"
POOL = "dljob.io/pool"
QUICK: dict[str, object] = {"rules.retrySeconds": 0.2}


@pytest.fixture(scope="module")
def stage(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("missing")
    with control_plane.api() as api:
        namespace = make_namespace(api)
        with staged(control_plane, namespace, folder, {NODE: 4}) as stage:
            stage.start_operator(settings=QUICK)
            yield stage
        remove_namespace(api, namespace)


@pytest.fixture
def poor_stage(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Stage]:
    """One with a pool of its own, of a node that has no GPU yet."""
    with staged(control_plane, namespace, tmp_path, {POOR_NODE: 0}) as stage:
        stage.api.merge(f"/api/v1/nodes/{POOR_NODE}", {"metadata": {"labels": {POOL: "poor"}}})
        stage.start_operator(settings=QUICK | {"pool.value": "poor"})
        yield stage


def condition(stage: Stage, name: str, kind: str) -> Json:
    found = stage.status(name).get("conditions", ())
    return next((each for each in found if each["type"] == kind), {})


def says(stage: Stage, name: str, kind: str, reason: str) -> Callable[[], str]:
    """Return the message of a condition, once it is false for this reason."""

    def said() -> str:
        found = condition(stage, name, kind)
        is_it = (found.get("status"), found.get("reason")) == ("False", reason)
        return str(found["message"]) if is_it else ""

    return said


def test_a_pool_without_gpus_is_told_to_who_waits(poor_stage: Stage):
    poor_stage.submit("poor", iterations=50)
    told = says(poor_stage, "poor", "Scheduled", "TooLarge")
    message = poor_stage.wait(told)
    assert "no node of this cluster has a GPU to give" in message
    labels = {"labels": {"dljob.io/gpu-count": "4"}}
    poor_stage.api.merge(f"/api/v1/nodes/{POOR_NODE}", {"metadata": labels})
    poor_stage.wait_for_phase("poor", "Completed")


def test_a_deleted_certificate_is_told_and_made_anew_with_the_next_pod(stage: Stage):
    secret = f"/api/v1/namespaces/{stage.namespace}/secrets/{secret_name('bare')}"
    stage.kubelets.silent.add(NODE)
    stage.submit("bare", iterations=50)
    stage.wait(lambda: any(pod["spec"].get("nodeName") for pod in stage.pods_of("bare")))
    stage.api.delete(secret)
    stage.kubelets.silent.clear()
    message = stage.wait(says(stage, "bare", "Initialized", "NotStarted"))
    assert "a Secret" in message
    stage.api.delete(f"/api/v1/namespaces/{stage.namespace}/pods/bare-1")
    stage.wait_for_phase("bare", "Completed")
    assert stage.api.get(secret)["data"].keys() == {"tls.crt", "tls.key", "ca.crt"}


def test_a_deleted_authority_is_put_back_and_nothing_is_disturbed(stage: Stage):
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
    """The definition as it was before the pods that were asked for were kept."""
    document = copy.deepcopy(crd.definition())
    schema = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["status"]["properties"]["pods"]
    return document


def readiness(port: int) -> str:
    """Return the answer of /readyz; empty if no server listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=240.0) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return str(error.read().decode())
    except OSError:
        return ""


def test_an_older_definition_is_not_written_to_and_told_until_it_is_of_this_version(stage: Stage):
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
