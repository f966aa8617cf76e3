"""The rules for gangs, the state between two decisions, and the verdict on each gang: values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from dlgangs.members import GangName, Held, Refusal
from dlgangs.placing import Pair


class Overtaking(StrEnum):
    """Whether a gang may go before an older one that does not fit yet."""

    NEVER = "never"
    HARMLESS = "harmless"
    """
    If the older ones would still fit beside it, all together, after all other pods had ended.

    Then it cannot keep them from starting for as long as it runs, though it may start later.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The settings of the decisions. Times are in seconds."""

    hold_seconds: float = 60.0
    """How long room is reserved for pods that are to be bound."""
    rest_seconds: float = 30.0
    """How long a gang that did not use its room lets others go first."""
    refusal_seconds: float = 2.0
    """How long a node that kube-scheduler refused is not tried again; twice as long each time."""
    overtaking: Overtaking = Overtaking.NEVER


@dataclass(frozen=True, slots=True)
class State:
    """The earlier decisions that the cluster does not show yet."""

    held: Mapping[str, Held] = field(default_factory=dict)
    """By the uid of the pod."""
    rests: Mapping[GangName, float] = field(default_factory=dict)
    """Gangs that let others go first, until when."""
    refusals: Mapping[Pair, Refusal] = field(default_factory=dict)


class Standing(StrEnum):
    """The state of a gang; the word is the reason of its Event."""

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
