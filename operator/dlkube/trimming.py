"""
What is remembered of objects: with thousands of them, most of each is never read again.

Of a pod of ours its job says the same and is remembered as a whole. What is left out is named, rather than
what is kept, so that a field which is read from now on need not be added here.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

Json = Mapping[str, Any]

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


def trim(document: Json) -> dict[str, Any]:
    """Leave out who has written which field: a third of an object, and nobody here asks."""
    return {**document, "metadata": _without(document["metadata"], _BOOKS)}


def trim_pod(pod: Json) -> dict[str, Any]:
    """Leave out of a pod of ours what its job says as well."""
    spec = _without(pod.get("spec") or {}, _OF_POD)
    for kind in ("containers", "initContainers"):
        if containers := spec.get(kind):
            spec[kind] = [_without(each, _OF_CONTAINER) for each in containers]
    return {**trim(pod), "spec": spec}


def trim_node(node: Json) -> dict[str, Any]:
    """Leave out of a node its images, and when its kubelet last said that it lives."""
    status = _without(node.get("status") or {}, _OF_NODE)
    if conditions := status.get("conditions"):
        status["conditions"] = [_without(each, _HEARTBEAT) for each in conditions]
    return {**trim(node), "status": status}


def is_more_than_a_heartbeat(known: Json, shown: Json) -> bool:
    """Whether a node is another one; the kubelets of thousands say every few minutes that they live."""
    return _at_any_version(known) != _at_any_version(shown)


def _at_any_version(document: Json) -> Json:
    return {**document, "metadata": _without(document["metadata"], _VERSION)}


def _without(document: Json, left_out: Collection[str]) -> dict[str, Any]:
    return {name: each for name, each in document.items() if name not in left_out}
