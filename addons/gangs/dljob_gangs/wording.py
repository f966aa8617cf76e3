"""The messages about gangs that do not fit: which pod, which resource, and the remedy."""

from collections.abc import Iterable, Mapping

from dljob.core.placement.amounts import PODS, Amounts, fits, lacking, show
from dljob.kube.constraints.matching import at_best, may_run
from dljob.kube.constraints.requirements import NodeTraits
from dljob_gangs.members import GangName, Held, Member


def called(gang: GangName) -> str:
    """Name a gang without its namespace, which is that of the pod with the message."""
    return f"gang {gang.name}"


def tell_reserved(members: tuple[Member, ...], held: Mapping[str, Held]) -> str:
    nodes = sorted({held[each.uid].node for each in members if each.uid in held})
    shown = ", ".join(nodes[:8]) + (", …" if len(nodes) > 8 else "")
    return f"room is kept for the pods of {called(members[0].gang)} on {shown}"


def tell_unproven(needed: int) -> str:
    return f"the scheduler found no way to place its {needed} pods on what is free"


def tell_short(
    short: Member, needed: int, *, machines: Mapping[str, NodeTraits], free: Mapping[str, Amounts]
) -> str:
    """Name a pod that does not fit, and the requests that no node can meet."""
    scarce = _tell_scarce(short, machines, free=free)
    return (
        f"its {needed} pods do not all fit on what is free; there is no room for"
        f" {short.name.name}{scarce}"
    )


def _tell_scarce(
    member: Member, machines: Mapping[str, NodeTraits], *, free: Mapping[str, Amounts]
) -> str:
    asked = dict(member.wants.amounts)
    nodes = [name for name, each in machines.items() if may_run(member.wants, each)]
    short = {name for node in nodes for name in lacking(asked, free.get(node, {}))}
    told = [show(name, asked[name]) for name in sorted((short or set(asked)) - {PODS})]
    return f", which asks for {' and '.join(told)}" if told else ""


def tell_never(short: Member, needed: int, *, machines: Iterable[NodeTraits]) -> str:
    """Explain why a pod would not fit on empty nodes, with the remedy."""
    asked = dict(short.wants.amounts)
    nodes = [at_best(each) for each in machines]
    open_to = [each for each in nodes if may_run(short.wants, each)]
    if not open_to:
        return (
            f"its node selector, affinity and tolerations leave none of {len(nodes)} nodes to pod"
            f" {short.name.name}; change them, or label or untaint a node"
        )
    if any(fits(asked, each.allocatable) for each in open_to):
        return (
            f"its {needed} pods need more than the {len(open_to)} nodes that they may run on have when"
            f" they are empty, and there would be no room for pod {short.name.name}; ask for fewer or"
            " smaller pods, or add nodes"
        )
    most = {
        name: max(each.allocatable.get(name, 0) for each in open_to)
        for each in open_to
        for name in lacking(asked, each.allocatable)
    }
    return (
        f"pod {short.name.name} asks for {_list({name: asked[name] for name in most})}, and a node that"
        f" it may run on has at most {_list(most)}; let it ask for less, or add a larger node"
    )


def disagreement(members: tuple[Member, ...]) -> str:
    """Explain how pods of a gang contradict each other; empty if they do not."""
    ways = sorted({each.roles for each in members})
    if len(ways) == 1:
        return ""
    one, other = (next(each for each in members if each.roles == way) for way in ways[:2])
    return (
        f"pods of {called(members[0].gang)} do not agree on what it consists of: {one.name.name} says"
        f" {dict(one.roles)}, {other.name.name} says {dict(other.roles)}; give all of them the same"
        " annotation dljob.io/gang-roles, or make them different gangs"
    )


def _list(amounts: Amounts) -> str:
    return " and ".join(show(name, amounts[name]) for name in sorted(amounts))
