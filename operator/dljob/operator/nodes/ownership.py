"""
Decides whether DLJob may give the GPUs of a node to jobs.

A label alone is not enough: it only says that an administrator wants that. In the mode ``dedicated`` Kubernetes does
not count the GPUs, so nothing may offer them to other pods; in the mode ``reserve`` the placeholder holds all that the
device plugin offers, and other pods may not reach the GPUs in another way.

Pure.
"""

from typing import Final, NamedTuple

from dljob.core.documents.rules.podrules import is_gpu_resource
from dljob.kube.constraints.reaching import Reaching
from dljob.kube.documents import Json

KEEPS_OFF: Final = ("NoSchedule", "NoExecute")


class OwnershipRules(NamedTuple):
    """The ways of our pods to nodes and to GPUs, which other pods may not use."""

    taint: str
    """The key of the pool's taint; empty if none is required."""
    runtime_class: str
    by_driver: bool = False
    """True if a DRA driver shows GPUs to our pods, and so has to run on the node."""


def why_not_dedicated(node: Json, reaching: Reaching, *, rules: OwnershipRules) -> str:
    """Return the reason why a node is not ours in the mode ``dedicated``; empty if it is."""
    name = node["metadata"]["name"]
    taints = (node.get("spec") or {}).get("taints") or ()
    if rules.taint and not any(
        each.get("key") == rules.taint and each.get("effect") in KEEPS_OFF for each in taints
    ):
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


def why_not_reserved(node: Json, reaching: Reaching, *, rules: OwnershipRules) -> str:
    """Return the reason why a node is not ours although a placeholder holds its GPUs; empty if it is."""
    name = node["metadata"]["name"]
    return _why_open(name, reaching, rules=rules) or why_used(
        node, reaching, rules=rules, by_requests=False
    )


def why_used(node: Json, reaching: Reaching, *, rules: OwnershipRules, by_requests: bool) -> str:
    """Name another owner's pod that reaches the GPUs of a node; empty if none does."""
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


def _offered(node: Json) -> str:
    """Name an allocatable resource of GPUs; empty if there is none."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    offered = (
        name for name, count in allocatable.items() if is_gpu_resource(name) and str(count) != "0"
    )
    return next(offered, "")
