"""Users of a cluster, and the command as they type it."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from dljob.kube import names
from tests.ctl.running import Command, Result
from tests.operator.kubelet_doors import KubeletServer
from tests.operator.kubelets import ROOT
from tests.operator.stages import Stage
from tests.servers.api import Api
from tests.servers.controlplane import ControlPlane

RIGHTS = ROOT / "manifests" / "install" / "rbac.yaml"
NODES = {"gpu-a": 4, "gpu-b": 2}


@dataclass
class Scene:
    """A stage with an operator at work, whose kubelets serve logs and commands."""

    stage: Stage
    door: KubeletServer
    users: dict[str, Path] = field(default_factory=dict)

    @property
    def namespace(self) -> str:
        return self.stage.namespace

    def user(self, name: str, *roles: str) -> Path:
        """Find the kubeconfig of a user who has these roles in the namespace, or make it."""
        if name not in self.users:
            self.users[name] = make_user(self.stage.plane, self.namespace, name, roles)
        return self.users[name]


def in_namespace(kubeconfig: Path, namespace: str) -> Path:
    """Write a kubeconfig once more, with this namespace in its context."""
    document = json.loads(kubeconfig.read_text(encoding="utf-8"))
    document["contexts"][0]["context"]["namespace"] = namespace
    path = kubeconfig.with_name(f"{kubeconfig.stem}-{namespace}.kubeconfig")
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def make_user(plane: ControlPlane, namespace: str, name: str, roles: tuple[str, ...]) -> Path:
    """Make a service account that is bound to these ClusterRoles in its namespace."""
    with plane.api() as api:
        api.post(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
        for role in roles:
            _bind(api, namespace, name, role)
    return in_namespace(plane.kubeconfig_for_service_account(namespace, name), namespace)


def _bind(api: Api, namespace: str, name: str, role: str) -> None:
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    api.post(
        f"{rbac}/namespaces/{namespace}/rolebindings",
        {
            "metadata": {"name": f"{name}-{role}"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": role,
            },
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        },
    )


def install_roles(api: Api) -> None:
    for document in yaml.safe_load_all(RIGHTS.read_text(encoding="utf-8")):
        name = document["metadata"]["name"]
        if document["kind"] == "ClusterRole" and name != "dljob-operator":
            path = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{name}"
            api.apply(path, document, manager="test", force="true")


class User:
    """A user with a kubeconfig, at a terminal."""

    def __init__(
        self, dljob: Command, kubeconfig: Path, folder: Path, patch: pytest.MonkeyPatch
    ) -> None:
        self._dljob = dljob
        self._folder = folder
        self._environment = {"KUBECONFIG": str(kubeconfig), "HOME": str(folder)}
        self._patch = patch

    def __call__(self, *words: object, env: Mapping[str, str] | None = None) -> Result:
        with self._patch.context() as patched:
            for name in ("DLJOB_STATE", "DLJOB_PLATFORM", "XDG_STATE_HOME"):
                patched.delenv(name, raising=False)
            for name, value in {**self._environment, **(env or {})}.items():
                patched.setenv(name, value)
            return self._dljob(*words)

    def environment(self) -> dict[str, str]:
        ours = {**os.environ, **self._environment, "PYTHONPATH": os.pathsep.join(sys.path)}
        return {name: value for name, value in ours.items() if name != "DLJOB_STATE"}

    def file(self, *documents: Any, name: str = "jobs.yaml") -> Path:
        path = self._folder / name
        path.write_text("---\n".join(map(yaml.safe_dump, documents)), encoding="utf-8")
        return path


def home_of(stage: Stage) -> dict[str, str]:
    """Say where the operator of a stage is at home, which is not where the install puts it."""
    return {"DLJOB_OPERATOR_NAMESPACE": stage.namespace}


def path_of(namespace: str, name: str, sub: str = "") -> str:
    base = f"/apis/{names.GROUP}/{names.VERSION}/namespaces/{namespace}/{names.PLURAL}/{name}"
    return f"{base}/{sub}" if sub else base
