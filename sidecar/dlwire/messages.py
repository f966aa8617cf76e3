"""
The values that travel between the controller and a SideCar.

The controller says with :class:`Run` or :class:`Stop` what shall be, and reads in :class:`State`
what is. Both are declarations and none is an order: sending one twice, or late, does no harm. The
training process itself may say how far it is with a :class:`Post`. What is not accepted is answered
with a :class:`Refusal`.

Written for Python 3.9 and the standard library, because the SideCar lives in other people's
images. Here stands what the words are and which limits they have; :mod:`dlwire.codec` writes them
as JSON and reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple, Union

from dlwire.kinds import (
    Each,
    Either,
    Flag,
    Maybe,
    Named,
    Nested,
    Number,
    OneOf,
    Text,
    Whole,
    Wrong,
    wire,
)

LONGEST_MESSAGE = 2048
MOST_GPUS = 128
"""GPUs, and so processes, that one container may be told of."""
MOST_PEERS = 1024
MOST_GPU_PROCESSES = 64
LAST_PORT = 65535
MOST_PROBLEMS = 64
MOST_LAST_LINES = 20
LONGEST_LAST_LINE = 512


class Shape(NamedTuple):
    """
    How wide a job runs: how many GPUs, over how many nodes, of which type.

    A named tuple rather than a dataclass, because shapes are the keys of every speed table and
    their hash is on the scheduler's hottest path.
    """

    gpus: int
    nodes: int = 1
    gpu_type: str = ""
    """The empty string means "the one type there is"; several types are joined by ``+``."""

    def __str__(self) -> str:
        """Tell the shape as a person would: ``4 GPUs (V100) on 2 nodes``."""
        kind = f" ({self.gpu_type})" if self.gpu_type else ""
        spread = f" on {self.nodes} nodes" if self.nodes > 1 else ""
        return f"{self.gpus} GPU{'' if self.gpus == 1 else 's'}{kind}{spread}"


# --- what shall be ------------------------------------------------------------------------


class Term(NamedTuple):
    """Which of two declarations is newer: that of the later leader, then the later one of it."""

    epoch: int
    """Counts the controllers that were leaders, one after the other."""
    generation: int
    """Counts the declarations for one job."""

    def __str__(self) -> str:
        return f"epoch {self.epoch}, generation {self.generation}"


_GPU_ID = Text(
    longest=128,
    pattern=r"[0-9]{1,4}|(GPU|MIG)-[0-9A-Za-z/-]+",
    like="an index such as 0, or a UUID such as GPU-8f7c…",
)
_HOST = Text(
    longest=253, pattern=r"[0-9A-Za-z]([0-9A-Za-z.:-]*[0-9A-Za-z])?", like="a host name or address"
)
_INCARNATION = Text(
    longest=64, pattern=r"[0-9A-Za-z-]+", like="the incarnation as the state tells it"
)
_INSTALLATION = Text(
    longest=64, pattern=r"[0-9A-Za-z-]*", like="the id of the installation as its commands carry it"
)
_NAME = Text(longest=64, pattern=r"[A-Za-z_][0-9A-Za-z_./@-]*", like="a name such as top5")
METRICS = Named(Number(-1e300), 64, _NAME)


@dataclass(frozen=True)
class Peer:
    """One container of the job."""

    host: str = field(metadata=wire(_HOST))
    """Where the other containers reach it."""
    processes: int = field(metadata=wire(Whole(1, MOST_GPUS)))
    """How many training processes run in it."""


@dataclass(frozen=True)
class Run:
    """
    The training shall run in this container on these GPUs, as this part of the whole.

    A generation is one start of the processes: another generation means another start even on the
    same GPUs, and the same generation of a later epoch none at all.
    """

    epoch: int = field(metadata=wire(Whole()))
    generation: int = field(metadata=wire(Whole()))
    incarnation: str = field(metadata=wire(_INCARNATION))
    """The start of the container that is meant. A command on its way to a container that has been
    restarted since must not start anything there."""
    gpus: tuple[str, ...] = field(metadata=wire(Each(_GPU_ID, MOST_GPUS, least=1)))
    """The GPUs that the training may use, in this order: by UUID where that is known, else by index.
    The SideCar names them in ``CUDA_VISIBLE_DEVICES`` as the job wants them named."""
    rank_offset: int = field(metadata=wire(Whole()))
    """The rank, in the whole job, of the first process of this container."""
    world_size: int = field(metadata=wire(Whole(1)))
    """How many processes the whole job has."""
    peers: tuple[Peer, ...] = field(metadata=wire(Each(Nested(Peer), MOST_PEERS, least=1)))
    """Every container of the job in the order of their ranks, this one among them."""
    rendezvous_port: int = field(metadata=wire(Whole(1, LAST_PORT)))
    """Where the first process of the first peer listens; a new one each generation, because the
    former one may linger. The ports following it, one per process of a container, are the job's."""
    batch_size: int = field(default=0, metadata=wire(Whole()))
    """The global batch size; 0 leaves the job its own."""
    learning_rate_factor: float = field(default=1.0, metadata=wire(Number(0.0, 1e6, above=True)))
    """By what the job shall multiply its own learning rate."""
    trial: int = field(default=0, metadata=wire(Whole()))
    """Which trial of its checkpoint the training shall have made in this start; 0 for none. A higher
    number may be said later in the same term, because no process is started or ended for it."""
    reason: str = field(default="", metadata=wire(Text()))
    """Why, in words for people; it goes into the log."""
    installation: str = field(default="", compare=False, metadata=wire(_INSTALLATION))
    """The installation of DLJob that commands; empty from a controller that is older than this field.
    It says who commands and not what, so that it makes no two declarations different."""

    def __post_init__(self) -> None:
        """Refuse what contradicts itself, so that a wrong one cannot be made on either side."""
        if len(set(self.gpus)) < len(self.gpus):
            raise Wrong("gpus", self.gpus, "names a GPU twice", "name each GPU once")
        processes = sum(peer.processes for peer in self.peers)
        if processes != self.world_size:
            remedy = f"write {processes}, as many as the peers have processes"
            raise Wrong("worldSize", self.world_size, "is not the sum of the peers", remedy)
        if self.rank_offset not in self._offsets():
            remedy = "write the number of processes of the peers before this one"
            raise Wrong("rankOffset", self.rank_offset, "is where no peer begins", remedy)
        most = LAST_PORT + 1 - max(peer.processes for peer in self.peers)
        if self.rendezvous_port > most:
            remedy = (
                f"write {most} at most, since each process of a container has a port of its own"
            )
            raise Wrong("rendezvousPort", self.rendezvous_port, "has too few after it", remedy)

    @property
    def term(self) -> Term:
        return Term(self.epoch, self.generation)

    @property
    def node_rank(self) -> int:
        """The position of this container among its peers."""
        return self._offsets().index(self.rank_offset)

    @property
    def processes(self) -> int:
        """How many processes run in this container."""
        return self.peers[self.node_rank].processes

    def _offsets(self) -> list[int]:
        offsets = [0]
        for peer in self.peers[:-1]:
            offsets.append(offsets[-1] + peer.processes)
        return offsets


@dataclass(frozen=True)
class Stop:
    """No training process shall run in this container."""

    epoch: int = field(metadata=wire(Whole()))
    generation: int = field(metadata=wire(Whole()))
    incarnation: str = field(metadata=wire(_INCARNATION))
    checkpoint: bool = field(default=True, metadata=wire(Flag()))
    """Whether the job shall save itself before; not where its peers are gone, for it would hang."""
    leave: bool = field(default=False, metadata=wire(Flag()))
    """Whether the SideCar shall end as well, with 0 unless the training failed by itself; as the
    first process of the container it ends that with it."""
    coming: int = field(default=0, metadata=wire(Whole(0, MOST_GPUS)))
    """How many processes are to run here after this stop, as far as that is decided; 0 if it is not.
    So many spare interpreters are made while the job saves itself."""
    reason: str = field(default="", metadata=wire(Text()))
    installation: str = field(default="", compare=False, metadata=wire(_INSTALLATION))

    @property
    def term(self) -> Term:
        return Term(self.epoch, self.generation)


Target = Union[Run, Stop]
TARGET = Either((Run, Stop))


# --- what is ------------------------------------------------------------------------------


class Phase(str, Enum):
    """What a SideCar is doing."""

    READY = "Ready"
    """It was started and has not yet been told anything."""
    STARTING = "Starting"
    RUNNING = "Running"
    CHECKPOINTING = "Checkpointing"
    """The processes have been asked to save themselves, because they must end."""
    STOPPING = "Stopping"
    """They have been told to end, or ended, and it is not yet proven that none is left."""
    STOPPED = "Stopped"
    """None is left, as was declared."""
    EXITED = "Exited"
    """They ended by themselves and well; none is left."""
    FAILED = "Failed"
    """They could not be started, or one ended badly; none is left."""


@dataclass(frozen=True)
class Problem:
    """Something that is not as it should be, and what to do about it."""

    name: str = field(metadata=wire(_NAME))
    """In CamelCase, as the reasons of Kubernetes conditions: ``GPUsNotVisible``."""
    message: str = field(metadata=wire(Text(LONGEST_MESSAGE)))
    remedy: str = field(default="", metadata=wire(Text(LONGEST_MESSAGE)))
    gpus: tuple[str, ...] = field(default=(), metadata=wire(Each(_GPU_ID, MOST_GPUS)))
    """The GPUs of the run that it is about, as the run names them, where it is about some of them only."""


@dataclass(frozen=True)
class Process:
    """One training process of the latest start."""

    rank: int = field(metadata=wire(Whole()))
    """In the whole job."""
    pid: int = field(metadata=wire(Whole()))
    """As this container counts; 0 while there is none."""
    gpus: tuple[str, ...] = field(default=(), metadata=wire(Each(_GPU_ID, MOST_GPUS)))
    warm: bool = field(default=False, metadata=wire(Flag()))
    """Whether an interpreter that was ready became it."""
    exit_code: int | None = field(default=None, metadata=wire(Maybe(Whole(0, 255))))
    """Absent while it runs, and when a signal ended it."""
    signal: int | None = field(default=None, metadata=wire(Maybe(Whole(1, 64))))

    @property
    def is_running(self) -> bool:
        return self.exit_code is None and self.signal is None


@dataclass(frozen=True)
class Failure:
    """Which process of the latest start failed first, and by itself; the others were ended then."""

    rank: int = field(metadata=wire(Whole()))
    """In the whole job."""
    at: float = field(metadata=wire(Number()))
    """In seconds since 1970, by the clock of the node: over several containers the earliest counts."""
    exit_code: int | None = field(default=None, metadata=wire(Maybe(Whole(0, 255))))
    """Absent if a signal ended it."""
    signal: int | None = field(default=None, metadata=wire(Maybe(Whole(1, 64))))
    exception: str = field(default="", metadata=wire(Text(LONGEST_LAST_LINE)))
    """The last line of the traceback that was printed first around the failure; empty if none was."""
    lines: tuple[str, ...] = field(
        default=(), metadata=wire(Each(Text(LONGEST_LAST_LINE), MOST_LAST_LINES))
    )
    """What the processes of the container printed last before it; they share their output."""


@dataclass(frozen=True)
class Progress:
    """How far the training is, as far as it can be known."""

    iteration: int = field(default=0, metadata=wire(Whole()))
    epoch: float = field(default=0.0, metadata=wire(Number()))
    batch_size: int = field(default=0, metadata=wire(Whole()))
    """The global batch size that the training says it uses; 0 if it does not say."""
    metrics: Mapping[str, float] = field(default_factory=dict, metadata=wire(METRICS))
    iterations_per_second: float = field(default=0.0, metadata=wire(Number()))
    """Measured over the latest iterations of this start only; 0 while it cannot be known."""
    idle_seconds: float = field(default=0.0, metadata=wire(Number()))
    """For how long no iteration has been reported, or since the latest start none ever was."""
    begun: bool = field(default=False, metadata=wire(Flag()))
    """Whether anything was reported since the latest start: the training has taken a step."""
    stalled: bool = field(default=False, metadata=wire(Flag()))
    interval: int = field(default=0, metadata=wire(Whole()))
    """The fewest iterations between two reports of this start; 0 before the second report."""


@dataclass(frozen=True)
class Post:
    """What a training process tells of itself; whatever is absent is as it was."""

    iteration: int | None = field(default=None, metadata=wire(Maybe(Whole())))
    epoch: float | None = field(default=None, metadata=wire(Maybe(Number())))
    batch_size: int | None = field(default=None, metadata=wire(Maybe(Whole())))
    metrics: Mapping[str, float] = field(default_factory=dict, metadata=wire(METRICS))


@dataclass(frozen=True)
class GpuProcess:
    """One process that has memory on a GPU, of the job or not."""

    pid: int = field(metadata=wire(Whole()))
    """As the machine counts, also inside a container."""
    memory_used: int = field(default=0, metadata=wire(Whole()))
    """In bytes; 0 where NVML does not tell."""
    draws: bool = field(default=False, metadata=wire(Flag()))
    """Whether it only draws, as a display does, and does not compute."""


@dataclass(frozen=True)
class Gpu:
    """One GPU that the container sees."""

    index: int = field(metadata=wire(Whole(0, 4095)))
    """In the order of the PCI bus."""
    uuid: str = field(default="", metadata=wire(Text(128)))
    model: str = field(default="", metadata=wire(Text(128)))
    utilization: float = field(default=0.0, metadata=wire(Number(0.0, 1.0)))
    memory_used: int = field(default=0, metadata=wire(Whole()))
    """In bytes."""
    memory_total: int = field(default=0, metadata=wire(Whole()))
    busy_unassigned: bool = field(default=False, metadata=wire(Flag()))
    """Whether somebody works on it although it is not ours at the moment."""
    xid_errors: tuple[int, ...] = field(default=(), metadata=wire(Each(Whole(), 64)))
    ecc_errors: int = field(default=0, metadata=wire(Whole()))
    """Uncorrected ones, since the driver was loaded."""
    processes: tuple[GpuProcess, ...] = field(
        default=(), metadata=wire(Each(Nested(GpuProcess), MOST_GPU_PROCESSES))
    )
    lost_because: str = field(default="", metadata=wire(Text(256)))
    """Why it can be used from this container no more; empty if it can."""


@dataclass(frozen=True)
class Warmth:
    """The interpreters that wait to become training processes."""

    wanted: int = field(default=0, metadata=wire(Whole()))
    ready: int = field(default=0, metadata=wire(Whole()))
    memory_bytes: int = field(default=0, metadata=wire(Whole()))
    limit_bytes: int = field(default=0, metadata=wire(Whole()))
    """How much memory they may take together; 0 while that is not known."""


class Saving(str, Enum):
    """How the checkpoint before a stop went."""

    NONE = "none"
    """There was none to make."""
    CONFIRMED = "confirmed"
    FAILED = "failed"
    TIMED_OUT = "timedOut"


@dataclass(frozen=True)
class Change:
    """What the latest change of GPUs cost, in seconds."""

    generation: int = field(metadata=wire(Whole()))
    saving: Saving = field(default=Saving.NONE, metadata=wire(OneOf(Saving)))
    checkpoint_seconds: float = field(default=0.0, metadata=wire(Number()))
    stop_seconds: float = field(default=0.0, metadata=wire(Number()))
    start_seconds: float = field(default=0.0, metadata=wire(Number()))


@dataclass(frozen=True)
class Trial:
    """A checkpoint that was asked for only to see that it works, while the training goes on."""

    number: int = field(default=0, metadata=wire(Whole()))
    """Which one, as the run named it; 0 if none was asked for in this start."""
    saving: Saving = field(default=Saving.NONE, metadata=wire(OneOf(Saving)))
    """How it went; ``none`` while it is under way."""
    iteration: int = field(default=0, metadata=wire(Whole()))
    """Which iteration was reported last when it was asked for, so that it holds at least that."""
    seconds: float = field(default=0.0, metadata=wire(Number()))
    """From the request to the outcome; 0 while it is under way."""
    went_on: bool = field(default=False, metadata=wire(Flag()))
    """Whether the training has reported a later iteration since the outcome."""
    ended: bool = field(default=False, metadata=wire(Flag()))
    """Whether a process ended during the trial, or right after it and before it went on."""
    message: str = field(default="", metadata=wire(Text(LONGEST_MESSAGE)))
    """Why it was not confirmed."""


@dataclass(frozen=True)
class State:
    """Everything a SideCar knows about this start of its container."""

    incarnation: str = field(metadata=wire(_INCARNATION))
    """Which start of the container this is; all else holds for this start only."""
    version: int = field(metadata=wire(Whole()))
    """Rises with every change of this state, from 1."""
    phase: Phase = field(metadata=wire(OneOf(Phase)))
    released: bool = field(metadata=wire(Flag()))
    """Whether it is proven that no process of the job is left in this incarnation."""
    epoch: int = field(default=0, metadata=wire(Whole()))
    generation: int = field(default=0, metadata=wire(Whole()))
    """With the epoch: the highest term seen, which is that of the target."""
    target: Target | None = field(default=None, metadata=wire(Maybe(TARGET)))
    """What was declared last, and what the SideCar converges to."""
    held: tuple[str, ...] = field(default=(), metadata=wire(Each(_GPU_ID, MOST_GPUS)))
    """The GPUs that processes of the job may use; none once they are released."""
    held_generation: int = field(default=0, metadata=wire(Whole()))
    """The generation whose processes were started last."""
    leaving: bool = field(default=False, metadata=wire(Flag()))
    """Whether the SideCar is about to end. Until it has, a newer run prevents that, unless whoever
    runs the container wants it to end."""
    processes: tuple[Process, ...] = field(
        default=(), metadata=wire(Each(Nested(Process), MOST_GPUS))
    )
    progress: Progress = field(default=Progress(), metadata=wire(Nested(Progress)))
    gpus: tuple[Gpu, ...] = field(default=(), metadata=wire(Each(Nested(Gpu), MOST_GPUS)))
    warmth: Warmth = field(default=Warmth(), metadata=wire(Nested(Warmth)))
    change: Change | None = field(default=None, metadata=wire(Maybe(Nested(Change))))
    trial: Trial | None = field(default=None, metadata=wire(Maybe(Nested(Trial))))
    """The latest trial of a checkpoint; absent where the training cannot save itself and go on."""
    failure: Failure | None = field(default=None, metadata=wire(Maybe(Nested(Failure))))
    """Absent while the latest start goes on, and where it ended well or was ended from outside."""
    problems: tuple[Problem, ...] = field(
        default=(), metadata=wire(Each(Nested(Problem), MOST_PROBLEMS))
    )
    installation: str = field(default="", metadata=wire(_INSTALLATION))
    """The installation of DLJob whose commands are obeyed: that of the first that named one."""

    @property
    def term(self) -> Term:
        return Term(self.epoch, self.generation)

    def essence(self) -> State:
        """
        Leave out what changes all the time.

        Two states of the same essence differ in nothing but how far the training is, in figures
        of GPUs and memory, and in the wording of problems.
        """
        return replace(
            self,
            version=0,
            progress=Progress(begun=self.progress.begun, stalled=self.progress.stalled),
            gpus=tuple(
                replace(gpu, utilization=0.0, memory_used=0, processes=()) for gpu in self.gpus
            ),
            warmth=replace(self.warmth, memory_bytes=0, limit_bytes=0),
            problems=tuple(Problem(each.name, "", gpus=each.gpus) for each in self.problems),
        )


class Refused(str, Enum):
    """Why something was not accepted."""

    MALFORMED = "Malformed"
    """It is no message, or a wrong one."""
    OLDER = "OlderTerm"
    """A newer declaration is known."""
    CONFLICT = "SameTermOtherTarget"
    """The same term was declared with other contents."""
    OTHER_INCARNATION = "OtherIncarnation"
    """It was meant for another start of this container."""
    OTHER_INSTALLATION = "OtherInstallation"
    """Another installation of DLJob commands this container."""
    LEAVING = "Leaving"
    """The SideCar is about to end."""
    NOT_AUTHORIZED = "NotAuthorized"
    """Whoever asks may not do this."""
    NOT_FOUND = "NotFound"
    NOT_ALLOWED = "MethodNotAllowed"
    TOO_SLOW = "TooSlow"
    TOO_LARGE = "TooLarge"
    TOO_MANY = "TooManyWaiting"
    BROKEN = "InternalError"
    """A fault of ours; the training is not touched by it."""


@dataclass(frozen=True)
class Refusal:
    """The answer to what was not accepted."""

    error: Refused = field(metadata=wire(OneOf(Refused)))
    message: str = field(metadata=wire(Text(4096)))
    incarnation: str = field(metadata=wire(_INCARNATION))
    path: str = field(default="", metadata=wire(Text(1024)))
    """Where in the message the wrong value stands."""
    remedy: str = field(default="", metadata=wire(Text(LONGEST_MESSAGE)))
    epoch: int = field(default=0, metadata=wire(Whole()))
    generation: int = field(default=0, metadata=wire(Whole()))
    """With the epoch: the highest term seen."""
    installation: str = field(default="", metadata=wire(_INSTALLATION))
    """The installation of DLJob in which that term counts."""


MESSAGES = (
    Peer,
    Run,
    Stop,
    Problem,
    Process,
    Failure,
    Progress,
    Post,
    GpuProcess,
    Gpu,
    Warmth,
    Change,
    Trial,
    State,
    Refusal,
)
"""All of them, for the description of the protocol."""
