"""Helm as users type it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.servers.api import Json
from tests.servers.binaries import HELM, demand
from tests.servers.kubectl import Kubectl, Said
from tests.sidecar.drivers import ROOT

CHART = ROOT / "manifests" / "chart"
HOME = "dljob-system"
LIMIT_SECONDS = 400.0
"""Helm itself waits five minutes for its hooks."""


class Helm:
    """
    Helm with a kubeconfig, or without a cluster.

    ``helm("lint", CHART)`` returns the output and raises like ``kubectl``.
    """

    def __init__(self, folder: Path, kubeconfig: Path | None = None) -> None:
        self._typed = Kubectl(
            demand(HELM)["helm"], kubeconfig or folder / "none", seconds=LIMIT_SECONDS
        )

    def __call__(self, *words: str | Path, values: Mapping[str, Any] | None = None) -> str:
        return self._typed(*words, *_values(values), stdin=_values_file(values))

    def try_to(self, *words: str | Path, values: Mapping[str, Any] | None = None) -> Said:
        return self._typed.try_to(*words, *_values(values), stdin=_values_file(values))

    def render(self, values: Mapping[str, Any] | None = None, *words: str) -> "Rendered":
        text = self(
            "template", "dljob", CHART, f"--namespace={HOME}", *words, values=dict(values or {})
        )
        return Rendered(text)


def _values(values: Mapping[str, Any] | None) -> list[str]:
    return [] if values is None else ["--values=-"]


def _values_file(values: Mapping[str, Any] | None) -> str | None:
    return None if values is None else json.dumps(values)


class Rendered:
    """Rendered documents, by kind and name."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.documents = [each for each in yaml.safe_load_all(text) if each is not None]

    def __iter__(self) -> Iterator[Json]:
        return iter(self.documents)

    def names(self, kind: str) -> set[str]:
        return {each["metadata"]["name"] for each in self if each["kind"] == kind}

    def find(self, kind: str, name: str = "dljob-operator", namespace: str = "") -> Json:
        [found] = [
            each
            for each in self
            if (each["kind"], each["metadata"]["name"]) == (kind, name)
            and namespace in ("", each["metadata"].get("namespace"))
        ]
        return found

    def pod(self, name: str = "dljob-operator", kind: str = "Deployment") -> Json:
        spec: Json = self.find(kind, name)["spec"]["template"]["spec"]
        return spec

    def settings(self) -> Json:
        text = self.find("ConfigMap", "dljob-settings")["data"]["settings.yaml"]
        settings: Json = yaml.safe_load(text)
        return settings
