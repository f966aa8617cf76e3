"""
The results of judging a job (:mod:`dljob.control.judging.judging`), and the rules for it.
"""

from dataclasses import dataclass
from typing import NamedTuple

from dljob.control.situation.status import Status
from dljob.core.measuring import Resumption


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How many failures DLJob tolerates, for how long, and when it removes jobs. Times are in seconds."""

    retry_seconds: float = 10.0
    """The pause before the first new attempt after a crash; each further attempt waits twice as
    long."""
    longest_retry_seconds: float = 300.0
    """The longest pause before a new attempt."""
    keep_seconds: float = 20.0
    """A job whose next attempt begins within this time keeps its GPUs until then."""
    lost_seconds: float = 60.0
    """How long a SideCar may be silent before DLJob ends its pod."""
    obey_seconds: float = 300.0
    """How long a SideCar that answers may leave a command undone before DLJob ends its pod, in
    addition to the time that the job's checkpoint and grace period take."""
    initialize_seconds: float = 900.0
    """How long the pods of a job may take to come up before the job gives its GPUs back."""
    stuck_seconds: float = 60.0
    """The same for pods that only a person can help, because an image or a Secret is missing."""
    unscheduled_seconds: float = 20.0
    """The same for pods that kube-scheduler does not bind to their node; DLJob tries another node
    at once."""
    most_setbacks: int = 10
    """A job fails when its pods were stuck this many times in a row."""
    quiet_seconds: float = 5.0
    """After this time DLJob reports that a pod is not up, even if no reason is known. It waits this
    long once more for each hundred pods that start at the same time."""
    steady_seconds: float = 120.0
    """A job that has run for this long has no setbacks in a row any more."""
    ttl_seconds_after_finished: float = 0.0
    """DLJob removes a finished job after this time, unless the job has a ttlSecondsAfterFinished of its own; 0: never."""


USUAL_RULES = Rules()


@dataclass(frozen=True, slots=True)
class News:
    """A change that people should see as an Event."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of judging a job."""

    status: Status
    news: tuple[News, ...] = ()


class Learnt(NamedTuple):
    """The controller's knowledge about a job from earlier cycles."""

    forecast: float | None = None
    """The predicted number of iterations until the job reaches its target, if it has one."""
    resumption: Resumption | None = None
    """The first step of the latest start, once the job has taken it."""
