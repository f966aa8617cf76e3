"""Jobs for tests of the custom resource: good, changed and completed wrong ones."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from dljob.core.documents.jobschema import API_VERSION, KIND
from dljob.kube.names import GROUP, PLURAL, VERSION
from tests.servers.api import Api, Json

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "manifests" / "examples").glob("*.yaml"))
DATA = ROOT / "tests" / "core" / "data"
WRONG_JOBS = sorted((DATA / "wrong_jobs").glob("*.yaml"))
GOOD_JOBS = sorted((DATA / "good_jobs").glob("*.yaml"))
AS_IT_IS = "# to be run for real"
"""Marks a wrong job whose fault is a missing field, so that it is not completed."""

TEMPLATE: Json = {
    "spec": {"containers": [{"name": "trainer", "image": "x", "command": ["python", "train.py"]}]}
}
LEAST: Json = {
    "gpus": {"options": [1, 2]},
    "training": {"iterations": 1000},
    "progress": {"http": True},
    "template": TEMPLATE,
}


def path_of(namespace: str, name: str = "", part: str = "") -> str:
    """The path of jobs, of one job, or of a part of it (``status``)."""
    jobs = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}"
    return "/".join(word for word in (jobs, name, part) if word)


def make_manifest(name: str, **spec: Any) -> Json:
    """The smallest job, with fields of its spec; None removes one."""
    fields = {key: value for key, value in {**LEAST, **spec}.items() if value is not None}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": fields}


def merged(document: Any, patch: Any) -> Any:
    """Apply a merge patch: None removes a field."""
    if not isinstance(patch, dict):
        return patch
    old = document if isinstance(document, dict) else {}
    changed = {name: merged(old.get(name), value) for name, value in patch.items()}
    return {name: value for name, value in {**old, **changed}.items() if value is not None}


def read_jobs(path: Path) -> list[Json]:
    """The jobs of a file, without its other objects."""
    documents = yaml.safe_load_all(path.read_text(encoding="utf-8"))
    return [each for each in documents if each["kind"] == KIND]


def read_completed(path: Path) -> Any:
    """Read a job for a simulation, and complete it for a real run."""
    text = path.read_text(encoding="utf-8")
    document = yaml.safe_load(text)
    return document if AS_IT_IS in text else completed(document)


def completed(document: Any) -> Any:
    """Give a job a template and a progress pattern, and remove its namespace."""
    if not isinstance(document, dict):
        return document
    metadata, spec = document.get("metadata"), document.get("spec")
    if isinstance(metadata, dict) and "/" not in str(metadata.get("namespace")):
        metadata.pop("namespace", None)
    if isinstance(spec, dict):
        if "template" not in spec:
            document["spec"] = spec = {"progress": LEAST["progress"], "template": TEMPLATE, **spec}
        for auxiliary in iter_auxiliaries(spec):
            containers = [{"name": "server", "image": "x"}]
            auxiliary.setdefault("template", {"spec": {"containers": containers}})
    return document


def iter_auxiliaries(spec: Json) -> Iterator[Json]:
    auxiliaries = spec.get("auxiliaries")
    for auxiliary in auxiliaries if isinstance(auxiliaries, list) else ():
        if isinstance(auxiliary, dict):
            yield auxiliary


def set_phase(api: Api, namespace: str, name: str, phase: str) -> None:
    api.merge(path_of(namespace, name, "status"), {"status": {"phase": phase}})
