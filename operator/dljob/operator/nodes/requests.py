"""
The requests of a job's pods, read from the pod as Kubernetes would accept it, and the nodes that could take such a
pod if they were empty.

Pure. Affinity to other pods and topology are known to kube-scheduler only (:mod:`dljob.operator.nodes.room`).
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import NamedTuple

from dljob.core.model import NodeName
from dljob.core.placement.amounts import Amounts
from dljob.core.placement.needs import Needs
from dljob.kube.constraints.matching import find_repelling, is_wanted
from dljob.kube.constraints.reading import read_term, read_wants
from dljob.kube.constraints.requirements import NodeTraits, Term, Wants
from dljob.kube.constraints.usage import asked_by
from dljob.kube.documents import Json, NodeSelectorTerm
from dljob.kube.names import Name


class Asks(NamedTuple):
    """The requests of a pod; pods with equal requests are interchangeable."""

    wants: Wants
    claims: tuple[Name, ...] = ()
    """Its PersistentVolumeClaims."""

    @property
    def amounts(self) -> Amounts:
        return dict(self.wants.amounts)


class Reach(NamedTuple):
    """The nodes that can reach a claimed volume."""

    name: str
    terms: tuple[Term, ...] | None = None
    """A node has to fulfil one of these; None: all nodes can reach it."""
    missing: bool = False
    """True if the claim does not exist."""


def read_asks(pod: Json, node: NodeName) -> Asks:
    """Read the requests of a pod, without the one to be on this node."""
    spec = pod["spec"]
    wants = replace(read_wants(spec), amounts=tuple(sorted(asked_by(spec).items())))
    terms = None
    if wants.terms is not None:
        terms = tuple(
            term._replace(fields=tuple(each for each in term.fields if each.values != (node,)))
            for term in wants.terms
        )
        if any(term == Term((), ()) for term in terms):
            # Such a term named only the node.
            terms = None
    namespace = pod["metadata"].get("namespace", "")
    claims = (volume.get("persistentVolumeClaim") for volume in spec.get("volumes") or ())
    named = tuple(Name(namespace, claim["claimName"]) for claim in claims if claim)
    return Asks(replace(wants, terms=terms), named)


def read_reach(
    name: Name, volume: str | None, *, terms: Iterable[NodeSelectorTerm] | None
) -> Reach:
    """Read from where a claim can be reached; ``volume`` is empty until one is bound to it."""
    if volume is None:
        return Reach(name.name, missing=True)
    # The volume of an unbound claim follows the pod, or its provisioner decides.
    return Reach(name.name, tuple(map(read_term, terms)) if volume and terms is not None else None)


class Fit(NamedTuple):
    """The nodes that would take a pod, regardless of its volumes."""

    machines: tuple[NodeTraits, ...]
    refusals: tuple[tuple[str, int], ...]
    """The reasons why the others would not, each with the number of nodes."""


def find_fit(wants: Wants, machines: Iterable[NodeTraits]) -> Fit:
    """Find the nodes that would take a pod with these requests, regardless of its volumes."""
    return _sift(machines, lambda machine: _why_unwanted(wants, machine))


def find_needs(wants: Wants, fit: Fit, *, reaches: Collection[Reach]) -> Needs:
    """Find the nodes that would take such a pod if they had room, and say why the others would not."""
    within = _sift(fit.machines, lambda machine: _why_out_of_reach(reaches, machine))
    refusals = tuple(sorted((*fit.refusals, *within.refusals)))
    allowed = frozenset(machine.name for machine in within.machines) if refusals else None
    return Needs(wants.amounts, allowed, refusals)


def _sift(machines: Iterable[NodeTraits], why_not: Callable[[NodeTraits], str]) -> Fit:
    fitting: list[NodeTraits] = []
    refusals: dict[str, int] = {}
    for machine in machines:
        why = why_not(machine)
        if why:
            refusals[why] = refusals.get(why, 0) + 1
        else:
            fitting.append(machine)
    return Fit(tuple(fitting), tuple(sorted(refusals.items())))


def _why_unwanted(wants: Wants, machine: NodeTraits) -> str:
    if not is_wanted(wants, machine):
        return "with labels that its nodeSelector or node affinity does not match"
    taint = find_repelling(wants, machine)
    if taint is not None:
        value = f"={taint.value}" if taint.value else ""
        return f"with the taint {taint.key}{value}:{taint.effect}, which it does not tolerate"
    return ""


def _why_out_of_reach(reaches: Iterable[Reach], machine: NodeTraits) -> str:
    for reach in reaches:
        if reach.missing:
            return f"because the PersistentVolumeClaim {reach.name} does not exist"
        if reach.terms is not None and not is_wanted(Wants((), terms=reach.terms), machine):
            return f"out of reach of the volume of its PersistentVolumeClaim {reach.name}"
    return ""
