"""
Whether the GPUs of a node are DLJob's to give, and why not.

A label alone makes no node ours: it says that an administrator wants it to be. In the mode
``dedicated`` nothing counts the GPUs, so nothing may offer them to others either; in the mode
``reserve`` the placeholder holds what the device plugin offers, and no other way may be there.

Pure.
"""

from typing import Final, NamedTuple

from dlcore.documents.rules.podrules import is_gpu_resource
from dlkube.constraints.reaching import Reaching
from dlkube.documents import Json

KEEPS_OFF: Final = ("NoSchedule", "NoExecute")


class OwnershipRules(NamedTuple):
    """How pods of ours come to nodes and to GPUs, and so which ways are not for others."""

    taint: str
    """The key of the taint of the pool; empty where none is wanted."""
    runtime_class: str
    by_driver: bool = False
    """Whether a DRA driver shows GPUs to our pods, so that it has to be there."""


def why_not_dedicated(node: Json, reaching: Reaching, rules: OwnershipRules) -> str:
    """Say why a node is not ours in the mode ``dedicated``; empty if it is."""
    name = node["metadata"]["name"]
    if rules.taint and not _has_taint(node, rules.taint):
        return (
            f"it lacks the taint {rules.taint}, which keeps other pods off its GPUs; set it with"
            f" kubectl taint node {name} {rules.taint}=:NoSchedule"
        )
    if resource := _offered(node):
        return (
            f"its device plugin offers {resource} to all pods, and pool.mode is dedicated; keep the"
            f" plugin off this node, or set pool.mode to reserve"
        )
    return _why_open(name, reaching, rules=rules) or why_used(
        node, reaching, rules=rules, by_requests=True
    )


def why_not_reserved(node: Json, reaching: Reaching, rules: OwnershipRules) -> str:
    """Say why a node whose GPUs a placeholder holds is not ours all the same; empty if it is."""
    name = node["metadata"]["name"]
    return _why_open(name, reaching, rules=rules) or why_used(
        node, reaching, rules=rules, by_requests=False
    )


def why_used(node: Json, reaching: Reaching, *, rules: OwnershipRules, by_requests: bool) -> str:
    """Say which pod of others has a way to its GPUs; empty if none has."""
    why = reaching.why_reached(
        node["metadata"]["name"], rules.runtime_class, by_requests=by_requests
    )
    return f"{why}; it has to end first" if why else ""


def _why_open(node: str, reaching: Reaching, *, rules: OwnershipRules) -> str:
    driver = reaching.driver_on(node)
    if rules.by_driver and not driver:
        return (
            "no DRA driver offers GPUs there (kubectl get resourceslices), and pods.gpuAccess is dra-admin; run the"
            " driver on this node, or set pods.gpuAccess to runtimeClass or cdi"
        )
    if rules.by_driver or not driver:
        return ""
    return (
        f"the DRA driver {driver} offers its GPUs to all pods (kubectl get resourceslices); keep the"
        f" driver off this node, or set pods.gpuAccess to dra-admin"
    )


def _has_taint(node: Json, key: str) -> bool:
    taints = (node.get("spec") or {}).get("taints") or ()
    return any(each.get("key") == key and each.get("effect") in KEEPS_OFF for each in taints)


def _offered(node: Json) -> str:
    """Name a resource by which Kubernetes gives GPUs of a node away; empty if it gives none."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    offered = (
        name for name, count in allocatable.items() if is_gpu_resource(name) and str(count) != "0"
    )
    return next(offered, "")
