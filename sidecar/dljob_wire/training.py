"""
The description of a training that its SideCar gets at the start: one JSON object, ``--training``.

It consists of the parts of the job's specification that a SideCar needs, as the user wrote them, and of the
platform's own fields. The controller makes it, and :mod:`dljob_sidecar.options` reads it. Fields with their default value
are omitted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum

from dljob_wire import codec
from dljob_wire.checkpoints import (
    CHECKPOINT_RULES,
    DAY,
    FOLDER,
    LONGEST_EXPRESSION,
    PATH_LENGTH,
    Checkpoint,
)
from dljob_wire.kinds import Decimal, Flag, Form, Many, OneOf, Said, Text, Whole, declare, record

TEXT = Said(65536, Form(r"[^\x00]*", "has a zero byte", "write it without"))
SECONDS = Decimal(maximum=1e7)
PERIOD = Decimal(0.1, 1e7)
LONGEST_LIVE_SECONDS = 30.0
GATHERING = 10
"""How many times ``liveSeconds`` the processes that join may take to get ready, because the others train meanwhile."""
LIVE_SECONDS = Decimal(
    0,
    DAY,
    description=(
        "For how many seconds a live change may hold up the training: some processes join or leave"
        " while the others go on, if the training registers its state with dljob.training. After"
        " that DLJob restarts the training instead. 0: it always restarts the training."
    ),
    fixed_because="the SideCar in the running container was started with it",
    default=LONGEST_LIVE_SECONDS,
)
"""The one declaration of ``liveSeconds``, for the job's document and for the SideCar."""


class Framework(str, Enum):
    """The framework, which decides how the training processes learn their ranks and peers."""

    PYTORCH = "pytorch"
    TENSORFLOW = "tensorflow"
    HOROVOD = "horovod"
    JAX = "jax"
    NONE = "none"


class Split(str, Enum):
    """The way in which processes share the GPUs of a container."""

    PER_GPU = "perGpu"
    PER_NODE = "perNode"


class GpuIds(str, Enum):
    """The form of the names in CUDA_VISIBLE_DEVICES."""

    GIVEN = "given"
    """The form that the controller uses."""
    INDEX = "index"
    UUID = "uuid"


@dataclass(frozen=True)
class Progress:
    """Where progress is read: a regular expression over the log, a JSON-lines file, or HTTP."""

    log: str = declare(Text(LONGEST_EXPRESSION), "")
    """A regular expression of Python, searched in each line that the training prints. Its named group iteration (or
    epoch, or sample or token, see samplesPerIteration) gives the progress; other named groups are metrics."""
    file: str = declare(Text(PATH_LENGTH, FOLDER), "")
    """A file to which the training appends one JSON object a line, with iteration (or epoch) and any metrics."""
    http: bool = declare(Flag(), default=False)
    """True if the training posts its progress to the SideCar over local HTTP."""
    samples_per_iteration: int | None = declare(Whole(1, 2**53), None)
    """How many samples, or tokens, count as one iteration: the training reports them as sample or token in log, file
    or http, and its own steps do not count. For a batch per process, with which steps are larger on more GPUs."""
    stall_seconds: float = declare(Decimal(1, 30 * DAY), 600.0)
    """After this number of seconds without progress DLJob reports the job as stalled."""
    restart_seconds: float | None = declare(Decimal(1, 30 * DAY), None)
    """After this number of seconds without progress DLJob ends the training, which hangs and so cannot save itself,
    and starts it again from its last checkpoint. That counts as a crash; backoffLimit says how many are allowed. If
    left out, DLJob only reports it."""


@dataclass(frozen=True)
class Training:
    """The part of the job that a SideCar needs."""

    command: tuple[str, ...] = ()
    """The arguments after ``--`` on the command line."""
    framework: Framework = declare(OneOf(Framework), Framework.NONE)
    processes: Split = declare(OneOf(Split), Split.PER_NODE)
    gpu_ids: GpuIds = declare(OneOf(GpuIds), GpuIds.GIVEN)
    checkpoint: Checkpoint = declare(record(Checkpoint, rules=CHECKPOINT_RULES), Checkpoint())
    progress: Progress = declare(record(Progress), Progress())
    live_seconds: float = declare(LIVE_SECONDS, LONGEST_LIVE_SECONDS)
    kill_seconds: float = declare(PERIOD, 5.0)
    """The time from each SIGKILL to a report of the remaining process and another SIGKILL."""
    release_seconds: float = declare(SECONDS, 0.0)
    """On shared GPUs: how long memory in use delays the release of an ended job; 0 for no limit."""
    preload: tuple[str, ...] = declare(Many(TEXT, 256), ())
    """The modules that spare interpreters import; empty for no spares."""
    most_spares: int = declare(Whole(maximum=9999), 0)
    """The largest number of spares, which is that of processes here; 0 for one per visible GPU."""
    spare_memory_bytes: int = declare(Whole(), 0)
    """The memory limit of all spares together; 0 for half of the free memory."""
    progress_socket: str = declare(TEXT, "")
    """A Unix socket at which the training may post its progress over HTTP; empty for none."""
    iterations: int = declare(Whole(), 0)
    """The total number of iterations; 0 if unknown."""
    iterations_per_epoch: int = declare(Whole(), 0)
    """The iterations per epoch, if the training may report epochs alone; 0 if those do not count."""
    log_file: str = declare(TEXT, "")
    """The file of the output; empty for the SideCar's own output."""
    poll_seconds: float = declare(PERIOD, 5.0)
    """How often the SideCar reads the GPUs and the progress."""
    expects_gpus: bool = declare(Flag(), default=True)
    """False if a job without a visible GPU is no problem."""

    @property
    def longest_live_seconds(self) -> float:
        """The limit of live changes; 0 if processes do not come and go with single GPUs."""
        return self.live_seconds if self.processes is Split.PER_GPU else 0.0


TRAINING = record(Training)


def is_at_end(iteration: int, iterations: int) -> bool:
    """Return True if this is the last iteration; a training far beyond it has a total that is too low."""
    return 0 < iterations <= iteration <= 1.1 * iterations


def write_training(training: Training) -> str:
    """Return the description as one line of JSON, without fields that have their default value."""
    return json.dumps(TRAINING.without_defaults(TRAINING.write(training)), separators=(",", ":"))


def read_training(text: str) -> Training:
    """Parse the result of :func:`write_training`; raises :class:`~dljob_wire.kinds.Wrong`."""
    training: Training = TRAINING.parse(codec.parse(text.encode("utf-8", "surrogateescape")))
    return training
