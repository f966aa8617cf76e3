"""
Everything that can be set, in one frozen tree that is built once and passed down.

``dlsidecar.options`` makes it from the command line and the environment. Nothing else reads either.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dlwire.savings import goes_on_after_saving


class Framework(str, Enum):
    """How the training processes learn their ranks and peers."""

    PYTORCH = "pytorch"
    TENSORFLOW = "tensorflow"
    HOROVOD = "horovod"
    JAX = "jax"
    NONE = "none"


class Split(str, Enum):
    """How many processes the GPUs of a container are shared out to."""

    PER_GPU = "perGpu"
    PER_NODE = "perNode"


class GpuIds(str, Enum):
    """The form of the names in CUDA_VISIBLE_DEVICES."""

    TOLD = "told"
    """The form that the controller uses."""
    INDEX = "index"
    UUID = "uuid"


class Confirmation(str, Enum):
    """How the job shows that its checkpoint is written."""

    FILE = "file"
    """A checkpoint under its path is newer than the request, and complete."""
    LOG = "log"
    """A line of the output matches a regular expression."""
    EXIT = "exit"
    """The processes that were asked end by themselves."""


class Complete(str, Enum):
    """By which sign a checkpoint of files is seen to be complete; :mod:`dlsidecar.checkpoints.recognizing.signs` has them."""

    AUTO = "auto"
    """By the marks of the framework whose files are found; without such files, as ``settled``."""
    SETTLED = "settled"
    RENAME = "rename"
    MARKER = "marker"
    HUGGINGFACE = "huggingface"
    ACCELERATE = "accelerate"
    DCP = "dcp"
    LIGHTNING = "lightning"
    KERAS = "keras"
    TENSORFLOW = "tensorflow"
    DEEPSPEED = "deepspeed"
    MEGATRON = "megatron"


MARKER = ".dljob-complete"
"""The file that a training writes last, unless its job names another."""


@dataclass(frozen=True)
class Saving:
    """How the job saves itself before it is stopped; at most one of the first three is set."""

    signal: str = ""
    """The name of a signal, such as ``SIGUSR1``."""
    command: tuple[str, ...] = ()
    """A command that is run beside the training, in its environment."""
    http: str = ""
    """``PORT/PATH`` at which the training process takes a POST on the loopback address; one
    process per GPU listens at PORT + local rank."""
    to_all: bool = False
    """Whether every process is asked, and not only the leader (the first one of the job)."""
    confirm: Confirmation = Confirmation.EXIT
    confirm_log: str = ""
    path: str = ""
    """Where checkpoints are written; needed for a confirmation by file."""
    files: str = ""
    """The pattern, below the path, of the files or folders that are one checkpoint each."""
    complete: Complete = Complete.AUTO
    marker: str = MARKER
    """The name of the file that completes a checkpoint, with ``complete: marker``."""
    settle_seconds: float | None = None
    """For how long no file of a checkpoint may change that no sign completes; None: learnt."""
    timeout_seconds: float = 60.0
    memory_bytes: int = 0
    """How much memory may hold the checkpoints that are being written out; 0 for none."""
    memory_path: str = ""
    """The folder in memory that the training writes to then."""

    @property
    def is_possible(self) -> bool:
        return bool(self.signal or self.command or self.http)

    @property
    def goes_on(self) -> bool:
        """Whether the training is expected to go on after it has saved itself."""
        return self.is_possible and goes_on_after_saving(
            signal=self.signal, confirm=self.confirm.value, has_command=bool(self.command)
        )


@dataclass(frozen=True)
class Training:
    """The job, as far as a SideCar has to know it."""

    command: tuple[str, ...]
    framework: Framework = Framework.NONE
    split: Split = Split.PER_NODE
    gpu_ids: GpuIds = GpuIds.TOLD
    saving: Saving = Saving()
    grace_seconds: float = 10.0
    """Between SIGTERM and SIGKILL."""
    kill_seconds: float = 5.0
    """After SIGKILL, before it is reported that something does not die; repeated."""
    release_seconds: float = 0.0
    """How long memory of a GPU that no stranger is known to hold may block the release, after it was
    proven that no process is left; 0 for as long as it is in use."""
    preload: tuple[str, ...] = ()
    """The modules that warm interpreters import; none are kept if it is empty."""
    most_spares: int = 0
    """How many of them are kept at most before the first run, which says how many it takes: as many
    as the job can ever have processes here. 0 if that is not known."""
    spare_memory_bytes: int = 0
    """How much memory they may take together; 0 for half of what is free."""
    progress_log: str = ""
    """A regular expression whose named groups are ``iteration``, ``epoch``, ``batch`` or metrics."""
    progress_file: str = ""
    """A file to which the job appends JSON lines."""
    samples_per_iteration: int = 0
    """How many samples or tokens count as one iteration, where the training reports those; 0: that is not known."""
    stall_seconds: float = 600.0
    """For how long nothing may move before that is reported."""
    log_file: str = ""
    """Where the output goes; empty passes it on to our own standard output."""


@dataclass(frozen=True)
class Serving:
    """Where the SideCar answers, and to whom; either a socket or TLS, for there is no third way."""

    socket: str = ""
    """A Unix socket that only its owner may open; the way on one machine."""
    address: str = ""
    port: int = 0
    tls_folder: str = ""
    """Holds ``tls.crt``, ``tls.key`` and ``ca.crt``; re-read when they are renewed."""
    job_uid: str = ""
    """The job whose controller may speak to us."""
    controller_name: str = ""
    """The one name that may declare a target; others of the job may read."""
    inner_socket: str = ""
    """A Unix socket on which the training process tells its progress; empty for none."""
    health_address: str = ""
    health_port: int | None = None
    """For probes and metrics, in plain HTTP and read-only; None for none, 0 for any."""
    header_seconds: float = 10.0
    """How long a client may take to send its request."""
    largest_body: int = 256 * 1024
    most_waiting: int = 32
    """How many long polls may wait at once."""
    longest_wait_seconds: float = 60.0


@dataclass(frozen=True)
class Settings:
    """All of it."""

    training: Training
    serving: Serving = Serving()
    expected_gpus: bool = True
    """Whether it is a problem when the container sees no GPU."""
    poll_seconds: float = 5.0
    """How often the GPUs and the progress are looked at."""
