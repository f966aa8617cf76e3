"""The interface between the controller and a platform, which runs jobs, nodes and pods.

The two platforms are one machine (``dljob.local``) and Kubernetes (``dljob.operator``). Both keep the jobs
and the decisions about them (:mod:`dljob.control.situation.status`), and start and end *pods*: a
SideCar on one node, which waits for the command to run processes. The controller does the rest
through the SideCars.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from dljob.control.situation.status import Booking, Status
from dljob.core.model import CauseCode, Ceiling, Job, JobId, Node, NodeName
from dljob.core.placement.needs import Needs
from dljob_wire.messages import State

UNSCHEDULABLE: Final = "Unschedulable"
NODE_NOT_READY: Final = "NodeNotReady"
"""The reason why a pod is not up that the platform kept off its node."""


class PodKey(NamedTuple):
    """The job and the node of a pod; a job has at most one pod on a node."""

    job: JobId
    node: NodeName

    def __str__(self) -> str:
        return f"{self.job} on {self.node}"


class Address(NamedTuple):
    """The address of a SideCar: a Unix socket, or a network address with a name that it proves."""

    socket: str = ""
    host: str = ""
    port: int = 0
    name: str = ""
    """The name in the SideCar's certificate."""
    owner: int | None = None
    """At a Unix socket, the only user whose SideCar is trusted;

    ``None`` if there is only one user.
    """


class PodPhase(StrEnum):
    """The phase of a pod as the platform knows it."""

    PENDING = "Pending"
    """The pod was requested, and its SideCar cannot be reached yet."""
    UP = "Up"
    """The SideCar can be reached, or could a moment ago."""
    LOST = "Lost"
    """The node does not report; the pod's GPUs are not proven to be free."""
    ENDED = "Ended"
    """Proven: no process of the pod is left, and none will be started."""


@dataclass(frozen=True, slots=True)
class Pod:
    """The platform's present view of a booked pod."""

    key: PodKey
    phase: PodPhase
    address: Address | None = None
    reason: str = ""
    """Why the pod is not up, or, if it is up, how its container last ended: a CamelCase word as in
    Kubernetes (``ImagePullBackOff``).
    """
    message: str = ""
    """The reason as a sentence. A pod that is merely slow may have a message without a reason."""
    fault: bool = False
    """The job itself caused the reason, which would recur (out of memory)."""
    stuck: bool = False
    """The pod does not come up until a person removes the reason."""
    unwelcome: bool = False
    """The pod has ended because its node evicted it."""
    vanished: bool = False
    """The object is gone, so that its container does not restart and its end is not reported."""
    start: str = ""
    """The platform's id of this start of the container, if known.

    A new id proves that the processes of the former start have ended or are being ended.
    """
    left: State | None = None
    """The state that the SideCar of the last start that has ended left behind; no more than its word."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A job as the platform keeps it: its document and its record."""

    job: Job
    order: int
    """Its place in the order of arrival."""
    status: Status
    document: Mapping[str, Any] = field(default_factory=dict, compare=False)
    cancelled: bool = False
    """The user has deleted the job."""
    problem: str = ""
    """The reason why the job cannot be handled (such as an unreadable spec) and is set aside."""
    spec_generation: int = 0
    """Counts the changes of its spec."""

    @property
    def is_over(self) -> bool:
        """The job has ended or was cancelled."""
        return self.status.is_final or self.cancelled

    @property
    def is_wanted_gone(self) -> bool:
        """The job is over, cancelled or suspended, so nothing of it trains."""
        return self.is_over or self.job.suspend

    @property
    def may_come_back(self) -> bool:
        """The job has lost its node or GPUs, and continues if they come back."""
        cause = self.status.cause
        was_lost = cause is not None and cause.code in (CauseCode.NODE_LOST, CauseCode.GPUS_GONE)
        return was_lost and self.status.placement is None and not self.is_wanted_gone


class BootState(NamedTuple):
    """Facts about a node that do not concern its GPUs."""

    boot: str = ""
    """The id of its current boot, where that is known."""
    pardons: Mapping[int, str] = MappingProxyType({})
    """The GPUs that a person has reinstated, by number, with a new token each time."""
    ails: str = ""
    """Why the node or its monitor reports its GPUs as unhealthy; empty if neither does."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of the platform at one instant."""

    entries: Mapping[JobId, Entry]
    nodes: tuple[Node, ...]
    pods: Mapping[PodKey, Pod] = field(default_factory=dict)
    """The pods of all bookings, and no others."""
    needs: Mapping[JobId, Needs] = field(default_factory=dict)
    """The needs of a job's pods in addition to GPUs, where they are known."""
    machines: Mapping[NodeName, BootState] = field(default_factory=dict)
    """Further facts about nodes, where known."""
    holds: Mapping[str, str] = field(default_factory=dict)
    """The namespaces whose jobs an administrator holds, with the reasons; ``*``: all."""
    priorities: Mapping[str, int] = field(default_factory=dict)
    """The highest priorities that an administrator grants to the jobs of namespaces; they override the settings."""
    ceilings: Mapping[JobId, Ceiling] = field(default_factory=dict)
    """The quota of jobs in queues that another program keeps."""


class PodOrder(NamedTuple):
    """The request to launch a pod."""

    entry: Entry
    booking: Booking


MOST_JUMP: Final = 10_000
"""
The record may be behind the epochs or generations that SideCars and jobs report by at most this number. Each
start of a controller takes one. Without a limit a single writer could use up all numbers.
"""


class Fenced(Exception):
    """Another controller leads now: this one must not decide or command any more."""


class Behind(Exception):
    """This controller lacks the latest decision, although no other one leads.

    SideCars obey a later epoch than ours after a restore from a backup, and another program may
    write a decision. The controller continues in a later epoch, in which it reads everything again.
    """

    def __init__(self, epoch: int, why: str) -> None:
        super().__init__(why)
        self.epoch = epoch
        """The earliest epoch in which to continue."""


class NotKept(Exception):
    """No record can be written at present; the text is one line with the reason and the remedy."""


class NotKeptAlone(Exception):
    """The records of these jobs cannot be written, each with its reason; other jobs' can."""

    def __init__(self, jobs: Mapping[JobId, str]) -> None:
        super().__init__("; ".join(jobs.values()))
        self.jobs = jobs


class NotTaken(Exception):
    """The platform refuses a pod; the message names the reason and the remedy."""


class Places(Protocol):
    """The answers of a platform that a start of a job needs."""

    def host_of(self, key: PodKey, /) -> str:
        """Return the host at which the other pods of the job reach this one."""

    def rendezvous_port(self, job: JobId, generation: int, processes: int, /) -> int:
        """Return the first of this many consecutive ports; each generation gets new ones."""


class Platform(Places, Protocol):
    """A platform. Repeating a call with the same arguments does no harm."""

    async def observe(self) -> Observation:
        """Return everything that exists, including the effects of all former calls of :meth:`record`."""

    async def record(self, statuses: Mapping[JobId, Status]) -> None:
        """Store these statuses durably, before any action that depends on them.

        Stores them in their order if they cannot be stored at once. Raises :class:`Fenced` if this
        controller is no longer the leader, :class:`NotKept` if it leads but no write succeeds, and
        :class:`NotKeptAlone` if only some writes fail. Some of the others may then be stored, as
        after a crash.
        """

    async def is_overtaken(self) -> bool:
        """Read from the record, not from a cache, if another controller leads by now.

        Called when a SideCar reports that, which by itself proves nothing. Raises :class:`NotKept`
        if the record cannot be read now.
        """

    async def launch(self, order: PodOrder) -> None:
        """Create this pod unless it exists.

        A controller repeats the request for a pod that its predecessor booked and may have
        requested. If the booking is gone when the call ends, the pod must not stay, because nothing
        would ever end it.
        """

    async def remove(self, key: PodKey, *, because: str) -> None:
        """End this pod even if its processes run, because its SideCar does not answer.

        The SideCar may also be unable to start. In the end the pod is :attr:`PodPhase.ENDED`, or up
        again as a new incarnation. That holds for a pod that was never created as well: the
        controller that booked it may have died first, and the pod is not
        :attr:`~dljob.control.situation.status.Status.used`.
        """

    async def forget(self, job: JobId) -> None:
        """Remove what is kept of a job that has ended with all its pods."""

    async def tell(self, job: JobId, reason: str, message: str, *, warning: bool = False) -> None:
        """Report to users what happened to a job (an Event)."""
