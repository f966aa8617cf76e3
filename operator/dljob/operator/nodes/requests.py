"""The requests of a job's pods, read from the pod as Kubernetes would accept it. Pure."""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from dljob.core.model import NodeName
from dljob.core.placement.amounts import Amounts
from dljob.kube.constraints.reading import read_term, read_wants
from dljob.kube.constraints.requirements import Term, Wants
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
