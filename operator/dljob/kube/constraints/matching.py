"""
Which nodes a pod may run on, regardless of their free resources: selectors, affinity, taints.

kube-scheduler checks this and more, but only for one pod at a time, when it is that pod's turn. For a whole gang it
has to be known before. Other constraints (volumes, affinity to other pods, ports) follow from the nodes that
kube-scheduler passes; see ``deciding.note_refusals``.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from dljob.kube.constraints.requirements import (
    NodeTraits,
    Requirement,
    Taint,
    Term,
    Wants,
)

REPELLING: Final = frozenset({"NoSchedule", "NoExecute"})
NAME_FIELD: Final = "metadata.name"
TEMPORARY: Final = "node.kubernetes.io/"
"""The prefix of taints for a temporary state of a node."""


def may_run(wants: Wants, machine: NodeTraits) -> bool:
    """True if a pod may run on this node, given free resources."""
    return is_wanted(wants, machine) and find_repelling(wants, machine) is None


def is_wanted(wants: Wants, machine: NodeTraits) -> bool:
    """True if the pod's selector and affinity match the node."""
    return all(machine.labels.get(key) == value for key, value in wants.selector) and (
        wants.terms is None or any(_holds(term, machine) for term in wants.terms)
    )


def find_repelling(wants: Wants, machine: NodeTraits) -> Taint | None:
    """Return a taint that the pod does not tolerate."""
    for taint in machine.taints:
        is_tolerated = any(
            each.effect in ("", taint.effect)
            and each.key in ("", taint.key)
            and (each.operator == "Exists" or each.value == taint.value)
            for each in wants.tolerations
        )
        if taint.effect in REPELLING and not is_tolerated:
            return taint
    return None


def at_best(machine: NodeTraits) -> NodeTraits:
    """Return the node without its temporary taints."""
    lasting = tuple(taint for taint in machine.taints if not taint.key.startswith(TEMPORARY))
    return replace(machine, taints=lasting) if lasting != machine.taints else machine


def _holds(term: Term, machine: NodeTraits) -> bool:
    # An empty term matches no node.
    return bool(term.labels or term.fields) and (
        all(_is_met(each, machine.labels) for each in term.labels)
        and all(_is_met(each, {NAME_FIELD: machine.name}) for each in term.fields)
    )


def _is_met(requirement: Requirement, there: Mapping[str, str]) -> bool:
    value = there.get(requirement.key)
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compares(requirement, value)
        case _:
            return False


def _compares(requirement: Requirement, value: str | None) -> bool:
    try:
        there, bound = int(value or ""), int(requirement.values[0])
    except (ValueError, IndexError, TypeError):
        return False
    return there > bound if requirement.operator == "Gt" else there < bound
