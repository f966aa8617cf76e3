"""
The description of a training that its SideCar gets at the start: one JSON object, ``--training``.

The controller makes it from the job, and :mod:`dljob_sidecar.options` reads it. Fields with their
default value are omitted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from dljob_wire import codec
from dljob_wire.kinds import (
    Each,
    Flag,
    Maybe,
    Nested,
    Number,
    OneOf,
    Text,
    Whole,
    Wrong,
    camel,
    joined,
    kinds_of,
    wire,
)

ENDING_SIGNALS = frozenset({"SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP", "SIGKILL"})
"""Signals that conventionally ask a program to end, even if the program saves itself first."""
MARKER = ".dljob-complete"
"""The default name of the file that a training writes last."""

ANY = r"[^\x00]*"
TEXT = Text(65536, ANY)
SIGNAL = Text(32, r"(SIG[A-Z0-9+-]+)?", "the name of a signal, such as SIGUSR1")
SECONDS = Number(maximum=1e7)
PERIOD = Number(0.1, 1e7)


class Framework(str, Enum):
    """The way in which training processes learn their ranks and peers."""

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

    TOLD = "told"
    """The form that the controller uses."""
    INDEX = "index"
    UUID = "uuid"


class Confirmation(str, Enum):
    """The way in which the job shows that its checkpoint is written."""

    FILE = "file"
    """A checkpoint under its path is newer than the request, and complete."""
    LOG = "log"
    """A line of the output matches a regular expression."""
    EXIT = "exit"
    """The processes that received the request end by themselves."""


class Complete(str, Enum):
    """The sign of a complete checkpoint; :mod:`dljob_sidecar.checkpoints.recognizing.signs` implements them."""

    AUTO = "auto"
    """The marks of the framework that writes the files; ``settled`` if none is recognised."""
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


@dataclass(frozen=True)
class Saving:
    """The way in which the job saves itself before a stop; at most one of the first three."""

    signal: str = field(default="", metadata=wire(SIGNAL))
    """The name of a signal, such as ``SIGUSR1``."""
    command: tuple[str, ...] = field(default=(), metadata=wire(Each(TEXT, 1024)))
    """A command to run in the environment of the training."""
    http: str = field(
        default="",
        metadata=wire(Text(1024, r"([1-9][0-9]{0,4}/[\x21-\x7e]*)?", "PORT/PATH, as in 8080/save")),
    )
    """``PORT/PATH`` at which the training process takes a POST on the loopback address; one
    process per GPU listens at PORT + local rank."""
    to_all: bool = field(default=False, metadata=wire(Flag()))
    """True to ask every process, and not only the leader (the first process of the job)."""
    confirm: Confirmation = field(default=Confirmation.EXIT, metadata=wire(OneOf(Confirmation)))
    confirm_log: str = field(default="", metadata=wire(TEXT))
    path: str = field(default="", metadata=wire(TEXT))
    """The folder of the checkpoints; required for a confirmation by file."""
    files: str = field(
        default="",
        metadata=wire(
            Text(
                1024,
                r"(?!/)(?!(.*/)?\.\.(/|$))[^\x00]*",
                "a pattern below path, such as checkpoint-*",
            )
        ),
    )
    """The pattern, below the path, of the files or folders that are one checkpoint each."""
    complete: Complete = field(default=Complete.AUTO, metadata=wire(OneOf(Complete)))
    marker: str = field(
        default=MARKER, metadata=wire(Text(255, r"[^/\x00]+", "the name of a file, such as DONE"))
    )
    """The file that completes a checkpoint, with ``complete: marker``."""
    settle_seconds: float | None = field(default=None, metadata=wire(Maybe(SECONDS)))
    """How long files of a checkpoint without a sign must stay unchanged; None to learn it."""
    vet: bool = field(default=False, metadata=wire(Flag()))
    """True to move torn checkpoints away before each start; False to only report them."""
    timeout_seconds: float = field(default=60.0, metadata=wire(SECONDS))
    memory_bytes: int = field(default=0, metadata=wire(Whole()))
    """The memory limit of checkpoints that are being written to disk; 0 for none."""
    memory_path: str = field(default="", metadata=wire(TEXT))
    """The folder in memory that the training writes to if ``memory_bytes`` is set."""

    @property
    def is_possible(self) -> bool:
        return bool(self.signal or self.command or self.http)

    @property
    def goes_on(self) -> bool:
        """True if the training is expected to continue after it has saved itself."""
        return self.is_possible and goes_on_after_saving(
            signal=self.signal, confirm=self.confirm.value, has_command=bool(self.command)
        )


@dataclass(frozen=True)
class Training:
    """The part of the job that a SideCar needs."""

    command: tuple[str, ...] = ()
    """The arguments after ``--`` on the command line."""
    framework: Framework = field(default=Framework.NONE, metadata=wire(OneOf(Framework)))
    processes: Split = field(default=Split.PER_NODE, metadata=wire(OneOf(Split)))
    gpu_ids: GpuIds = field(default=GpuIds.TOLD, metadata=wire(OneOf(GpuIds)))
    checkpoint: Saving = field(default=Saving(), metadata=wire(Nested(Saving)))
    grace_seconds: float = field(default=10.0, metadata=wire(SECONDS))
    """The time between SIGTERM and SIGKILL."""
    kill_seconds: float = field(default=5.0, metadata=wire(PERIOD))
    """The time from each SIGKILL to a report of the remaining process and another SIGKILL."""
    release_seconds: float = field(default=0.0, metadata=wire(SECONDS))
    """On shared GPUs: how long memory in use delays the release of an ended job; 0 for no limit."""
    preload: tuple[str, ...] = field(default=(), metadata=wire(Each(TEXT, 256)))
    """The modules that spare interpreters import; empty for no spares."""
    most_spares: int = field(default=0, metadata=wire(Whole(maximum=9999)))
    """The largest number of spares, which is that of processes here; 0 for one per visible GPU."""
    spare_memory_bytes: int = field(default=0, metadata=wire(Whole()))
    """The memory limit of all spares together; 0 for half of the free memory."""
    progress_log: str = field(default="", metadata=wire(TEXT))
    """A regular expression whose named groups are ``iteration``, ``epoch``, ``batch`` or metrics."""
    progress_file: str = field(default="", metadata=wire(TEXT))
    """A file to which the job appends JSON lines."""
    progress_socket: str = field(default="", metadata=wire(TEXT))
    """A Unix socket at which the training may post its progress over HTTP; empty for none."""
    iterations: int = field(default=0, metadata=wire(Whole()))
    """The total number of iterations; 0 if unknown."""
    iterations_per_epoch: int = field(default=0, metadata=wire(Whole()))
    """The iterations per epoch, if the training may report epochs alone; 0 if those do not count."""
    samples_per_iteration: int = field(default=0, metadata=wire(Whole()))
    """The samples or tokens per iteration, if the training reports those; 0 if unknown."""
    stall_seconds: float = field(default=600.0, metadata=wire(SECONDS))
    """The time without progress after which a training counts as stalled."""
    log_file: str = field(default="", metadata=wire(TEXT))
    """The file of the output; empty for the SideCar's own output."""
    poll_seconds: float = field(default=5.0, metadata=wire(PERIOD))
    """How often the SideCar reads the GPUs and the progress."""
    expects_gpus: bool = field(default=True, metadata=wire(Flag()))
    """False if a job without a visible GPU is no problem."""


def is_at_end(iteration: int, iterations: int) -> bool:
    """Return True if this is the last iteration; a training far beyond it has a total that is too low."""
    return 0 < iterations <= iteration <= 1.1 * iterations


def goes_on_after_saving(*, signal: str, confirm: str, has_command: bool) -> bool:
    """Return True if a training with these settings is expected to save itself and continue."""
    ends = confirm == "exit" and not has_command
    return not ends and signal not in ENDING_SIGNALS


def write_training(training: Training) -> str:
    """Return the description as one line of JSON, without fields that have their default value."""
    return json.dumps(_changed(training), separators=(",", ":"))


def _changed(message: Training | Saving) -> dict[str, Any]:
    fields: type = type(message)
    default = fields()
    found = {}
    for name, (attribute, kind) in kinds_of(fields).items():
        value = getattr(message, attribute)
        if value != getattr(default, attribute):
            found[name] = _changed(value) if isinstance(value, Saving) else kind.write(value)
    return found


def read_training(text: str) -> Training:
    """Parse the result of :func:`write_training`; raises :class:`~dljob_wire.kinds.Wrong`."""
    document = codec.parse(text.encode("utf-8", "surrogateescape"))
    training: Training = Nested(Training).read(document, "")
    # Refuse unknown fields, because people write this JSON by hand and may misspell names.
    _refuse_unknown(document, Training, path="")
    _refuse_unknown(document.get("checkpoint", {}), Saving, path="checkpoint")
    _refuse_contradictions(training.checkpoint)
    return training


def _refuse_unknown(document: dict[str, Any], message: type, *, path: str) -> None:
    known = kinds_of(message)
    for name, value in document.items():
        if name not in known:
            raise Wrong(joined(path, name), value, "is unknown", f"write one of {', '.join(known)}")


def _refuse_contradictions(saving: Saving) -> None:
    if sum(map(bool, (saving.signal, saving.command, saving.http))) > 1:
        ways = "only one way to ask for a checkpoint is possible"
        raise Wrong(
            "checkpoint.signal", saving.signal, ways, "write one of signal, command and http"
        )
    needed = {Confirmation.FILE: "path", Confirmation.LOG: "confirm_log"}.get(saving.confirm, "")
    if saving.is_possible and needed and not getattr(saving, needed):
        needs = f"needs checkpoint.{camel(needed)}"
        raise Wrong(
            "checkpoint.confirm", saving.confirm.value, needs, f"write checkpoint.{camel(needed)}"
        )
    if bool(saving.memory_bytes) != bool(saving.memory_path):
        both = "memoryBytes and memoryPath are only possible together"
        raise Wrong("checkpoint.memoryBytes", saving.memory_bytes, both, "write both or none")
    if saving.memory_bytes and saving.confirm is not Confirmation.FILE:
        raise Wrong(
            "checkpoint.memoryBytes", saving.memory_bytes, "needs a file", "write confirm: file"
        )
