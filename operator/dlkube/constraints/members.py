"""
The values of gang scheduling: nodes, the pods of gangs, and what is held for them.

A gang is no object of Kubernetes: it is the pods of a namespace that name the same one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from dlcore.placement.amounts import Amounts
from dlkube.names import Name


class GangName(NamedTuple):
    """A gang, by its namespace and what its pods call it."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


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
    """Taints that a pod does not mind; what is empty stands for anything."""

    key: str
    operator: str
    value: str
    effect: str


class Taint(NamedTuple):
    """A taint, which keeps pods off a node."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Wants:
    """The needs of a pod on a node. Equal ones are interchangeable."""

    amounts: tuple[tuple[str, int], ...]
    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[Term, ...] | None = None
    """One of these must hold; None: nothing is asked for."""
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True)
class Machine:
    """A node."""

    name: str
    allocatable: Amounts
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()


class Stage(Enum):
    """Where in its life a pod is."""

    PENDING = "pending"
    BOUND = "bound"
    SUCCEEDED = "succeeded"


@dataclass(frozen=True, slots=True)
class Member:
    """A pod of a gang, as long as it has not failed."""

    uid: str
    name: Name
    gang: GangName
    role: str
    roles: tuple[tuple[str, int], ...]
    """The least size of its gang: how many pods of each role."""
    wants: Wants
    created: str
    priority: int = 0
    stage: Stage = Stage.PENDING
    node: str = ""


@dataclass(frozen=True, slots=True)
class Wrong:
    """A pod that wants to be of a gang and does not say so rightly."""

    uid: str
    name: Name
    message: str


@dataclass(frozen=True, slots=True)
class Held:
    """The room for a pod, kept on a node until it is bound there."""

    pod: str
    gang: GangName
    node: str
    amounts: Amounts
    until: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """kube-scheduler does not let a pod onto a node, for reasons that we do not know."""

    until: float
    times: int


@dataclass(frozen=True, slots=True)
class World:
    """Everything that a decision is made from."""

    machines: Mapping[str, Machine]
    free: Mapping[str, Amounts]
    """The resources of each node less those of its bound pods; reservations are not deducted here."""
    tenants: Mapping[str, frozenset[str]]
    """The training jobs whose pods are on each node."""
    gangs: Mapping[GangName, tuple[Member, ...]]


def tenant_of(gang: GangName) -> str:
    """By what name a gang is among the tenants of a node."""
    return f"gang {gang}"
