"""A release on a real control plane, with its operator as a process."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.chart.helms import CHART, HOME, Helm
from tests.operator.kubelets import ROOT
from tests.operator.stages import Stage, wait_until
from tests.servers.api import Json, Refused
from tests.servers.controlplane import ControlPlane
from tests.servers.kubectl import Said
from tests.servers.processes import Guard, Server

INVALID = 422

VIRTUAL: Json = {
    "settings": {"pods": {"virtualGpus": True, "pollSeconds": 0.5, "runtimeClass": ""}}
}
"""For machines without GPUs."""


class Release:
    """``helm install`` and other commands of an administrator."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane = plane
        self._folder = folder
        self._helm = Helm(folder, plane.admin)
        self._guard = Guard()
        self._number = 0

    def close(self) -> None:
        self._guard.close()

    def install(
        self, values: Mapping[str, Any], *words: str, name: str = "dljob", namespace: str = HOME
    ) -> Said:
        place = (f"--namespace={namespace}", "--create-namespace")
        said = self._helm.try_to("install", name, CHART, *place, *words, values=values)
        if said.code == 0:
            wait_until(self._takes_jobs)
        return said

    def _takes_jobs(self) -> bool:
        """Whether the whole API server knows DLJobs; see docs/install.md."""
        job = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "any"}}
        with self.plane.api() as api, pytest.raises(Refused) as refused:
            api.post("/apis/dljob.io/v1alpha1/namespaces/default/dljobs", job, dryRun="All")
        return refused.value.code == INVALID

    def upgrade(self, values: Mapping[str, Any], chart: Path = CHART) -> Said:
        return self._helm.try_to("upgrade", "dljob", chart, f"--namespace={HOME}", values=values)

    def uninstall(self, *words: str) -> Said:
        return self._helm.try_to("uninstall", "dljob", f"--namespace={HOME}", *words)

    def find(self, path: str) -> Json:
        with self.plane.api() as api:
            return api.get(path)

    def start_operator(self, stage: Stage, *, waits: bool = False) -> Server:
        """
        Run the command of its container with its settings and account.

        Only the address of health and the folder of the store differ.
        """
        self._number += 1
        base = f"/api/v1/namespaces/{HOME}/configmaps/dljob-settings"
        file = self._folder / f"settings-{self._number}.yaml"
        file.write_text(self.find(base)["data"]["settings.yaml"])
        stage.kubeconfig = self.plane.kubeconfig_for_service_account(HOME, "dljob-operator")
        return stage.start_operator(
            waits=waits,
            program=(sys.executable, "-m", "dljob.operator", f"--config={file}"),
            settings={"namespace": HOME},
            usual=("health", "store"),
        )

    def play_ending(self) -> int:
        """Play the pod of the Job that ends all jobs; return its exit status."""
        path = f"/api/v1/namespaces/{HOME}/pods"
        with self.plane.api() as api:
            labels = "app.kubernetes.io/component=ending"
            pods: list[Json] = wait_until(lambda: api.get(path, labelSelector=labels)["items"])
            [pod] = pods
            [container] = pod["spec"]["containers"]
            kubeconfig = self.plane.kubeconfig_for_service_account(HOME, "dljob-ending")
            words: list[str] = [*container["command"], *container["args"]]
            assert words[0] == "python"
            command = ["/usr/bin/env", f"PYTHONPATH={ROOT / 'operator'}:{ROOT / 'sidecar'}"]
            command += [sys.executable, *words[1:], f"--kubeconfig={kubeconfig}"]
            process = self._guard.spawn(command, self._folder / "ending.log")
            status = process.wait(300.0)
            phase = "Failed" if status else "Succeeded"
            name = pod["metadata"]["name"]
            api.merge(f"{path}/{name}/status", {"status": {"phase": phase}})
            return status
