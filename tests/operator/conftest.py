"""The shared control plane with the custom resource, installed as by a user."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from dljob.operator.jobs import crd
from tests.operator.stages import Stage, staged, wait_for_crd, wait_until
from tests.servers.api import Api
from tests.servers.controlplane import ControlPlane
from tests.servers.kubectl import Kubectl
from tests.servers.namespaces import wait_for_ends

ROOT = Path(__file__).resolve().parents[2]
CRDS = ROOT / "crds"


def install_crd(plane: ControlPlane) -> None:
    """Install the custom resource, and wait until jobs can be created."""
    plane.kubectl("apply", "-f", CRDS / "dljobs.dljob.io.yaml")
    with plane.api() as api:
        wait_for_crd(api)
    # kubectl caches the resources of a server for hours; `api-resources` renews the cache.
    short = crd.definition()["spec"]["names"]["shortNames"][0]
    wait_until(lambda: short in plane.kubectl("api-resources", "--api-group=dljob.io").split())


@pytest.fixture(scope="session")
def cluster(control_plane: ControlPlane) -> ControlPlane:
    install_crd(control_plane)
    return control_plane


@pytest.fixture(scope="module")
def api(cluster: ControlPlane) -> Iterator[Api]:
    with cluster.api() as api:
        yield api


@pytest.fixture
def kubectl(cluster: ControlPlane, namespace: str) -> Kubectl:
    return cluster.kubectl.in_namespace(namespace)


@pytest.fixture
def stage(
    request: pytest.FixtureRequest, control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> Iterator[Stage]:
    """A stage with the module's ``NODES``, by default one node with four GPUs."""
    nodes = getattr(request.module, "NODES", {"gpu-a": 4})
    with staged(control_plane, namespace, tmp_path, nodes) as stage:
        yield stage


TOLERANT = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "tolerant", "namespace": "default"},
    "spec": {
        "containers": [{"name": "c", "image": "c"}],
        "tolerations": [{"key": "dljob.io/pool", "operator": "Exists"}],
    },
}
"""An object that only the operator may create once the policies are in force."""


@pytest.fixture(scope="module")
def installed(cluster: ControlPlane) -> Iterator[ControlPlane]:
    """
    The shared control plane with DLJob, installed as by a user.

    The policies are in force for one module only: they would refuse the operators of other modules,
    which run as the administrator.
    """
    with cluster.api() as api:
        # The namespace may still be terminating.
        wait_for_ends(api)
    kubectl = cluster.kubectl
    folders = [ROOT / "manifests" / part for part in ("install", "holding")]
    for folder in folders:
        kubectl("apply", "--server-side", "--force-conflicts", "-k", folder)
    # Its pods would be bound to the nodes of tests, where no kubelet ends them.
    kubectl("scale", "-n", "dljob-system", "deployment/dljob-operator", "--replicas=0")
    command = ("create", "--dry-run=server", "-f", "-")
    wait_until(lambda: kubectl.try_to(*command, stdin=json.dumps(TOLERANT)).code)
    yield cluster
    for folder in folders:
        documents = yaml.safe_load_all(kubectl("kustomize", folder))
        ours = [each for each in documents if each["kind"] != "CustomResourceDefinition"]
        everything = json.dumps({"apiVersion": "v1", "kind": "List", "items": ours})
        kubectl("delete", "--ignore-not-found", "--wait=false", "-f", "-", stdin=everything)
    wait_until(lambda: not kubectl.try_to(*command, stdin=json.dumps(TOLERANT)).code)
