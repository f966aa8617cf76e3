"""
Nodes without a kubelet: objects that say that they are ready.

A scheduler binds pods to them; what a kubelet would then report is the test's to play. The control plane
of the tests is patient with their heartbeats, so they stay ready until a test says otherwise.
"""

from collections.abc import Iterable, Mapping, Sequence

from tests.servers.api import Api, Json

PATH = "/api/v1/nodes"
USUAL: Mapping[str, str] = {"cpu": "64", "memory": "256Gi", "pods": "110"}
SINCE = "2020-01-01T00:00:00Z"


def make_node(
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    capacity: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
) -> Json:
    """
    Describe a node that is ready.

    ``capacity`` comes on top of what is usual, such as ``{"nvidia.com/gpu": "8"}``.
    """
    has = {**USUAL, **(capacity or {})}
    named = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**named, **(labels or {})}},
        "spec": {"taints": [dict(taint) for taint in taints]},
        "status": {
            "capacity": has,
            "allocatable": has,
            "conditions": [_ready("True")],
            "nodeInfo": _INFO,
        },
    }


def add_nodes(api: Api, nodes: Iterable[Json]) -> list[str]:
    """
    Create nodes, and return their names.

    Each begins with a taint that the controller-manager removes as soon as it sees that it is ready.
    """
    return [api.post(PATH, node)["metadata"]["name"] for node in nodes]


def remove_nodes(api: Api, names: Iterable[str]) -> None:
    for name in names:
        api.delete(f"{PATH}/{name}", gracePeriodSeconds=0)


def say_ready(api: Api, name: str, status: str) -> None:
    """Play a kubelet: "True", "False"; or "Unknown", as of one that is not heard of any more."""
    node = api.get(f"{PATH}/{name}")
    others = [each for each in node["status"]["conditions"] if each["type"] != "Ready"]
    patch = {"status": {"conditions": [*others, _ready(status)]}}
    api.merge(f"{PATH}/{name}/status", patch)


def is_untouchable(node: Json) -> bool:
    """Whether a taint keeps pods off that do not tolerate it."""
    effects = [taint["effect"] for taint in node["spec"].get("taints", ())]
    return any(effect in {"NoSchedule", "NoExecute"} for effect in effects)


def _ready(status: str) -> Json:
    return {
        "type": "Ready",
        "status": status,
        "reason": "Played",
        "message": "as a test wants it",
        "lastHeartbeatTime": SINCE,
        "lastTransitionTime": SINCE,
    }


_INFO = {
    "architecture": "amd64",
    "bootID": "played",
    "containerRuntimeVersion": "played://1",
    "kernelVersion": "played",
    "kubeProxyVersion": "v0.0.0",
    "kubeletVersion": "v1.36.0",
    "machineID": "played",
    "operatingSystem": "linux",
    "osImage": "played",
    "systemUUID": "played",
}
