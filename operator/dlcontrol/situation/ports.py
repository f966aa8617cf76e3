"""
The interface between the controller and a platform, the place where jobs, nodes and pods live.

There are two platforms: one machine (``dllocal``) and Kubernetes (``dloperator``). Both keep the
jobs and the decisions about them (:mod:`dlcontrol.situation.status`), and both start and end *pods*: a
SideCar on one node, which waits for the command that says what to run. The controller does the rest by speaking
to the SideCars.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from dlcontrol.situation.status import Booking, Status
from dlcore.model import CauseCode, Job, JobId, Node, NodeName
from dlcore.placement.needs import Needs

UNSCHEDULABLE: Final = "Unschedulable"
NODE_NOT_READY: Final = "NodeNotReady"
"""Why a pod is not up that the platform did not let on its node."""


class PodKey(NamedTuple):
    """The job and the node of a pod; a job has at most one pod on a node."""

    job: JobId
    node: NodeName

    def __str__(self) -> str:
        return f"{self.job} on {self.node}"


class Address(NamedTuple):
    """Where a SideCar listens: at a Unix socket, or on a network under a name that it proves."""

    socket: str = ""
    host: str = ""
    port: int = 0
    name: str = ""
    """The name that its certificate must have."""
    owner: int | None = None
    """At a Unix socket, the only user whose SideCar is believed; ``None`` where there is one user."""


class PodPhase(StrEnum):
    """The phase of a pod as the platform knows it."""

    PENDING = "Pending"
    """It was asked for, and its SideCar cannot be spoken to yet."""
    UP = "Up"
    """Its SideCar can be spoken to, or could a moment ago."""
    LOST = "Lost"
    """The node does not report; the GPUs that the pod had are not proven to be free."""
    ENDED = "Ended"
    """Proven: no process of it is left, and none will be started."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that was booked, as the platform sees it now."""

    key: PodKey
    phase: PodPhase
    address: Address | None = None
    reason: str = ""
    """Why it is not up, or, if it is, how its container ended last: a CamelCase word, as Kubernetes
    has them (``ImagePullBackOff``)."""
    message: str = ""
    """The same in a sentence. It may be known without a reason, of a pod that just takes its time."""
    fault: bool = False
    """The reason is the job's own, so that it would recur (out of memory)."""
    stuck: bool = False
    """The pod does not come up until a person removes the reason."""
    unwelcome: bool = False
    """The pod has ended because its node evicted it."""
    vanished: bool = False
    """The object is gone, so that its container does not restart and its end is not reported."""
    start: str = ""
    """Which start of its container this is, by the platform's own word, where it knows that. Another one
    is a proof that the processes of the former one have ended or are ended by it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A job as the platform keeps it: what its user wrote, and what was recorded about it."""

    job: Job
    order: int
    """Its place in the order of arrival."""
    status: Status
    document: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """As its user wrote it."""
    cancelled: bool = False
    """The user has deleted the job."""
    problem: str = ""
    """Why it cannot be dealt with at all (its spec can no longer be read); it is set aside."""
    spec_generation: int = 0
    """Counts the changes of its spec."""

    @property
    def is_wanted_gone(self) -> bool:
        """The job is over, cancelled or suspended, so nothing of it trains."""
        return self.status.is_final or self.cancelled or self.job.suspend

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
    """The GPUs that a person has reinstated, by number, with a word that is new each time."""
    ails: str = ""
    """Why the node, or a monitor of it, reports its GPUs as unhealthy; empty if none does."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything there is, at one instant."""

    entries: Mapping[JobId, Entry]
    nodes: tuple[Node, ...]
    pods: Mapping[PodKey, Pod] = field(default_factory=dict)
    """Of every booking, and of nothing else."""
    needs: Mapping[JobId, Needs] = field(default_factory=dict)
    """The needs of a job's pods in addition to GPUs, where they are known."""
    machines: Mapping[NodeName, BootState] = field(default_factory=dict)
    """Further facts about nodes, where there are any."""


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
    """Another controller leads by now: nothing more may be decided or commanded here."""


class Behind(Exception):
    """
    This controller does not know the latest decision, although no other one leads.

    SideCars obey a later epoch than ours after a restore from a backup, and another program than a controller
    may write a decision. The controller goes on in a later epoch, in which it reads everything again.
    """

    def __init__(self, epoch: int, why: str) -> None:
        super().__init__(why)
        self.epoch = epoch
        """The epoch to go on in, at least."""


class NotKept(Exception):
    """Nothing can be kept at present; the text is one line that says why, and what to do."""


class NotKeptAlone(Exception):
    """Of these jobs nothing can be kept, for each of which it is said why; of others it can."""

    def __init__(self, jobs: Mapping[JobId, str]) -> None:
        super().__init__("; ".join(jobs.values()))
        self.jobs = jobs


class Platform(Protocol):
    """The place. Every method may be called again with the same arguments, without harm."""

    async def observe(self) -> Observation:
        """Return everything that exists, including the effects of all former calls of :meth:`record`."""

    async def record(self, statuses: Mapping[JobId, Status]) -> None:
        """
        Keep these, so that they survive any crash, before anything is done that they speak of.

        One after the other in their order, where they cannot be kept at once. Raises
        :class:`Fenced` if this controller is no longer the one that decides, :class:`NotKept` if it
        is, and it cannot be done now, and :class:`NotKeptAlone` if that concerns some of them only.
        Then of the others some may be kept, as after a crash.
        """

    async def is_overtaken(self) -> bool:
        """
        Read from the record, and from no cache, if another controller leads by now.

        Asked when a SideCar says so, which by itself proves nothing. Raises :class:`NotKept`
        if the record cannot be read now.
        """

    async def launch(self, order: PodOrder) -> None:
        """
        Let there be this pod, if there is none yet.

        A controller asks again for a pod that its predecessor booked and may have asked for. If the pod is no
        longer booked when this is done, it must not stay, because nothing would ever end it.
        """

    async def remove(self, key: PodKey, *, because: str) -> None:
        """
        End this pod even if its processes run, because its SideCar does not answer or cannot start.

        In the end the pod is :attr:`PodPhase.ENDED`, or up again as a new incarnation. That holds for
        one that was never made as well: the controller that booked it may have died before, and it is not
        :attr:`~dlcontrol.situation.status.Status.used`.
        """

    async def forget(self, job: JobId) -> None:
        """Remove what is kept of a job that has ended and whose pods have."""

    def host_of(self, key: PodKey, /) -> str:
        """Where the other pods of the job reach this one."""

    def rendezvous_port(self, job: JobId, generation: int, processes: int, /) -> int:
        """The first of this number of ports in a row that this generation may use; another each time."""

    async def tell(self, job: JobId, reason: str, message: str, *, warning: bool = False) -> None:
        """Let people know what happened to a job (an Event)."""
