"""The shared control plane, with the custom resource installed as a user installs it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dloperator.jobs import crd
from tests.operator.stages import wait_for_crd, wait_until
from tests.servers.controlplane import ControlPlane
from tests.servers.kubectl import Kubectl

ROOT = Path(__file__).resolve().parents[2]
CRDS = ROOT / "crds"


def install_crd(plane: ControlPlane) -> None:
    """Install the custom resource, and return when jobs can be created."""
    plane.kubectl("apply", "-f", CRDS / "dljobs.dljob.io.yaml")
    with plane.api() as api:
        wait_for_crd(api)
    # kubectl caches the resources of a server for hours; `api-resources` renews the cache.
    short = crd.definition()["spec"]["names"]["shortNames"][0]
    wait_until(lambda: short in plane.kubectl("api-resources", "--api-group=dljob.io").split())


@pytest.fixture(scope="session")
def cluster(control_plane: ControlPlane) -> ControlPlane:
    """The shared control plane, which knows what a DLJob is."""
    install_crd(control_plane)
    return control_plane


@pytest.fixture
def kubectl(cluster: ControlPlane, namespace: str) -> Kubectl:
    """A user's kubectl, in the namespace of this test."""
    return cluster.kubectl.in_namespace(namespace)


TOLERANT = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "tolerant", "namespace": "default"},
    "spec": {
        "containers": [{"name": "c", "image": "c"}],
        "tolerations": [{"key": "dljob.io/pool", "operator": "Exists"}],
    },
}
"""The objects that only the operator may create as soon as the policies are in force."""


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane on which DLJob is installed as a user installs it, and its policies are in force."""
    with ControlPlane(tmp_path_factory.mktemp("installed")) as plane:
        for part in ("install", "holding"):
            plane.kubectl("apply", "--server-side", "-k", ROOT / "manifests" / part)
        command = ("create", "--dry-run=server", "-f", "-")
        wait_until(lambda: plane.kubectl.try_to(*command, stdin=json.dumps(TOLERANT)).code)
        yield plane
