"""The requirements of pods, and the traits of nodes: the values that :mod:`dljob.kube.constraints.matching` compares."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dljob.core.placement.amounts import Amounts


class Requirement(NamedTuple):
    """A requirement on a label of a node, as in ``matchExpressions``."""

    key: str
    operator: str
    values: tuple[str, ...]


class Term(NamedTuple):
    """Requirements that all have to hold: on labels, and on fields of the node itself."""

    labels: tuple[Requirement, ...]
    fields: tuple[Requirement, ...] = ()


class Toleration(NamedTuple):
    """Taints that a pod tolerates; an empty field matches anything."""

    key: str
    operator: str
    value: str
    effect: str


class Taint(NamedTuple):
    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Wants:
    """The requirements of a pod on its node. Pods with equal requirements are interchangeable."""

    amounts: tuple[tuple[str, int], ...]
    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[Term, ...] | None = None
    """One of these terms must hold; None requires nothing."""
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeTraits:
    """The parts of a Node that decide which pods may run there."""

    name: str
    allocatable: Amounts
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
