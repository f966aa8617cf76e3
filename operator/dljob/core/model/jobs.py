"""
A job as its user wrote it, checked and with its defaults filled in.

:mod:`dljob.core.documents.jobfile` fills these classes from a job file. A declared field is one of the document, with its
type, bounds and default, and the string under it is its description for users; :mod:`dljob.core.documents.jobfields` has
the parts of the document that these classes do not mirror. The SideCar needs some parts as they are, which
:mod:`dljob_wire.training` declares.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import Any, Final, NewType

from dljob.core import forms
from dljob.core.profiles import JobType
from dljob_wire.checkpoints import PATH_LENGTH, Checkpoint
from dljob_wire.kinds import Decimal, Flag, Many, OneOf, Text, Whole, declare, record
from dljob_wire.training import LONGEST_LIVE_SECONDS, Framework, Progress

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
    a network. Only simulated worlds set it (:mod:`dljob_lab.worlds`).
    """
    ids: str = "index"

    def within(self, most: int) -> "GpuDemand":
        """Return the demand for at most this many GPUs, of which the smallest option is no more."""
        options = tuple(n for n in self.options if n <= most)
        if options == self.options:
            return self
        requested = max(n for n in options if n <= max(self.requested, options[0]))
        return replace(self, options=options, requested=requested)


class Direction(Enum):
    """The direction in which a metric becomes better."""

    RISES = "rises"
    FALLS = "falls"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A value of a metric at which the job is done, when the number of epochs is not known."""

    metric: str = declare(
        Text(63, forms.WORD, remedy="name the metric that progress reports, such as top5")
    )
    """The name of the metric, as progress reports it."""
    value: float = declare(Decimal(-(10**9), 10**9, remedy="give the value to reach, such as 0.9"))
    """The value to reach."""
    patience: int = declare(Whole(1, 1000), 1)
    """How many reports in a row must reach it, so that it is no accident."""
    direction: Direction = declare(OneOf(Direction), Direction.RISES)
    """The direction in which the metric becomes better: it rises (an accuracy) or falls (a loss)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How long a job trains: a number of iterations, or a target that is predicted by fitting."""

    iterations: int | None = declare(Whole(1, 10**12), None)
    """The number of training steps, the same on however many GPUs."""
    epochs: int | None = declare(Whole(1, 10**6), None)
    """The number of passes over the dataset; iterationsPerEpoch goes with it."""
    iterations_per_epoch: int | None = declare(Whole(1, 10**9), None)
    """The number of training steps in one pass over the dataset."""
    until_exit: bool = declare(Flag(), default=False)
    """True if the length of the training is not known, and it is done when its program ends with exit status 0.
    Policies then assume a length; a known one is better."""
    batch_size: int = declare(Whole(1, 10**9), 0)
    """The global batch size, over all GPUs. It stays the same on any number of GPUs, unless batch.elastic allows
    otherwise."""
    target: Target | None = declare(record(Target), None)
    """The value of a metric at which the job is done before its last iteration."""
    may_end_early: bool = declare(Flag(), default=True)
    """True if the training may end by itself, with exit status 0, before its last iteration, as early stopping does:
    the job is Completed for the reason EndedEarly. If not, such an end is a failure, of which backoffLimit says how
    many are allowed. An end is early if the iteration reported last and the usual step between two reports are less
    than iterations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRange:
    """The permission to change the global batch size (ONES)."""

    elastic: bool = declare(Flag(), default=False)
    """True if it may change."""
    maximum: int = declare(Whole(1, 10**9, name="max"), 0)
    """The largest global batch size that still converges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """An auxiliary of a job, such as a parameter server. It belongs to the gang."""

    name: str = declare(Text(63, forms.LABEL, remedy="give it a name, such as ps"))
    """The name of the role, such as ps."""
    replicas: int = declare(Whole(1, 1000), 1)
    """How many pods of it there are."""
    template: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on a job's time and failures."""

    ttl_seconds_after_finished: int | None = None
    active_deadline_seconds: int | None = None
    backoff_limit: int = 3


ENGINES: Final = ("podman", "docker")
"""The container engines that DLJob can use on one machine; the first installed one is the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The container of a job on one machine."""

    image: str = declare(Text(512, forms.IMAGE), "")
    """The image, which must be on the machine already; the image of the template's trainer if left out. It needs a
    shell and Python 3.9 or newer, for the SideCar."""
    engine: str = declare(OneOf(ENGINES), "")
    """The container engine: podman or docker; the first installed one if left out."""
    folders: tuple[str, ...] = declare(
        Many(
            Text(PATH_LENGTH, forms.MOUNTED, description="The path of a folder."), 64, unique=True
        ),
        (),
    )
    """Folders of the machine, such as /data, that the container sees under the same paths."""


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
    live_seconds: float = LONGEST_LIVE_SECONDS
    """0: no live changes."""
    roles: tuple[Role, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    template: Mapping[str, Any] = field(default_factory=dict, hash=False)
