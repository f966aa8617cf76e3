"""The commands that bring a job to its decided GPUs: to its SideCars, and about its pods."""

from dataclasses import dataclass

from dljob.control.situation.ports import PodKey
from dljob.control.situation.status import Ended
from dljob.core.model import JobId, NodeName


@dataclass(frozen=True, slots=True)
class Stamp:
    """Repeat a SideCar's present command in this epoch, so that it obeys no former controller."""

    key: PodKey


@dataclass(frozen=True, slots=True)
class Book:
    """Record that the job has pods on these nodes from now on."""

    job: JobId
    nodes: tuple[NodeName, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """Create a pod that is booked; the controller that booked it may have ended before it could."""

    key: PodKey


@dataclass(frozen=True, slots=True)
class Unbook:
    """Forget the pods on these nodes: their end is proven."""

    job: JobId
    nodes: tuple[NodeName, ...]
    ended: Ended | None = None
    """The ends of the pods' processes, to be kept; None if there is nothing new."""


@dataclass(frozen=True, slots=True)
class Forget:
    """Forget a job that has ended with all its pods."""

    job: JobId


@dataclass(frozen=True, slots=True)
class Halt:
    """Command a SideCar to stop; with ``leave`` the SideCar and its pod end after that."""

    key: PodKey
    checkpoint: bool
    leave: bool


@dataclass(frozen=True, slots=True)
class Remove:
    """End a pod that cannot take commands."""

    key: PodKey
    because: str
    is_needed: bool = False
    """The job needs another pod in its place."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Command these SideCars of a job to run the decided generation."""

    job: JobId
    nodes: tuple[NodeName, ...]


@dataclass(frozen=True, slots=True)
class Try:
    """Have a training save itself and continue, to verify that its checkpoints work."""

    key: PodKey
    number: int


Command = Try | Stamp | Book | Launch | Unbook | Forget | Remove | Halt | Begin


def job_of(command: Command) -> JobId:
    return command.job if isinstance(command, Book | Unbook | Begin | Forget) else command.key.job


def addressed(command: Command) -> set[NodeName]:
    """Return the nodes of the SideCars that a command goes to."""
    match command:
        case Halt() | Remove():
            return {command.key.node}
        case Begin():
            return set(command.nodes)
        case _:
            return set()
