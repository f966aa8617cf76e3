"""
The commands that this controller has sent to SideCars, and its requests for pods.

:mod:`dljob.control.acting` writes it. Observing and judging compare it with the reports of the platform and the SideCars.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from dljob.control.situation.ports import Entry
from dljob.control.situation.status import Booking
from dljob.core.model import JobId, NodeName
from dljob.core.primitives.backoff import Backoff
from dljob_wire.messages import Run, Target

BookedPod = tuple[JobId, Booking]

MOST_RESTARTS = 20
"""A container that claims more restarts than this within an hour gets no further time to obey."""


@dataclass(frozen=True, slots=True)
class Begun:
    """The commands of one start of a job, one for each of its SideCars."""

    generation: int
    runs: Mapping[NodeName, Run]


@dataclass(frozen=True, slots=True)
class Commanded:
    """A command that this controller has sent to a pod."""

    target: Target
    at: float
    """When the controller first sent it."""
    gpus: frozenset[str] = frozenset()
    """All GPUs that commands to the pod ever named."""
    is_exact: bool = True
    """False if the target repeats a command of a former controller under the present epoch."""
    restarts: tuple[float, ...] = ()
    """When the controller last sent it to another start of the container."""
    start: str = ""
    """The container's start as the platform reports it, which counts more than the SideCar's claim."""

    def is_for(self, incarnation: str) -> bool:
        """Return False for a new start of the container, unless it claims to restart all the time."""
        return self.target.incarnation == incarnation or len(self.restarts) >= MOST_RESTARTS


class Sent:
    """Commands and requests by pod; one for the life of a controller."""

    def __init__(self) -> None:
        self.begun: dict[JobId, Begun] = {}
        """The last start of each job that was sent to its SideCars."""
        self.commanded: dict[BookedPod, Commanded] = {}
        """The last command to each pod."""
        self.fresh: set[BookedPod] = set()
        """Pods that this controller booked and has sent no command to run."""
        self.asked: set[BookedPod] = set()
        """Pods that the platform creates or has created at this controller's request."""
        self.refused: Backoff[BookedPod] = Backoff()
        """Pods that the platform refused to create."""
        self.removed: dict[BookedPod, float] = {}
        """When the platform was last asked to end each pod."""
        self.unremoved: Backoff[BookedPod] = Backoff()
        self.unforgotten: Backoff[JobId] = Backoff()

    def keep(self, entries: Mapping[JobId, Entry]) -> None:
        """Forget pods that are no longer booked, and jobs that are gone."""
        booked = {(job, pod) for job, entry in entries.items() for pod in entry.status.pods}
        self.fresh &= booked
        self.asked &= booked
        self.refused.keep(booked)
        self.unremoved.keep(booked)
        self.unforgotten.keep(entries)
        for pod in self.removed.keys() - booked:
            del self.removed[pod]
        for pod in self.commanded.keys() - booked:
            del self.commanded[pod]
        for job in self.begun.keys() - entries.keys():
            del self.begun[job]
