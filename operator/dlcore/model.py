"""
The nouns of scheduling: jobs, nodes, placements, and the snapshot that a decision is made from.

Everything here is frozen. A snapshot of the next instant shares with the one before it whatever
did not change: a :class:`JobState` tells its progress as "so much at that time, at that speed
since", so a job that just goes on training needs no new object, however often it is looked at.

Whoever watches the real or the simulated world builds a :class:`Snapshot`;
:func:`dlcore.cycle.schedule` turns it into a plan.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any, NamedTuple, NewType

from dlcore.placement.amounts import Amounts
from dlcore.placement.limits import NamespaceLimits
from dlcore.placement.needs import Needs
from dlcore.profiles import Costs, JobType, Profile
from dlcore.queues import Queue
from dlwire.messages import Shape

JobId = NewType("JobId", str)
NodeName = NewType("NodeName", str)


class GpuRef(NamedTuple):
    """One GPU of the cluster, by its node and its number there in PCI bus order."""

    node: NodeName
    number: int

    def __str__(self) -> str:
        return f"{self.node}/{self.number}"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device of a node."""

    index: int
    uuid: str = ""
    unavailable_because: str = ""
    """Why nobody new may have it (cordoned, ECC errors, unproven release); empty when it is fine."""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine with GPUs of one type. A node that is lost is simply not in the snapshot."""

    name: NodeName
    gpus: tuple[Gpu, ...]
    gpu_type: str = ""
    schedulable: bool = True
    """False when it is cordoned: what runs there goes on, nothing new comes."""
    free: Amounts | None = field(default=None, hash=False)
    """What new pods may ask, by resource in thousandths; ``None`` where nobody counts it."""
    capacity: Amounts | None = field(default=None, hash=False)
    """What pods could ask if there were none, counted likewise."""

    @classmethod
    def of(cls, name: str, gpus: int, gpu_type: str = "") -> "Node":
        """Build a healthy node of ``gpus`` devices, numbered from 0."""
        return cls(NodeName(name), tuple(Gpu(index) for index in range(gpus)), gpu_type)

    @property
    def usable(self) -> tuple[int, ...]:
        """The indices that may be given away, in order."""
        if not self.schedulable:
            return ()
        return tuple(gpu.index for gpu in self.gpus if not gpu.unavailable_because)


class Slice(NamedTuple):
    """The GPUs of a placement that are on one node."""

    node: NodeName
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """
    Which GPUs on which nodes, by id.

    Slices are ordered by node and their indices rise, so that equal placements are equal values.
    Build one with :meth:`of`, which sees to it.
    """

    slices: tuple[Slice, ...]
    gpu_type: str = ""
    shape: Shape = field(init=False, compare=False, repr=False)
    nodes: tuple[NodeName, ...] = field(init=False, compare=False, repr=False)
    """The nodes that it spans, in order."""
    _refs: tuple[GpuRef, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        count = sum(len(part.gpus) for part in self.slices)
        object.__setattr__(self, "shape", Shape(count, len(self.slices), self.gpu_type))
        object.__setattr__(self, "nodes", tuple([part.node for part in self.slices]))
        object.__setattr__(self, "_refs", ())

    @classmethod
    def of(cls, gpus: Mapping[NodeName, Iterable[int]], gpu_type: str = "") -> "Placement":
        """Build a placement in canonical order, without the nodes that contribute nothing."""
        slices = (Slice(node, tuple(sorted(indices))) for node, indices in sorted(gpus.items()))
        return cls(tuple(part for part in slices if part.gpus), gpu_type)

    @property
    def gpus(self) -> int:
        """How many GPUs in all."""
        return self.shape.gpus

    def refs(self) -> tuple[GpuRef, ...]:
        """Every GPU of it, node by node. Named once only, for every check of every plan asks."""
        if not self._refs:
            refs = tuple(GpuRef(node, number) for node, gpus in self.slices for number in gpus)
            object.__setattr__(self, "_refs", refs)
        return self._refs

    def __str__(self) -> str:
        return " ".join(f"{node}[{','.join(map(str, gpus))}]" for node, gpus in self.slices)


class Phase(StrEnum):
    """The life of a DLJob: the paper's five phases (Table III) and the three that users need besides."""

    SUBMITTED = "Submitted"
    QUEUED = "Queued"
    INITIALIZED = "Initialized"
    RUNNING = "Running"
    ADJUSTING = "Adjusting"
    SUSPENDED = "Suspended"
    COMPLETED = "Completed"
    FAILED = "Failed"


class Mechanism(StrEnum):
    """How GPUs change hands. Never the policy's business: any policy runs with either."""

    IN_PLACE = "in-place"
    """The SideCar restarts the training process inside its pod; newcomers initialise early."""
    RECREATE = "recreate"
    """Pods are deleted and created again (the paper's termination baseline)."""


class Framework(StrEnum):
    """How ranks and peers are told to the training processes."""

    PYTORCH = "pytorch"
    TENSORFLOW = "tensorflow"
    HOROVOD = "horovod"
    JAX = "jax"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDemand:
    """Which numbers and kinds of GPUs a job can run on."""

    options: tuple[int, ...]
    """The paper's "optional numbers of GPUs", rising, without repetition."""
    requested: int
    """What a rigid scheduler would give; one of the options."""
    types: tuple[str, ...] = ()
    """Acceptable types in order of the user's liking; empty means any."""
    mixed: bool = False
    """Whether GPUs of different types may work in this job at once."""
    max_nodes: int | None = None
    """Over how many nodes the job may spread; ``None`` sets no limit."""
    whole_nodes: bool = False
    """
    Whether the job shares none of its nodes when it is on several, so that no two jobs compete for
    a network. No job file says so: simulated worlds do (:mod:`dlsim.worlds`).
    """
    ids: str = "index"
    """What ``CUDA_VISIBLE_DEVICES`` names: ``index`` or ``uuid``."""


class Direction(Enum):
    """Whether a metric is better when it rises (an accuracy) or when it falls (a loss)."""

    RISES = "rises"
    FALLS = "falls"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A value of a metric at which the job is done, when the number of epochs is not known."""

    metric: str
    value: float
    patience: int = 1
    """So often in a row it must be reached."""
    direction: Direction = Direction.RISES


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How long a job trains: a number of iterations, or a target that is predicted by fitting."""

    iterations: int | None = None
    """``None`` when only the target says, or the length is not known."""
    epochs: int | None = None
    iterations_per_epoch: int | None = None
    batch_size: int = 0
    """Global, and the same over reshapes unless :class:`BatchRange` allows otherwise; 0: not said."""
    target: Target | None = None
    until_exit: bool = False
    """Whether its length is not known, and it is done when its program ends well."""
    may_end_early: bool = True
    """Whether an end with exit status 0 before the last iteration is no failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where progress is read: a regular expression over the log, a JSON-lines file, or HTTP."""

    log: str = ""
    file: str = ""
    http: bool = False
    samples_per_iteration: int | None = None
    """How many samples or tokens count as one iteration, where those are told."""
    stall_seconds: float = 600.0
    restart_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """How a job saves itself before its process is stopped."""

    signal: str = ""
    command: tuple[str, ...] = ()
    http: str = ""
    to: str = "leader"
    confirm: str = "exit"
    """``file``, ``exit`` or ``log``."""
    confirm_log: str = ""
    path: str = ""
    files: str = ""
    """Which files or folders below ``path`` are one checkpoint each, as a pattern."""
    complete: str = "auto"
    """How a checkpoint of files is seen to be complete; the SideCar knows what each word means."""
    marker: str = ""
    settle_seconds: float | None = None
    shared: bool = False
    """Whether the other nodes can read it. If not, the job never moves to another node."""
    trusted: bool = False
    """Whether it is counted on although no SideCar has confirmed one."""
    timeout_seconds: float = 60.0
    grace_seconds: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRange:
    """Leave to change the global batch size (ONES); the learning rate follows."""

    elastic: bool = False
    maximum: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """An auxiliary of a job (parameter server and the like). It belongs to the gang."""

    name: str
    replicas: int
    template: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What ends a job from outside, and what happens to it afterwards."""

    ttl_seconds_after_finished: int | None = None
    active_deadline_seconds: int | None = None
    backoff_limit: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """In which container a job runs on one machine."""

    image: str = ""
    """Empty: the image of the template's trainer."""
    engine: str = ""
    """Podman or docker; empty: the first installed one."""
    folders: tuple[str, ...] = ()
    """Folders of the machine that it sees in addition to the job's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A DLJob as its user wrote it, checked and with its defaults filled in."""

    id: JobId
    gpus: GpuDemand
    training: Training
    type: JobType = JobType("")
    submitted_at: float = 0.0
    priority: int = 0
    suspend: bool = False
    framework: Framework = Framework.NONE
    processes: str = "perNode"
    """``perGpu`` or ``perNode``."""
    progress: Progress = Progress()
    checkpoint: Checkpoint = Checkpoint()
    batch: BatchRange = BatchRange()
    limits: Limits = Limits()
    python: str = ""
    """On one machine: the interpreter in whose environment it runs; empty: its submitter's."""
    variables: tuple[str, ...] | None = None
    """On one machine: which variables of its submitter it gets besides the necessary; ``None``: all."""
    container: Container | None = None
    """On one machine: the container that it runs in."""
    preload: tuple[str, ...] = ()
    """What a warm spare interpreter imports before it is told to run; empty: no warm start."""
    roles: tuple[Role, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    template: Mapping[str, Any] = field(default_factory=dict, hash=False)


class CauseCode(StrEnum):
    """Why a step is taken or a job waits: the words of the API, from which sentences are made."""

    # Why a job gets GPUs, or gets them elsewhere.
    ITS_TURN = "ItsTurn"
    IDLE_GPUS = "IdleGpus"
    FASTER_WITH_MORE = "FasterWithMore"
    FASTER_WITH_FEWER = "FasterWithFewer"
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
        CauseCode.FASTER_WITH_FEWER,
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
        CauseCode.GANG_INCOMPLETE,
    }
)
"""Why a job may lose work that no checkpoint saves, besides a job of higher priority."""


class Cause(NamedTuple):
    """
    A reason that a program can read. :mod:`dlcore.explaining.sentences` makes the sentence for people.

    It holds only what stays true while the reason does, so that a job that waits for the same
    reason as before is not written again; numbers of the moment are looked up when somebody asks.
    """

    code: CauseCode
    job: JobId | None = None
    """The other job concerned: who is ahead, for whom room is made."""
    gpus: int = 0
    """How many GPUs the reason is about."""
    worth: float = 0.0
    """How many times as much a GPU is worth to the other job as to this one; 0: not said."""


@dataclass(frozen=True, slots=True, eq=False)
class JobState:
    """
    A job and what is known of it now.

    ``placement`` is what was *decided*: GPUs that it still holds physically beyond that, because
    a change is under way, are the business of whoever carries plans out.
    """

    job: Job
    order: int
    """Its place in the order of arrival; ties of every policy are settled by it."""
    placement: Placement | None = None
    iterations_done: float = 0.0
    observed_at: float = 0.0
    """When ``iterations_done`` and ``service`` were true."""
    speed: float = 0.0
    """Iterations a second since then; 0 while nothing trains."""
    iterations_total: float = 0.0
    """How many it needs in all: asked for, or predicted from its target."""
    iterations_between: tuple[float, float] | None = None
    """Between which bounds that is, where it is predicted."""
    service: float = 0.0
    """GPU-seconds held until ``observed_at``."""
    gang: int = 0
    """How many GPUs it needs before it makes progress; 0: what it holds is complete."""
    adjusting: bool = False
    """Whether a change of its GPUs, or its first start, is still under way."""
    started_at: float | None = None
    """When GPUs were first decided for it."""
    waiting: Cause | None = None
    """The reason for waiting that was last told."""
    bound_to: tuple[NodeName, ...] = ()
    """The nodes that hold its unshared checkpoint; empty when it may go anywhere."""
    batch_size: int | None = None
    needs: Needs | None = None
    """What its pods need besides GPUs; ``None`` where nobody counts that."""
    pods_at: tuple[NodeName, ...] = ()
    """Where it has a pod already, which needs nothing more there."""
    unsaved_from: float | None = None
    """The iteration from which on its work would be lost with its process, because no checkpoint of
    it works; ``None``: it saves itself when it is asked to, or has done nothing yet."""
    risked_from: float | None = None
    """The iteration from which on a change may lose its work, because none of its checkpoints has
    proven to work yet: it may be changed, but that has its price. ``None``: it loses nothing."""
    keeps_first: bool = False
    """Whether it will keep the GPUs that it starts with, because it is known that nothing saves its work."""
    id: JobId = field(init=False)
    """The job's, near at hand, because thousands of states are looked through at every event."""
    least: int = field(init=False)
    """The fewest GPUs it can run on."""
    picky: bool = field(init=False)
    """Whether it may be unable to run on some node although that has enough GPUs."""

    def __post_init__(self) -> None:
        demand = self.job.gpus
        limited = self.needs is not None and self.needs.nodes is not None
        picky = bool(self.job.suspend or demand.types or self.bound_to or limited)
        object.__setattr__(self, "id", self.job.id)
        object.__setattr__(self, "least", demand.options[0])
        object.__setattr__(self, "picky", picky)

    @property
    def has_allowed_size(self) -> bool:
        """Whether its user lets it run on so many GPUs as it has, or as its gang will have."""
        placement = self.placement
        return placement is None or (self.gang or placement.shape.gpus) in self.job.gpus.options

    def has_pod_on(self, node: NodeName) -> bool:
        """Whether a pod of it is on this node already, or is decided to be."""
        held = self.placement
        return node in self.pods_at or (held is not None and node in held.nodes)

    def may_be_at(self, placement: Placement) -> bool:
        """Whether its user lets it run there, as far as nodes and types are concerned."""
        demand, shape = self.job.gpus, placement.shape
        if demand.max_nodes is not None and shape.nodes > demand.max_nodes:
            return False
        kinds = placement.gpu_type.split("+") if self.picky or "+" in placement.gpu_type else ()
        if (len(kinds) > 1 and not demand.mixed) or (
            demand.types and not set(kinds) <= set(demand.types)
        ):
            return False
        return not self.bound_to or set(placement.nodes) <= set(self.bound_to)

    def iterations_at(self, now: float) -> float:
        """How many iterations are done by ``now``."""
        return self.iterations_done + self.speed * (now - self.observed_at)

    def unsaved_at(self, now: float) -> float:
        """How many iterations a change at ``now`` would lose, or may."""
        since = self.unsaved_from if self.unsaved_from is not None else self.risked_from
        return 0.0 if since is None else self.iterations_at(now) - since

    def remaining_at(self, now: float) -> float:
        """How many iterations are left at ``now``; never below zero."""
        return max(0.0, self.iterations_total - self.iterations_at(now))

    def service_at(self, now: float) -> float:
        """GPU-seconds held by ``now``."""
        if self.placement is None:
            return self.service
        return self.service + self.placement.shape.gpus * (now - self.observed_at)


class Cluster:
    """
    The nodes, with what is derived from them once and shared by all snapshots until they change.
    """

    __slots__ = (
        "by_name",
        "devices",
        "flawless",
        "free",
        "largest_node",
        "memo",
        "nodes",
        "sizes",
        "total",
        "totals",
        "types",
        "usable",
        "whole",
    )

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes: tuple[Node, ...] = tuple(sorted(nodes, key=lambda node: node.name))
        self.by_name: Mapping[NodeName, Node] = {node.name: node for node in self.nodes}
        if len(self.by_name) != len(self.nodes):
            raise ValueError("two nodes bear the same name")
        self.usable: Mapping[NodeName, tuple[int, ...]] = {n.name: n.usable for n in self.nodes}
        self.devices: Mapping[NodeName, frozenset[int]] = {
            node.name: frozenset(gpu.index for gpu in node.gpus) for node in self.nodes
        }
        """The indices of all GPUs of each node, whether they may be given away or not."""
        self.whole = frozenset(n.name for n in self.nodes if len(n.usable) == len(n.gpus))
        """The nodes on which every GPU may be given away."""
        self.flawless: bool = len(self.whole) == len(self.nodes)
        """Whether every GPU of the cluster may be given away."""
        self.types: tuple[str, ...] = tuple(sorted({node.gpu_type for node in self.nodes}))
        self.sizes: Mapping[str, tuple[int, ...]] = {
            kind: tuple(
                sorted((len(n.usable) for n in self.nodes if n.gpu_type == kind), reverse=True)
            )
            for kind in self.types
        }
        """How many GPUs may be given away on each node of a type, the largest first."""
        self.totals: Mapping[str, int] = {kind: sum(each) for kind, each in self.sizes.items()}
        self.total: int = sum(self.totals.values())
        self.largest_node: Mapping[str, int] = {kind: each[0] for kind, each in self.sizes.items()}
        self.free: Mapping[NodeName, Amounts] = {
            node.name: node.free for node in self.nodes if node.free is not None
        }
        """What new pods may ask, on the nodes where that is counted."""
        self.memo: dict[tuple[object, ...], object] = {}
        """What was concluded about it, for who asks the same again."""

    def has(self, placement: Placement) -> bool:
        """Tell whether all GPUs of the placement are there yet, good or bad."""
        for node, gpus in placement.slices:
            devices = self.devices.get(node)
            if devices is None or not devices.issuperset(gpus):
                return False
        return True


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Snapshot:
    """
    Everything that a decision is made from, at one instant.

    ``running`` are the jobs that GPUs are decided for, ``pending`` those without; both in order
    of arrival. Finished jobs are not in it. Same snapshot, same policy: same plan.
    """

    now: float
    cluster: Cluster
    running: tuple[JobState, ...] = ()
    pending: Sequence[JobState] = ()
    """A :class:`~dlcore.queues.Queue`, made of any other sequence at once."""
    profiles: Mapping[JobType, Profile] = field(default_factory=dict)
    costs: Costs = Costs()
    """For jobs whose profile holds no measured costs."""
    mechanism: Mechanism = Mechanism.IN_PLACE
    seed: int = 0
    limits: NamespaceLimits = NamespaceLimits()
    """What the jobs of a namespace may have together."""
    policy_state: object = None
    """What the policy asked to be given back: a value of its own, ``None`` the first time."""

    def __post_init__(self) -> None:
        """
        Keep the pending jobs as a queue.

        ``profiles`` is a value like the rest: whoever learns something builds a new mapping. What
        was concluded from one is remembered with it, so that one that is changed in place would
        be answered from memory.
        """
        if not isinstance(self.pending, Queue):
            object.__setattr__(self, "pending", Queue.of(self.pending))

    @property
    def queue(self) -> Queue[JobState]:
        """The pending jobs, as what they are kept in."""
        assert isinstance(self.pending, Queue)
        return self.pending
