"""A cluster with an operator, and users who type ``dljob``; one for all tests of a module."""

import os

import pytest

from tests.ctl.cluster.playing import NODES, Scene, User, in_namespace, install_roles
from tests.operator.kubelet_doors import served
from tests.operator.stages import staged
from tests.servers.namespaces import make_namespace, remove_namespace


@pytest.fixture(scope="module")
def scene(control_plane, tmp_path_factory):
    folder = tmp_path_factory.mktemp("scene")
    with control_plane.api() as api:
        install_roles(api)
        namespace = make_namespace(api)
        with (
            staged(control_plane, namespace, folder, NODES) as stage,
            served(stage.kubelets, api, NODES, folder / "door") as door,
        ):
            stage.start_operator()
            yield Scene(stage, door)
        remove_namespace(api, namespace)


@pytest.fixture
def as_user(dljob, tmp_path, monkeypatch):
    def become(kubeconfig):
        return User(dljob, kubeconfig, tmp_path, monkeypatch)

    return become


@pytest.fixture
def ada(scene, as_user, monkeypatch):
    folder = scene.stage.plane.kubectl.folder
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return as_user(in_namespace(scene.stage.plane.admin, scene.namespace))
