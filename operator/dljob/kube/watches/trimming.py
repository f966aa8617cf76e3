"""
Trims objects for the mirrors, because most of each is never read, and thousands are kept.

A pod of a job can be trimmed most, because the job holds the same and is kept whole. The lists name the fields to drop,
so that code may begin to read another field without a change here.
"""

import sys
from collections.abc import Collection
from typing import Any, Final

from dljob.kube.documents import Json, NodeDocument, PodDocument

_BOOKS: Final = frozenset({"managedFields"})
_VERSION: Final = frozenset({"resourceVersion"})
_HEARTBEAT: Final = frozenset({"lastHeartbeatTime"})
_OF_NODE: Final = frozenset({"daemonEndpoints", "images", "volumesAttached", "volumesInUse"})
_OF_POD: Final = frozenset({"affinity", "imagePullSecrets", "tolerations", "volumes"})
_OF_CONTAINER: Final = frozenset(
    {
        "args",
        "command",
        "env",
        "envFrom",
        "lifecycle",
        "livenessProbe",
        "readinessProbe",
        "startupProbe",
        "terminationMessagePath",
        "terminationMessagePolicy",
        "volumeMounts",
    }
)

LONGEST_SHARED: Final = 64
"""Longer texts, such as scripts and messages, seldom occur twice."""


def trim(document: Json) -> dict[str, Any]:
    """Drop the managed fields, which take a third of an object."""
    return _with_shared_texts({**document, "metadata": _without(document["metadata"], _BOOKS)})


def trim_pod(pod: PodDocument) -> dict[str, Any]:
    """Drop the parts of a pod that its job holds as well."""
    spec = _without(pod.get("spec") or {}, _OF_POD)
    for kind in ("containers", "initContainers"):
        if containers := spec.get(kind):
            spec[kind] = [_without(each, _OF_CONTAINER) for each in containers]
    return trim({**pod, "spec": spec})


def trim_node(node: NodeDocument) -> dict[str, Any]:
    """Drop the images and the heartbeats of a node."""
    status = _without(node.get("status") or {}, _OF_NODE)
    if conditions := status.get("conditions"):
        status["conditions"] = [_without(each, _HEARTBEAT) for each in conditions]
    return trim({**node, "status": status})


def is_more_than_a_heartbeat(known: NodeDocument, shown: NodeDocument) -> bool:
    """True if more than the heartbeat of a node has changed."""
    return _at_any_version(known) != _at_any_version(shown)


def _at_any_version(document: Json) -> Json:
    return {**document, "metadata": _without(document["metadata"], _VERSION)}


def _without(document: Json, left_out: Collection[str]) -> dict[str, Any]:
    return {name: each for name, each in document.items() if name not in left_out}


def _with_shared_texts(document: Json) -> dict[str, Any]:
    """
    Return a copy that shares names and short texts with all other documents.

    Each answer of the API server has its own copies; shared, a job and its pod take half of the memory.
    """
    return {sys.intern(name): _share(each) for name, each in document.items()}


def _share(value: Any) -> Any:
    if isinstance(value, str):
        return sys.intern(value) if len(value) <= LONGEST_SHARED else value
    if isinstance(value, dict):
        return _with_shared_texts(value)
    if isinstance(value, list):
        return [_share(each) for each in value]
    return value
