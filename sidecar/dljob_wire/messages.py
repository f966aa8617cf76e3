"""
The messages between the controller and a SideCar.

The controller declares the target with :class:`Run` or :class:`Stop`, and reads the :class:`State`.
Repeated and late declarations do no harm, because they are not orders. The training process may
report its progress with a :class:`Post`. A :class:`Refusal` answers a message that is not accepted.

This module needs only Python 3.9 and its standard library, because the SideCar runs in users'
images. It defines the messages and their limits; :mod:`dljob_wire.codec` converts them to and from
JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple, Union

from dljob_wire.kinds import (
    Either,
    Flag,
    Form,
    Many,
    Named,
    Number,
    OneOf,
    Said,
    Whole,
    Wrong,
    declare,
    nested,
)

# A reader refuses values beyond a limit, so no message costs a SideCar more than expected.
LONGEST_MESSAGE = 2048
MOST_GPUS = 128
MOST_PEERS = 1024
MOST_MEMBERS = 16384
MOST_GPU_PROCESSES = 64
LAST_PORT = 65535
MOST_PROBLEMS = 64
MOST_ENDS = 2
LONGEST_LEFT = 1024
MOST_LAST_LINES = 20
LONGEST_LAST_LINE = 512

GPU_ID = Said(
    128,
    Form(
        r"[0-9]{1,4}|(GPU|MIG)-[0-9A-Za-z/-]+",
        "is no id of a GPU",
        "write an index such as 0, or a UUID such as GPU-8f7c…",
    ),
)
_HOST = r"[0-9A-Za-z]([0-9A-Za-z.:-]*[0-9A-Za-z])?"
HOST = Said(253, Form(_HOST, "is no host", "write a host name or address"))
INCARNATION = Said(
    64, Form(r"[0-9A-Za-z-]+", "is no incarnation", "write the one that the state has")
)
INSTALLATION = Said(
    64, Form(r"[0-9A-Za-z-]*", "is no installation", "write the id that its commands carry")
)
_NAME = Form(r"[A-Za-z_][0-9A-Za-z_./@-]{0,63}", "is no name", "write a name such as top5")
NAME = Said(64, _NAME)
METRICS = Named(Number(-1e300), 64, _NAME)


class Shape(NamedTuple):
    """
    The width of a job: the number of GPUs and nodes, and the GPU type.

    A named tuple rather than a dataclass, because shapes are the keys of every speed table and
    their hash is on the scheduler's hottest path.
    """

    gpus: int
    nodes: int = 1
    gpu_type: str = ""
    """Empty for the only type of the cluster; several types are joined by ``+``."""

    def __str__(self) -> str:
        """Return the shape in words: ``4 GPUs (V100) on 2 nodes``."""
        kind = f" ({self.gpu_type})" if self.gpu_type else ""
        spread = f" on {self.nodes} nodes" if self.nodes > 1 else ""
        return f"{self.gpus} GPU{'' if self.gpus == 1 else 's'}{kind}{spread}"


@dataclass(frozen=True)
class GpuProcess:
    """A process with memory on a GPU, of the job or not."""

    pid: int = declare(Whole())
    """The machine's process id, even inside a container."""
    memory_used: int = declare(Whole(), 0)
    """In bytes; 0 if NVML does not report it."""
    draws: bool = declare(Flag(), default=False)
    """True if the process only draws, as a display does, and does not compute."""


@dataclass(frozen=True)
class Gpu:
    """A GPU that the container sees."""

    index: int = declare(Whole(0, 4095))
    """In PCI bus order."""
    uuid: str = declare(Said(128), "")
    model: str = declare(Said(128), "")
    utilization: float = declare(Number(0.0, 1.0), 0.0)
    memory_used: int = declare(Whole(), 0)
    """In bytes."""
    memory_total: int = declare(Whole(), 0)
    busy_unassigned: bool = declare(Flag(), default=False)
    """True if another program computes on the GPU while this job does not have it."""
    xid_errors: tuple[int, ...] = declare(Many(Whole(), 64), ())
    ecc_errors: int = declare(Whole(), 0)
    """Uncorrected errors since the driver was loaded."""
    processes: tuple[GpuProcess, ...] = declare(Many(nested(GpuProcess), MOST_GPU_PROCESSES), ())
    lost_because: str = declare(Said(256), "")
    """The reason why this container can no longer use the GPU; empty if it can."""


class Term(NamedTuple):
    """The order of declarations: by leader, then by the leader's own count."""

    epoch: int
    """Counts the successive leaders among the controllers."""
    generation: int
    """Counts the declarations for one job."""

    def __str__(self) -> str:
        return f"epoch {self.epoch}, generation {self.generation}"


@dataclass(frozen=True)
class Peer:
    """One container of the job."""

    host: str = declare(HOST)
    """The address at which other containers reach this one."""
    processes: int = declare(Whole(1, MOST_GPUS))
    """The number of training processes in the container."""


@dataclass(frozen=True)
class Live:
    """
    A change of the members of a job whose other processes stay: a live change.

    A process never moves to another container or GPU. A SideCar whose processes contradict this
    restarts them instead.
    """

    since: int = declare(Whole())
    """The generation whose processes may stay."""
    members: tuple[int, ...] = declare(Many(Whole(-1), MOST_MEMBERS, min_items=1))
    """By new rank in the whole job: the rank in ``since`` of the process that stays, -1 for a process
    that joins.
    """
    host: str = declare(
        Said(253, Form(rf"({_HOST})?", "is no host", "write a host name or address")), ""
    )
    """In a stop: the host of the new first process, where all members of old and new agree."""
    port: int = declare(Whole(0, LAST_PORT), 0)
    """In a stop: the port of the new members there."""
    only: bool = declare(Flag(), default=False)
    """In a run: true if the processes go on as they are where they cannot change live, because a restart would lose
    their work. The controller then declares another target.
    """

    def __post_init__(self) -> None:
        """Refuse members that cannot be."""
        staying = [rank for rank in self.members if rank >= 0]
        if not staying:
            remedy = "leave live out where no process stays"
            raise Wrong("members", self.members, "has no process that stays", remedy)
        if len(set(staying)) < len(staying):
            raise Wrong("members", self.members, "names a process twice", "name each once")


@dataclass(frozen=True)
class Run:
    """
    The training runs in this container on these GPUs, as this part of the whole.

    A generation is one start of the processes: another generation causes another start even on the
    same GPUs, and the same generation of a later epoch causes none. With ``live``, the processes that
    stay go on instead.
    """

    epoch: int = declare(Whole())
    generation: int = declare(Whole())
    incarnation: str = declare(INCARNATION)
    """The intended start of the container; a command for an earlier start has no effect."""
    gpus: tuple[str, ...] = declare(Many(GPU_ID, MOST_GPUS, min_items=1))
    """The ordered GPUs of the training, by UUID if known, else by index."""
    rank_offset: int = declare(Whole())
    """The rank, in the whole job, of the first process of this container."""
    world_size: int = declare(Whole(1))
    """The number of processes of the whole job."""
    peers: tuple[Peer, ...] = declare(Many(nested(Peer), MOST_PEERS, min_items=1))
    """Every container of the job in the order of their ranks, including this one."""
    rendezvous_port: int = declare(Whole(1, LAST_PORT))
    """The first of the job's ports, one per process of a container, at the first process of the
    first peer; new for each generation, because an old port may linger.
    """
    batch_size: int = declare(Whole(), 0)
    """The global batch size; 0 keeps the job's own."""
    learning_rate_factor: float = declare(Number(0.0, 1000000.0, above=True), 1.0)
    """The factor for the job's own learning rate."""
    trial: int = declare(Whole(), 0)
    """The requested trial of a checkpoint in this start; 0 for none. A higher number may follow in
    the same term, because it starts and ends no process.
    """
    ended: int | None = declare(Whole(), None)
    """The generation of the start that the author has seen end well; 0 for none. Only a run that
    names it restarts a training that ended well by itself. It may follow in the same term. Older
    controllers omit it.
    """
    reason: str = declare(Said(), "")
    """The reason, in words for people and the log."""
    live: Live | None = declare(nested(Live), None)
    """The processes that may stay. It only says how to get to this run, so a repetition in the same
    generation may omit it. Only SideCars that report ``live`` receive it.
    """
    live_trial: int = declare(Whole(), 0)
    """The requested trial of a live change in this start, with the same members; 0 for none. A higher
    number may follow in the same term, as for ``trial``.
    """
    installation: str = declare(INSTALLATION, "", compare=False)
    """The commanding installation, which equality ignores; empty from older controllers."""

    def __post_init__(self) -> None:
        """Refuse a contradictory run on either side."""
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
        if self.live is not None and len(self.live.members) != self.world_size:
            remedy = f"write {self.world_size}, one for each process of the job"
            count = len(self.live.members)
            raise Wrong("live.members", count, "is not the number of processes", remedy)

    @property
    def term(self) -> Term:
        return Term(self.epoch, self.generation)

    @property
    def ranks(self) -> range:
        """The ranks of the processes in this container."""
        return range(self.rank_offset, self.rank_offset + self.processes)

    @property
    def node_rank(self) -> int:
        """The position of this container among its peers."""
        return self._offsets().index(self.rank_offset)

    @property
    def processes(self) -> int:
        """The number of processes in this container."""
        return self.peers[self.node_rank].processes

    def _offsets(self) -> list[int]:
        offsets = [0]
        for peer in self.peers[:-1]:
            offsets.append(offsets[-1] + peer.processes)
        return offsets


@dataclass(frozen=True)
class Stop:
    """No training process runs in this container."""

    epoch: int = declare(Whole())
    generation: int = declare(Whole())
    incarnation: str = declare(INCARNATION)
    checkpoint: bool = declare(Flag(), default=True)
    """True if the job saves itself first; False if its peers are gone: saving would hang."""
    leave: bool = declare(Flag(), default=False)
    """True if the SideCar, and so the container, ends as well: with 0 unless the training failed.
    """
    coming: int = declare(Whole(0, MOST_GPUS), 0)
    """The number of processes that start here next, and of spares to make; 0 if undecided."""
    reason: str = declare(Said(), "")
    live: Live | None = declare(nested(Live), None)
    """The members that go on elsewhere; the processes of this container leave them and end."""
    installation: str = declare(INSTALLATION, "", compare=False)

    @property
    def term(self) -> Term:
        return Term(self.epoch, self.generation)


Target = Union[Run, Stop]
TARGET = Either(Run, Stop)


class Phase(str, Enum):
    READY = "Ready"
    """It has started and has no command yet."""
    STARTING = "Starting"
    RUNNING = "Running"
    CHANGING = "Changing"
    """A live change is under way: some processes join or leave, the others go on."""
    CHECKPOINTING = "Checkpointing"
    """The processes were asked to save themselves, because they must end."""
    STOPPING = "Stopping"
    """The processes must end, or have ended without a proof that none is left."""
    STOPPED = "Stopped"
    """No process is left, as declared."""
    EXITED = "Exited"
    """The processes ended by themselves and well; none is left."""
    FAILED = "Failed"
    """The processes could not be started, or one ended badly; none is left."""


@dataclass(frozen=True)
class Problem:
    """A problem and its remedy."""

    name: str = declare(NAME)
    """In CamelCase, like the reasons of Kubernetes conditions: ``GPUsNotVisible``."""
    message: str = declare(Said(LONGEST_MESSAGE))
    remedy: str = declare(Said(LONGEST_MESSAGE), "")
    gpus: tuple[str, ...] = declare(Many(GPU_ID, MOST_GPUS), ())
    """The affected GPUs by their names in the run; empty if the problem is not limited to some."""


@dataclass(frozen=True)
class Process:
    """One training process of the latest start."""

    rank: int = declare(Whole())
    """The rank in the whole job."""
    pid: int = declare(Whole())
    """The process id in this container; 0 while there is no process."""
    gpus: tuple[str, ...] = declare(Many(GPU_ID, MOST_GPUS), ())
    warm: bool = declare(Flag(), default=False)
    """True if the process was a spare interpreter."""
    exit_code: int | None = declare(Whole(0, 255), None)
    """Absent while the process runs, and if a signal ended it."""
    signal: int | None = declare(Whole(1, 64), None)

    @property
    def is_running(self) -> bool:
        return self.exit_code is None and self.signal is None


@dataclass(frozen=True)
class Failure:
    """The first process of the latest start that failed by itself; the others were ended then."""

    rank: int = declare(Whole())
    """The rank in the whole job."""
    at: float = declare(Number())
    """Seconds since 1970 by the node's clock; the earliest failure of all containers counts."""
    exit_code: int | None = declare(Whole(0, 255), None)
    """Absent if a signal ended the process."""
    signal: int | None = declare(Whole(1, 64), None)
    exception: str = declare(Said(LONGEST_LAST_LINE), "")
    """The last line of the first traceback around the failure; empty if there was none."""
    lines: tuple[str, ...] = declare(Many(Said(LONGEST_LAST_LINE), MOST_LAST_LINES), ())
    """The last lines of the container's output before the failure."""


@dataclass(frozen=True)
class Progress:
    """The progress of the training, as far as known."""

    iteration: int = declare(Whole(), 0)
    epoch: float = declare(Number(), 0.0)
    batch_size: int = declare(Whole(), 0)
    """The global batch size that the training reports; 0 if it reports none."""
    metrics: Mapping[str, float] = declare(METRICS, default_factory=dict)
    iterations_per_second: float = declare(Number(), 0.0)
    """Measured over the latest iterations of this start only; 0 while unknown."""
    idle_seconds: float = declare(Number(), 0.0)
    """The seconds since the last reported iteration, or since the start if there was none."""
    begun: bool = declare(Flag(), default=False)
    """True if the training has reported anything, and so a step, since the latest start."""
    stalled: bool = declare(Flag(), default=False)
    interval: int = declare(Whole(), 0)
    """The fewest iterations between two reports of this start; 0 before the second report."""
    lap: int = declare(Whole(), 0)
    """The iterations after which the counter of the training begins again, which ``iteration``
    counts on; 0 if it has not done so in this container.
    """


@dataclass(frozen=True)
class Post:
    """A report of a training process about itself; absent fields are unchanged."""

    iteration: int | None = declare(Whole(), None)
    epoch: float | None = declare(Number(), None)
    batch_size: int | None = declare(Whole(), None)
    metrics: Mapping[str, float] = declare(METRICS, default_factory=dict)


@dataclass(frozen=True)
class Warmth:
    """The interpreters that wait to become training processes."""

    wanted: int = declare(Whole(), 0)
    """The number of spares that are ready or will be soon, and a larger one while GPUs are
    uncounted.
    """
    ready: int = declare(Whole(), 0)
    memory_bytes: int = declare(Whole(), 0)
    limit_bytes: int = declare(Whole(), 0)
    """The memory limit of all spares together; 0 while unknown."""


class Saving(str, Enum):
    """The outcome of the checkpoint before a stop."""

    NONE = "none"
    """No checkpoint was requested."""
    CONFIRMED = "confirmed"
    FAILED = "failed"
    TIMED_OUT = "timedOut"


@dataclass(frozen=True)
class Change:
    """The cost of the latest change of GPUs, in seconds."""

    generation: int = declare(Whole())
    saving: Saving = declare(OneOf(Saving), Saving.NONE)
    checkpoint_seconds: float = declare(Number(), 0.0)
    stop_seconds: float = declare(Number(), 0.0)
    start_seconds: float = declare(Number(), 0.0)
    live: bool = declare(Flag(), default=False)
    """True if the processes that stayed were not restarted; the training paused only for ``pause_seconds``."""
    pause_seconds: float = declare(Number(), 0.0)
    """Of a live change: the longest pause of a process, from the end of the last step before it."""


@dataclass(frozen=True)
class LiveTrial:
    """A live change with the same members, which only tests whether live changes work."""

    number: int = declare(Whole(), 0)
    """The number of the trial from the run; 0 if none was requested in this start."""
    succeeded: bool | None = declare(Flag(), None)
    """The outcome; absent while the trial is under way."""
    seconds: float = declare(Number(), 0.0)
    """The time for which the training paused."""
    ended: bool = declare(Flag(), default=False)
    """True if a process ended during the trial, so that the trial ended the start."""
    message: str = declare(Said(LONGEST_MESSAGE), "")
    """The reason why it failed."""


@dataclass(frozen=True)
class LiveChange:
    """The latest live change of the latest start, or the reason why it fell back to a restart."""

    generation: int = declare(Whole())
    pause_ms: float = declare(Number(), 0.0)
    """The longest pause of a process that stayed here; 0 if none did."""
    state_bytes: int = declare(Whole(), 0)
    """The size of the state that processes which joined got from one that stayed; 0 if unknown."""
    message: str = declare(Said(LONGEST_MESSAGE), "")
    """The reason why the processes were restarted instead, or go on as they were; empty for a change that went well."""


@dataclass(frozen=True)
class LiveState:
    """The ability of the processes of this container to change live, and their latest live changes."""

    capable: int = declare(Whole(0, MOST_GPUS), 0)
    """The number of processes that have registered their state and pass boundaries."""
    trial: LiveTrial = declare(nested(LiveTrial), LiveTrial())
    change: LiveChange | None = declare(nested(LiveChange), None)
    present: Run | None = declare(nested(Run), None)
    """The run of the processes that live, where it is not the target: those that a change can start from."""


@dataclass(frozen=True)
class Trial:
    """A checkpoint that only tests whether saving works, while the training continues."""

    number: int = declare(Whole(), 0)
    """The number of the trial from the run; 0 if none was requested in this start."""
    saving: Saving = declare(OneOf(Saving), Saving.NONE)
    """The outcome; ``none`` while the trial is under way."""
    iteration: int = declare(Whole(), 0)
    """The last iteration reported before the request, which the checkpoint includes."""
    seconds: float = declare(Number(), 0.0)
    """The time from the request to the outcome; 0 while the trial is under way."""
    went_on: bool = declare(Flag(), default=False)
    """True if the training has reported a later iteration since the outcome."""
    ended: bool = declare(Flag(), default=False)
    """True if a process ended during the trial, or after it before the training continued."""
    message: str = declare(Said(LONGEST_MESSAGE), "")
    """The reason why the checkpoint was not confirmed."""


@dataclass(frozen=True)
class State:
    """The state of a SideCar in this start of its container."""

    incarnation: str = declare(INCARNATION)
    """The start of the container; all other fields hold for this start only."""
    version: int = declare(Whole())
    """Increases with every change of this state, from 1."""
    phase: Phase = declare(OneOf(Phase))
    released: bool = declare(Flag())
    """True if it is proven that no process of the job is left in this incarnation."""
    epoch: int = declare(Whole(), 0)
    generation: int = declare(Whole(), 0)
    """Together with the epoch: the highest known term, which is that of the target."""
    target: Target | None = declare(TARGET, None)
    """The latest declaration, to which the SideCar converges."""
    held: tuple[str, ...] = declare(Many(GPU_ID, MOST_GPUS), ())
    """The GPUs that processes of the job may use; empty after the release."""
    held_generation: int = declare(Whole(), 0)
    """The generation whose processes were started last."""
    leaving: bool = declare(Flag(), default=False)
    """True if the SideCar is about to end; a newer run still cancels that, except a platform's end.
    """
    processes: tuple[Process, ...] = declare(Many(nested(Process), MOST_GPUS), ())
    progress: Progress = declare(nested(Progress), Progress())
    gpus: tuple[Gpu, ...] = declare(Many(nested(Gpu), MOST_GPUS), ())
    warmth: Warmth = declare(nested(Warmth), Warmth())
    change: Change | None = declare(nested(Change), None)
    trial: Trial | None = declare(nested(Trial), None)
    """The latest trial of a checkpoint; absent if the training cannot save itself and continue."""
    failure: Failure | None = declare(nested(Failure), None)
    """Absent while the latest start runs, and if it ended well or was ended from outside."""
    problems: tuple[Problem, ...] = declare(Many(nested(Problem), MOST_PROBLEMS), ())
    installation: str = declare(INSTALLATION, "")
    """The installation of DLJob that this SideCar obeys: the first one that named itself."""
    live: LiveState | None = declare(nested(LiveState), None)
    """Absent if the SideCar makes no live changes of this job."""

    @property
    def term(self) -> Term:
        return Term(self.epoch, self.generation)

    def left_behind(self) -> State:
        """
        Return what outlives the SideCar: how the latest start ended, without all else.

        One process stands for those that ended alike, because platforms keep only a short text.
        """
        ways = {(one.exit_code, one.signal): one for one in reversed(self.processes)}
        ended = sorted(ways.values(), key=lambda one: one.rank)[:MOST_ENDS]
        progress = self.progress
        return replace(
            self,
            target=None,
            held=(),
            leaving=True,
            processes=tuple(replace(one, pid=0, gpus=(), warm=False) for one in ended),
            progress=Progress(
                progress.iteration,
                begun=progress.begun,
                interval=progress.interval,
                lap=progress.lap,
            ),
            gpus=(),
            warmth=Warmth(),
            trial=None,
            failure=None,
            problems=(),
            live=None,
        )

    def essence(self) -> State:
        """
        Return the state without values that change all the time.

        States with the same essence differ only in progress, in figures of GPUs and memory, and in
        the wording of problems.
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
    """The reason of a refusal."""

    MALFORMED = "Malformed"
    """The message is invalid."""
    OLDER = "OlderTerm"
    """A newer declaration is known."""
    CONFLICT = "SameTermOtherTarget"
    """The same term was declared with other contents."""
    OTHER_INCARNATION = "OtherIncarnation"
    """The message was for another start of this container."""
    OTHER_INSTALLATION = "OtherInstallation"
    """Another installation of DLJob commands this container."""
    LEAVING = "Leaving"
    NOT_AUTHORIZED = "NotAuthorized"
    """The client has no permission."""
    NOT_FOUND = "NotFound"
    NOT_ALLOWED = "MethodNotAllowed"
    TOO_SLOW = "TooSlow"
    TOO_LARGE = "TooLarge"
    TOO_MANY = "TooManyWaiting"
    BROKEN = "InternalError"
    """A fault of the SideCar, which does not affect the training."""


@dataclass(frozen=True)
class Refusal:
    """The answer to a refused request."""

    error: Refused = declare(OneOf(Refused))
    message: str = declare(Said(4096))
    incarnation: str = declare(INCARNATION)
    path: str = declare(Said(1024), "")
    """The path of the invalid value in the message."""
    remedy: str = declare(Said(LONGEST_MESSAGE), "")
    epoch: int = declare(Whole(), 0)
    generation: int = declare(Whole(), 0)
    """Together with the epoch: the highest known term."""
    installation: str = declare(INSTALLATION, "")
    """The installation of DLJob to which that term belongs."""


MESSAGES = (
    Peer,
    Live,
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
    LiveTrial,
    LiveChange,
    LiveState,
    Trial,
    State,
    Refusal,
)
"""All messages, for the description of the protocol."""
