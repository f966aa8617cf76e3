"""
The values of gang scheduling: the pods of gangs, and what is held for them.

A gang is no object of Kubernetes: it is the pods of a namespace whose label names the same gang.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from dlcore.placement.amounts import Amounts
from dlkube.constraints.requirements import NodeTraits, Wants
from dlkube.names import Name


class GangName(NamedTuple):
    """A gang, by its namespace and the value of its pods' label."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Stage(Enum):
    """The stage of a pod's life."""

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
    """The minimum number of pods of each role in its gang."""
    wants: Wants
    created: str
    priority: int = 0
    stage: Stage = Stage.PENDING
    node: str = ""


@dataclass(frozen=True, slots=True)
class Wrong:
    """A pod with an invalid statement about its gang."""

    uid: str
    name: Name
    message: str


@dataclass(frozen=True, slots=True)
class Held:
    """Resources of a node that are reserved for a pod until it is bound there."""

    pod: str
    gang: GangName
    node: str
    amounts: Amounts
    until: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """kube-scheduler does not let a pod onto a node, for a reason that this program does not know."""

    until: float
    times: int


@dataclass(frozen=True, slots=True)
class World:
    """The input of a decision."""

    machines: Mapping[str, NodeTraits]
    free: Mapping[str, Amounts]
    """The resources of each node less those of its bound pods; reservations are not deducted here."""
    tenants: Mapping[str, frozenset[str]]
    """The training jobs whose pods are on each node."""
    gangs: Mapping[GangName, tuple[Member, ...]]


def tenant_of(gang: GangName) -> str:
    """Return the name of a gang among the tenants of a node."""
    return f"gang {gang}"
