"""
A job as its user wrote it, checked and with its defaults filled in.

:mod:`dlcore.documents.jobfields` fills these from a job file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any, NewType

from dlcore.profiles import JobType

JobId = NewType("JobId", str)


class Phase(StrEnum):
    """The life of a DLJob: the paper's five phases (Table III) and three more that users need."""

    SUBMITTED = "Submitted"
    QUEUED = "Queued"
    INITIALIZED = "Initialized"
    RUNNING = "Running"
    ADJUSTING = "Adjusting"
    SUSPENDED = "Suspended"
    COMPLETED = "Completed"
    FAILED = "Failed"


class Framework(StrEnum):
    """The framework, which decides how the training processes learn their ranks and peers."""

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
    """The number that a rigid scheduler would give; one of the options."""
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
    """The form of the names in ``CUDA_VISIBLE_DEVICES``: ``index`` or ``uuid``."""


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
    """How many samples or tokens count as one iteration, where the training reports those."""
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
    memory_mebibytes: int = 0
    """How much memory may hold checkpoints that are being written out to ``path``."""
    shared: bool = False
    """Whether the other nodes can read it. If not, the job never moves to another node."""
    trusted: bool = False
    """Whether it is counted on although no SideCar has confirmed one."""
    vet: bool = False
    """Whether torn checkpoints are moved out of the way before each start."""
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
    """Limits that end a job from outside, and its treatment afterwards."""

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
    """On one machine: the variables of its submitter that it gets beyond the necessary ones; ``None``: all."""
    container: Container | None = None
    """On one machine: the container that it runs in."""
    preload: tuple[str, ...] = ()
    """The modules that a warm spare interpreter imports ahead of its start; empty: no warm start."""
    roles: tuple[Role, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    template: Mapping[str, Any] = field(default_factory=dict, hash=False)
