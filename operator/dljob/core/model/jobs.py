"""
A job as its user wrote it, checked and with its defaults filled in.

:mod:`dljob.core.documents.jobfile` fills these classes from a job file. :mod:`dljob.core.documents.jobfields` describes the
fields; a docstring here says what the description does not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any, NewType

from dljob.core.profiles import JobType

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
    """In order of preference; empty: any."""
    mixed: bool = False
    max_nodes: int | None = None
    whole_nodes: bool = False
    """
    If true, the job shares none of its nodes when it is on several, so that no two jobs compete for
    a network. Only simulated worlds set it (:mod:`dljob.sim.worlds`).
    """
    ids: str = "index"


class Direction(Enum):
    """The direction in which a metric becomes better."""

    RISES = "rises"
    FALLS = "falls"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A value of a metric at which the job is done, when the number of epochs is not known."""

    metric: str
    value: float
    patience: int = 1
    direction: Direction = Direction.RISES


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How long a job trains: a number of iterations, or a target that is predicted by fitting."""

    iterations: int | None = None
    """``None``: only the target ends the training, or the length is not known."""
    epochs: int | None = None
    iterations_per_epoch: int | None = None
    batch_size: int = 0
    """0: unknown."""
    target: Target | None = None
    until_exit: bool = False
    may_end_early: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where progress is read: a regular expression over the log, a JSON-lines file, or HTTP."""

    log: str = ""
    file: str = ""
    http: bool = False
    samples_per_iteration: int | None = None
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
    confirm_log: str = ""
    path: str = ""
    files: str = ""
    complete: str = "auto"
    marker: str = ""
    settle_seconds: float | None = None
    memory_mebibytes: int = 0
    """0: the training writes to ``path`` itself."""
    shared: bool = False
    ends_with_pod: str = ""
    """The volume or file system of ``path``, if that ends with the pod. Platforms set it; empty: it outlives the pod."""
    trusted: bool = False
    vet: bool = False
    timeout_seconds: float = 60.0
    grace_seconds: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRange:
    """The permission to change the global batch size (ONES)."""

    elastic: bool = False
    maximum: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """An auxiliary of a job, such as a parameter server. It belongs to the gang."""

    name: str
    replicas: int
    template: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on a job's time and failures."""

    ttl_seconds_after_finished: int | None = None
    active_deadline_seconds: int | None = None
    backoff_limit: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The container of a job on one machine."""

    image: str = ""
    """Empty: the image of the template's trainer."""
    engine: str = ""
    """Empty: the first installed one."""
    folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A DLJob as its user wrote it, checked and with its defaults filled in."""

    id: JobId
    gpus: GpuDemand
    training: Training
    type: JobType = JobType("")
    submitted_at: float = 0.0
    managed_by: str = ""
    """Another controller; empty: DLJob."""
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
    """Empty: the interpreter of the submitter."""
    variables: tuple[str, ...] | None = None
    """``None``: all variables of the submitter."""
    container: Container | None = None
    preload: tuple[str, ...] = ()
    """Empty: no warm start."""
    roles: tuple[Role, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    template: Mapping[str, Any] = field(default_factory=dict, hash=False)
