"""
The values of gang scheduling: the pods of gangs, what is held for them, and what is decided about them.

A gang is no object of Kubernetes: it is the pods of a namespace whose label names the same gang.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import NamedTuple

from dljob.core.placement.amounts import Amounts
from dljob.kube.constraints.requirements import NodeTraits, Wants
from dljob.kube.names import Name

Pair = tuple[str, str]
"""The uid of a pod, and a node."""


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


# --- decisions ----------------------------------------------------------------------------


class Overtaking(StrEnum):
    """Rules for a gang that goes before an older one which does not fit yet."""

    NEVER = "never"
    HARMLESS = "harmless"
    """
    Allowed if all older gangs and this one would fit together after all other pods had ended.

    Then it cannot keep them from starting for as long as it runs, though they may start later.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The settings of the decisions. Times are in seconds."""

    hold_seconds: float = 60.0
    """How long resources are reserved for pods that are to be bound."""
    rest_seconds: float = 30.0
    """How long a gang that did not use its reservations waits behind other gangs."""
    refusal_seconds: float = 2.0
    """How long a node that kube-scheduler refused is avoided; twice as long each time."""
    overtaking: Overtaking = Overtaking.NEVER


@dataclass(frozen=True, slots=True)
class State:
    """The earlier decisions that the cluster does not show yet."""

    held: Mapping[str, Held] = field(default_factory=dict)
    """By the uid of the pod."""
    rests: Mapping[GangName, float] = field(default_factory=dict)
    """Gangs that wait behind others, and until when."""
    refusals: Mapping[Pair, Refusal] = field(default_factory=dict)


class Standing(StrEnum):
    """The state of a gang, which is the reason of its Event."""

    BOUND = "GangBound"
    RESERVED = "GangReserved"
    INCOMPLETE = "GangIncomplete"
    WAITING = "GangWaiting"
    IMPOSSIBLE = "GangNeverFits"
    WRONG = "GangInvalid"


class Verdict(NamedTuple):
    """The state of a gang, and the reason."""

    standing: Standing
    message: str


class Decision(NamedTuple):
    """The result of one pass."""

    state: State
    verdicts: Mapping[GangName, Verdict]
