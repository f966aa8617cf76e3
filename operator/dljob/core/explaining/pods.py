"""
The sentence that says why no node takes a job's pods, with the missing resource and the most that any node has.

As everything in :mod:`dljob.core.explaining.sentences`, it is computed on request, and no decision
depends on it.
"""

from collections.abc import Callable, Sequence

from dljob.core.model import JobState, Node, Snapshot
from dljob.core.placement.amounts import Amounts, lacking, show
from dljob.core.placement.needs import Needs

Amount = Callable[[Node], Amounts | None]

SHOWN = 3
"""The number of nodes or reasons that a sentence names; it counts the others."""


def why_no_node(snapshot: Snapshot, state: JobState, *, gpus: int, alone: bool) -> str:
    """
    Return why no nodes with ``gpus`` GPUs take its pods now; or, ``alone``, ever could.

    Requests of other pods count in the first case, and not in the second.
    """
    needs = state.needs
    nodes = snapshot.cluster.nodes
    if state.bound_to:
        nodes = tuple(node for node in nodes if node.name in state.bound_to)
    if needs is None or not nodes:
        return f"needs {_gpus(gpus)} on nodes that take its pods"
    open_to = [node for node in nodes if needs.nodes is None or node.name in needs.nodes]
    if not open_to:
        return f"its pod may be on none of the {_nodes(len(nodes))} of the pool: {_barred(needs)}"
    of: Amount = _capacity if alone else _free
    roomy = [node for node in open_to if needs.fits(of(node))]
    if not roomy:
        return _too_little(needs, open_to, of=of, alone=alone) + _beside(needs)
    names = ", ".join(node.name for node in roomy[:SHOWN])
    more = f" and {len(roomy) - SHOWN} others" if len(roomy) > SHOWN else ""
    has = sum(len(node.usable) for node in roomy)
    where = f"its pod ({_asked(needs)}) has room on {names}{more} only, with {_gpus(has)} in all"
    return f"needs {_gpus(gpus)}, and {where}{_beside(needs)}"


def _too_little(needs: Needs, nodes: Sequence[Node], *, of: Amount, alone: bool) -> str:
    """Name the resources that are short on every node; else those of the node that lacks the fewest."""
    asked = dict(needs.amounts)
    short = [set(lacking(asked, of(node) or {})) for node in nodes]
    everywhere = sorted(set.intersection(*short))
    if not everywhere:
        some = ", ".join(
            f"{node.name} has too little {' and '.join(sorted(what))}"
            for node, what in list(zip(nodes, short, strict=True))[:SHOWN]
        )
        more = f", and so have {len(nodes) - SHOWN} others" if len(nodes) > SHOWN else ""
        return f"its pod asks {_asked(needs)}: {some}{more}"
    name = everywhere[0]
    best = max(nodes, key=lambda node: _there(node, of, name=name))
    most = show(name, max(0, _there(best, of, name=name)))
    has = "has at all" if alone else "has free"
    asks = show(name, asked[name])
    if name == "pods":
        return f"no node of the pool takes more pods; {best.name} {has} {most}"
    return f"its pod asks {asks}; the most that any node of the pool {has} is {most} ({best.name})"


def _barred(needs: Needs) -> str:
    reasons = sorted(needs.refusals, key=lambda each: (-each[1], each[0]))
    told = [f"{count} {why}" for why, count in reasons[:SHOWN]]
    if len(reasons) > SHOWN:
        told.append(f"{sum(count for _, count in reasons[SHOWN:])} for other reasons")
    return "; ".join(told) or "no reason is known"


def _beside(needs: Needs) -> str:
    """Name the properties of the nodes that refuse the pods regardless of room."""
    return f"; of the others {_barred(needs)}" if needs.refusals else ""


def _asked(needs: Needs) -> str:
    told = [show(name, amount) for name, amount in needs.amounts if name != "pods"]
    return ", ".join(told[: SHOWN + 1]) or "nothing but its place"


def _free(node: Node) -> Amounts | None:
    return node.free


def _capacity(node: Node) -> Amounts | None:
    return node.capacity


def _there(node: Node, of: Amount, *, name: str) -> int:
    return (of(node) or {}).get(name, 0)


def _gpus(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"


def _nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"
