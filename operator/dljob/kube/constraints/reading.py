"""
Reads documents of pods and nodes into the values of :mod:`dljob.kube.constraints.requirements`.

Pure.
"""

from typing import Any, Final

from dljob.core.placement.amounts import read_amounts, requests_of
from dljob.kube.constraints.requirements import (
    NodeTraits,
    Requirement,
    Taint,
    Term,
    Toleration,
    Wants,
)
from dljob.kube.documents import NodeDocument, NodeSelectorTerm, PodSpec

_UNSCHEDULABLE: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
_NOT_READY: Final = Taint("node.kubernetes.io/not-ready", "", "NoSchedule")


def read_traits(document: NodeDocument) -> NodeTraits:
    spec, status = document.get("spec") or {}, document.get("status") or {}
    taints = [
        Taint(each["key"], each.get("value") or "", each["effect"])
        for each in spec.get("taints") or ()
    ]
    if spec.get("unschedulable"):
        taints.append(_UNSCHEDULABLE)
    conditions = status.get("conditions") or ()
    if not any(each["type"] == "Ready" and each["status"] == "True" for each in conditions):
        # The corresponding taint may come later.
        taints.append(_NOT_READY)
    return NodeTraits(
        document["metadata"]["name"],
        read_amounts(status.get("allocatable")),
        dict(document["metadata"].get("labels") or {}),
        tuple(taints),
    )


def read_wants(spec: PodSpec) -> Wants:
    """Read the requirements of a pod on its node."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = None
    if required is not None:
        terms = tuple(read_term(each) for each in required.get("nodeSelectorTerms") or ())
    return Wants(
        amounts=tuple(sorted(requests_of(spec).items())),
        selector=tuple(sorted((spec.get("nodeSelector") or {}).items())),
        terms=terms,
        tolerations=tuple(
            Toleration(
                each.get("key") or "",
                each.get("operator") or "Equal",
                each.get("value") or "",
                each.get("effect") or "",
            )
            for each in spec.get("tolerations") or ()
        ),
    )


def read_term(document: NodeSelectorTerm) -> Term:
    return Term(
        _read_requirements(document.get("matchExpressions")),
        _read_requirements(document.get("matchFields")),
    )


def _read_requirements(documents: Any) -> tuple[Requirement, ...]:
    return tuple(
        Requirement(each["key"], each["operator"], tuple(each.get("values") or ()))
        for each in documents or ()
    )
