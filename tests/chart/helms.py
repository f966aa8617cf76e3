"""Helm as a user types it."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.servers.binaries import HELM, demand
from tests.servers.kubectl import Said
from tests.sidecar.drivers import ROOT

CHART = ROOT / "manifests" / "chart"
LIMIT_SECONDS = 120.0
HOME = "dljob-system"

Json = dict[str, Any]


class HelmFailed(Exception):
    """It ended with an error; the message is what it said."""


class Helm:
    """
    Commands in the name of a kubeconfig's user, or of nobody, who has no cluster.

    ``helm("lint", CHART)`` returns what it prints and raises :class:`HelmFailed`.
    """

    def __init__(self, home: Path, kubeconfig: Path | None = None) -> None:
        self._program = demand(HELM)["helm"]
        theirs = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        self._environment = theirs | {
            "HOME": str(home),
            "KUBECONFIG": str(kubeconfig or home / "none"),
        }

    def __call__(self, *words: str | Path, values: Mapping[str, Any] | None = None) -> str:
        said = self.try_to(*words, values=values)
        if said.code != 0:
            raise HelmFailed(said.err.strip() or said.out.strip())
        return said.out

    def try_to(self, *words: str | Path, values: Mapping[str, Any] | None = None) -> Said:
        """Run a command, perhaps with a file of values."""
        given = ["--values=-"] if values is not None else []
        ran = subprocess.run(
            [self._program, *words, *given],
            input=json.dumps(values) if values is not None else None,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_SECONDS,
        )
        return Said(ran.returncode, ran.stdout, ran.stderr)

    def render(self, values: Mapping[str, Any] | None = None, *words: str) -> "Rendered":
        """Return what would be installed."""
        text = self(
            "template", "dljob", CHART, f"--namespace={HOME}", *words, values=dict(values or {})
        )
        return Rendered(text)


class Rendered:
    """Documents, by kind and name."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.documents = [each for each in yaml.safe_load_all(text) if each is not None]

    def __iter__(self) -> Iterator[Json]:
        return iter(self.documents)

    def names(self, kind: str) -> set[str]:
        return {each["metadata"]["name"] for each in self if each["kind"] == kind}

    def find(self, kind: str, name: str = "dljob-operator", namespace: str = "") -> Json:
        """Return the only one of this kind and name."""
        [found] = [
            each
            for each in self
            if (each["kind"], each["metadata"]["name"]) == (kind, name)
            and namespace in ("", each["metadata"].get("namespace"))
        ]
        return found

    def pod(self, name: str = "dljob-operator", kind: str = "Deployment") -> Json:
        """Return the template's spec."""
        spec: Json = self.find(kind, name)["spec"]["template"]["spec"]
        return spec

    def settings(self) -> Json:
        """Return what the operator will be set to."""
        text = self.find("ConfigMap", "dljob-settings")["data"]["settings.yaml"]
        settings: Json = yaml.safe_load(text)
        return settings
