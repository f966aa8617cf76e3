"""Why a step is taken, or why a job waits."""

from enum import StrEnum
from typing import NamedTuple

from dljob.core.model.jobs import JobId


class CauseCode(StrEnum):
    """Why a step is taken or a job waits: the words of the API, from which sentences are made."""

    # Why a job gets GPUs, or gets them elsewhere.
    ITS_TURN = "ItsTurn"
    IDLE_GPUS = "IdleGpus"
    FASTER_WITH_MORE = "FasterWithMore"
    FASTER_WITH_FEWER = "FasterWithFewer"
    WITHIN_BUDGET = "WithinBudget"
    FAIR_SHARE = "FairShare"
    EXPLORING = "Exploring"
    PACKING = "Packing"
    FASTER_TYPE = "FasterType"
    # Why a job gives GPUs away.
    MAKES_ROOM = "MakesRoom"
    OUTRANKED = "Outranked"
    SUSPENDED = "Suspended"
    NODE_LOST = "NodeLost"
    GPUS_GONE = "GPUsGone"
    SPEC_CHANGED = "SpecChanged"
    TWO_MASTERS = "TwoMasters"
    # Why it gives some away, or waits.
    NAMESPACE_LIMIT = "NamespaceLimit"
    QUEUE_QUOTA = "QueueQuota"
    # Why a job waits.
    NO_ROOM = "NoRoom"
    NO_ROOM_ON_ONE_NODE = "NoRoomOnOneNode"
    NO_ROOM_FOR_POD = "NoRoomForPod"
    POD_FITS_NOWHERE = "PodFitsNowhere"
    PRIORITY_NOT_ALLOWED = "PriorityNotAllowed"
    BEHIND = "Behind"
    TOO_LARGE = "TooLarge"
    GANG_INCOMPLETE = "GangIncomplete"
    CHECKPOINT_ELSEWHERE = "CheckpointElsewhere"
    NEXT_ROUND = "NextRound"
    NEXT_LEASE = "NextLease"


OWN_REASONS = frozenset(
    {
        CauseCode.SUSPENDED,
        CauseCode.NODE_LOST,
        CauseCode.GPUS_GONE,
        CauseCode.SPEC_CHANGED,
        CauseCode.TWO_MASTERS,
        CauseCode.NAMESPACE_LIMIT,
        CauseCode.QUEUE_QUOTA,
        CauseCode.FASTER_WITH_FEWER,
        CauseCode.WITHIN_BUDGET,
        CauseCode.TOO_LARGE,
        CauseCode.EXPLORING,
        CauseCode.GANG_INCOMPLETE,
    }
)
"""Why a job may lose GPUs although no other job gets them."""


DEMANDS = frozenset(
    {
        CauseCode.SUSPENDED,
        CauseCode.NODE_LOST,
        CauseCode.GPUS_GONE,
        CauseCode.SPEC_CHANGED,
        CauseCode.TWO_MASTERS,
        CauseCode.QUEUE_QUOTA,
        CauseCode.GANG_INCOMPLETE,
    }
)
"""The causes, apart from a job of higher priority, for which a job may lose work that no checkpoint saves."""


class Cause(NamedTuple):
    """
    A reason that a program can read. :mod:`dljob.core.explaining.sentences` makes the sentence for people.

    It holds only facts that stay true while the reason does, so that a job that waits for the same
    reason as before is not written again; :mod:`dljob.core.explaining` looks up numbers of the moment
    on request.
    """

    code: CauseCode
    job: JobId | None = None
    """The other job concerned: who is ahead, for whom room is made."""
    gpus: int = 0
    """How many GPUs the reason is about."""
