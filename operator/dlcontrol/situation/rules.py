"""
What is said of a job when it is judged (:mod:`dlcontrol.judging.judging`), and by which rules.
"""

from dataclasses import dataclass
from typing import NamedTuple

from dlcontrol.situation.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How much is borne with, and for how long. Seconds."""

    retry_seconds: float = 10.0
    """Before the first new attempt after a crash; each further one waits twice as long."""
    longest_retry_seconds: float = 300.0
    """But no attempt waits longer than that."""
    keep_seconds: float = 20.0
    """A job that is tried again within that time keeps its GPUs meanwhile."""
    lost_seconds: float = 60.0
    """For how long a SideCar may be silent before its pod is ended."""
    obey_seconds: float = 300.0
    """For how long a SideCar that answers may leave undone what it was told, beyond the time that the
    job's checkpoint and its grace take, before its pod is ended."""
    initialize_seconds: float = 900.0
    """For how long the pods of a job may take to come up before it gives its GPUs back."""
    stuck_seconds: float = 60.0
    """The same for pods that wait for somebody to act: an image or a Secret is missing."""
    unscheduled_seconds: float = 20.0
    """The same for pods that the scheduler of Kubernetes does not let on their node; it is tried
    elsewhere at once."""
    most_setbacks: int = 10
    """A job whose pods were stuck so often in a row fails."""
    quiet_seconds: float = 5.0
    """After so long it is told that a pod is not up, also where nobody says why. Where many pods start
    at once it takes as much longer as there are hundreds of them."""
    steady_seconds: float = 120.0
    """A job that has run for so long is not said to have had setbacks in a row."""


USUAL_RULES = Rules()


class Resumption(NamedTuple):
    """A job has taken its first step after a start of its processes."""

    generation: int
    """Of its status: which decision has come true."""
    lost_seconds: float
    """For how long it did not train: saving, stopping, starting, and the first step. Where the pod
    is another one, what came before is not in it."""
    at: float
    """When the step was taken."""


@dataclass(frozen=True, slots=True)
class News:
    """Something worth an Event."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a job."""

    status: Status
    news: tuple[News, ...] = ()


class Learnt(NamedTuple):
    """What was learnt of a job, besides what is seen of it now."""

    forecast: float | None = None
    """How many iterations it is expected to need, if it has a target."""
    resumption: Resumption | None = None
    """The first step of its latest start, once it was taken."""
