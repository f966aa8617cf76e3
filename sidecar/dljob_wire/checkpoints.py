"""
The fields of a job's checkpoints: where the job saves itself, how it is asked to, and how that is confirmed.

This is their one declaration. ``spec.checkpoint`` of a DLJob, the definition of the custom resource, the value that the
controller works with, and ``checkpoint`` in the SideCar's ``--training`` follow from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from dljob_wire.kinds import (
    Complaint,
    Decimal,
    Flag,
    Form,
    Many,
    OneOf,
    Refuse,
    Rule,
    Said,
    Text,
    declare,
)
from dljob_wire.problems import listed, nearest, shown

DAY = 86_400
PATH_LENGTH = 1024
LONGEST_EXPRESSION = 1024

ENDING_SIGNALS = frozenset({"SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP"})
"""Signals that conventionally ask a program to end, even if the program saves itself first."""
MARKER = ".dljob-complete"
"""The default name of the file that a training writes last."""
HOOK_PORT = 8080
"""Where the training listens for requests if ``http`` names a path only."""

# Signals that a process can handle, by the names of Linux.
SIGNALS = tuple(
    f"SIG{name}"
    for name in (
        *("ABRT", "ALRM", "CONT", "HUP", "INT", "IO", "PROF", "PWR", "QUIT", "TERM", "TRAP"),
        *("TSTP", "TTIN", "TTOU", "URG", "USR1", "USR2", "VTALRM", "WINCH", "XCPU", "XFSZ"),
    )
)

FOLDER = Form(
    r"(\$\(DLJOB_CHECKPOINT_DIR\)|/[^\x00-\x1f]*)(/[^\x00-\x1f]*)?",
    "is not an absolute path",
    "begin it with /, as the training process sees it",
)
_PATTERN = Form(
    r"([^/.\x00-\x1f][^/\x00-\x1f]*|\.[^/.\x00-\x1f][^/\x00-\x1f]*)"
    r"(/([^/.\x00-\x1f][^/\x00-\x1f]*|\.[^/.\x00-\x1f][^/\x00-\x1f]*))*",
    "is not a pattern of names below a folder",
    "give one such as checkpoint-* or *.pt, without / at its ends and without ..",
)
_MEMORY = Form(
    r"[1-9][0-9]{0,5}(Mi|Gi)",
    "is no amount of memory",
    "give a number with Mi or Gi, such as 4Gi",
)
_FILE_NAME = Form(
    r"[^/\x00-\x1f]*[^/.\x00-\x1f][^/\x00-\x1f]*",
    "is not a name of a file",
    "give a name without a folder, such as DONE",
)
_URL_PATH = Form(
    r"(:[1-9][0-9]{0,4})?/[!-~]*",
    "is not a path of HTTP",
    "begin it with /, or with a port: :8080/checkpoint",
)
_SIGNAL = Form(
    "|".join(SIGNALS), "is not a signal that a process can handle", "write it like SIGUSR1"
)


def _not_a_signal(text: str) -> Complaint | None:
    """Complain about a signal that does not exist, or that would save nothing."""
    if text in SIGNALS:
        return None
    name = text.upper()
    name = name.removeprefix("SIG")
    if name in {"KILL", "STOP"}:
        deadly = f"{shown(text)} cannot be handled by a process, so nothing would be saved"
        return Complaint(deadly, "use SIGUSR1 or another that your training handles")
    wrong = f"{shown(text)} is not a signal that a process can handle"
    # Numbers differ between machines.
    if name.isdigit():
        return Complaint(wrong, "write its name, such as SIGUSR1")
    full = f"SIG{name}"
    guess = full if full in SIGNALS else nearest(full, SIGNALS)
    return Complaint(wrong, f"did you mean {guess}?" if guess else "write it like SIGUSR1")


class _Mebibytes(Text):
    """An amount of memory such as ``4Gi``, in MiB in the program."""

    def read(self, value: Any, path: str, *, refuse: Refuse) -> Any:
        before = refuse.count
        text = super().read(value, path, refuse=refuse)
        if refuse.count == before:
            return int(text[:-2]) << (10 if text.endswith("Gi") else 0)
        return None

    def write(self, value: int) -> str:
        return f"{value}Mi" if value else ""


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
class Checkpoint:
    """How a job saves itself before its process is stopped; at most one of the first three asks for it."""

    signal: str = declare(Text(16, _SIGNAL, check=_not_a_signal), "")
    """The signal that asks for a checkpoint, such as SIGUSR1."""
    command: tuple[str, ...] = declare(
        Many(
            Text(4096, description="A word of the command.", min_length=0),
            64,
            min_items=1,
            remedy='write a list of its words, such as ["python", "save.py"]',
        ),
        (),
    )
    """A command, run in the training container, that makes a checkpoint."""
    http: str = declare(Text(PATH_LENGTH, _URL_PATH), "")
    """A path that DLJob requests by POST from the training process, with a port in front of it if needed."""
    to: str = declare(OneOf(("leader", "all")), "leader")
    """Which processes DLJob asks: that of rank 0, or all of them."""
    confirm: Confirmation = declare(OneOf(Confirmation), Confirmation.EXIT)
    """How DLJob sees that the checkpoint is written: a new checkpoint under path, a line in the log that confirmLog
    finds, or the exit of the process."""
    confirm_log: str = declare(Text(LONGEST_EXPRESSION), "")
    """With confirm: log, the regular expression of Python that finds the confirming line."""
    path: str = declare(Text(PATH_LENGTH, FOLDER), "")
    """The folder that checkpoints are written to, as the training sees it. $(DLJOB_CHECKPOINT_DIR) stands for the
    job's own: on one machine it is made and removed with the job; on a cluster the env of the trainer's container
    says where it is."""
    files: str = declare(Text(PATH_LENGTH, _PATTERN), "")
    """Which files or folders below path are one checkpoint each, as a pattern: checkpoint-*, *.pt, logs/**/*.ckpt. If
    left out, a framework's own names, or all of path together. Logs next to them never count."""
    complete: Complete = declare(OneOf(Complete), Complete.AUTO)
    """How DLJob sees that a checkpoint is complete: by the marks of a framework (huggingface, accelerate, dcp,
    lightning, keras, tensorflow, deepspeed, megatron), by a file that is written last (marker), by its name (rename),
    or because its files have not changed for long enough (settled). auto takes the marks that it recognises, else
    settled."""
    marker: str = declare(Text(128, _FILE_NAME), "")
    """With complete: marker, the name of the file that is written last, into the folder of the checkpoint or into
    path, and that holds at least one byte. If left out, .dljob-complete."""
    memory_mebibytes: int = declare(_Mebibytes(8, _MEMORY, name="memory"), 0)
    """How much memory may hold checkpoints, such as 4Gi: at least twice what one takes. The training writes to memory
    and goes on while DLJob writes the checkpoint out to path, where alone it counts. On Kubernetes it is a part of the
    memory that the trainer's container may use. If left out, the training writes to path itself."""
    settle_seconds: float | None = declare(Decimal(0, DAY), None)
    """The number of seconds without a change after which an unmarked checkpoint counts as complete. If left out, it
    follows from the job's former checkpoints, with 2 for the first."""
    shared: bool = declare(Flag(), default=False)
    """True if path is the same folder on every node. If not, the job never moves to another node once it has
    trained."""
    trusted: bool = declare(Flag(), default=False)
    """True if the job loses nothing when it is stopped, although no checkpoint of it was confirmed, as training that
    saves each step by itself. A job without a checkpoint that works keeps the GPUs it starts with."""
    vet: bool = declare(Flag(), default=False)
    """True if DLJob moves torn checkpoints into .dljob-set-aside below path before each start, so that the training
    finds the latest whole one. If not, it reports torn checkpoints and leaves them where they are."""
    timeout_seconds: float = declare(Decimal(0, DAY), 60.0)
    """After this number of seconds DLJob gives a checkpoint up and stops the process."""
    grace_seconds: float = declare(Decimal(0, 3600), 10.0)
    """The number of seconds between SIGTERM and SIGKILL."""
    memory_path: str = declare(Said(4096, Form(r"[^\x00]*", "has a zero byte", "remove it")), "")
    """The folder in memory, which the platform gives to the training; empty for none. No document has it."""
    ends_with_pod: str = ""
    """The volume or file system of ``path``, if that ends with the pod. Platforms set it; empty: it outlives the pod."""

    @property
    def is_possible(self) -> bool:
        """True if the SideCar can ask the job to save itself, and so report the result."""
        return bool(self.signal or self.command or self.http)

    @property
    def goes_on(self) -> bool:
        """True if the training is expected to continue after it has saved itself."""
        ends = self.confirm is Confirmation.EXIT and not self.command
        return self.is_possible and not ends and self.signal not in ENDING_SIGNALS

    @property
    def to_all(self) -> bool:
        return self.to == "all"

    @property
    def hook(self) -> tuple[int, str]:
        """The port on the loopback address and the path of ``http``; each local rank listens at the next port."""
        port, _, path = self.http.lstrip(":").partition("/")
        return int(port or HOOK_PORT), path

    @property
    def marker_file(self) -> str:
        return self.marker or MARKER

    @property
    def memory_bytes(self) -> int:
        """The memory limit of checkpoints that are being written to disk; 0 for none."""
        return self.memory_mebibytes << 20 if self.memory_path else 0


_REQUESTS = ("signal", "command", "http")
_NAMED_SIGNS = ("huggingface", "accelerate", "dcp", "lightning", "keras")
"""The signs of frameworks that give each checkpoint a name of its own."""

CHECKPOINT_RULES = (
    Rule(
        name="checkpoint-is-asked-for-once",
        reads=_REQUESTS,
        message=f"asks for a checkpoint in more than one way of {listed(_REQUESTS, 'and')}",
        remedy="keep the one that your training listens to",
        holds=lambda checkpoint: sum(bool(getattr(checkpoint, name)) for name in _REQUESTS) <= 1,
        cel=(
            "(has(self.signal) ? 1 : 0) + (has(self.command) ? 1 : 0)"
            " + (has(self.http) ? 1 : 0) <= 1"
        ),
    ),
    Rule(
        name="confirming-file-has-a-path",
        reads=("confirm", "path"),
        at="confirm",
        message="waits for a new file, and path does not say where",
        remedy="give path, the folder that checkpoints are written to",
        holds=lambda checkpoint: checkpoint.confirm is not Confirmation.FILE or checkpoint.path,
        cel="!has(self.confirm) || self.confirm != 'file' || has(self.path)",
    ),
    Rule(
        name="checkpoint-files-have-a-path",
        reads=("files", "path"),
        at="files",
        message="names files below path, and path does not say where",
        remedy="give path, the folder that checkpoints are written to",
        holds=lambda checkpoint: not checkpoint.files or checkpoint.path,
        cel="!has(self.files) || has(self.path)",
    ),
    Rule(
        name="marker-completes",
        reads=("complete", "marker"),
        at="marker",
        message="is not used, because complete is not marker",
        remedy="write complete: marker, or leave marker out",
        holds=lambda checkpoint: not checkpoint.marker or checkpoint.complete is Complete.MARKER,
        cel="!has(self.marker) || has(self.complete) && self.complete == 'marker'",
    ),
    Rule(
        name="memory-confirms-by-file",
        reads=("confirm", "memory"),
        at="memory",
        message="is not used, because confirm is not file",
        remedy="write confirm: file, or leave memory out",
        holds=lambda checkpoint: (
            not checkpoint.memory_mebibytes or checkpoint.confirm is Confirmation.FILE
        ),
        cel="!has(self.memory) || has(self.confirm) && self.confirm == 'file'",
    ),
    Rule(
        name="memory-has-a-sign",
        reads=("complete", "files", "memory"),
        at="memory",
        message="needs checkpoints that have names of their own and a sign of completeness",
        remedy=f"write complete: {listed(_NAMED_SIGNS, 'or')}, or complete: marker or rename with files",
        holds=lambda checkpoint: (
            not checkpoint.memory_mebibytes
            or checkpoint.complete in _NAMED_SIGNS
            or (checkpoint.complete in ("marker", "rename") and checkpoint.files)
        ),
        cel=(
            "!has(self.memory) || has(self.complete) && (self.complete in"
            f" {list(_NAMED_SIGNS)} || self.complete in ['marker', 'rename'] && has(self.files))"
        ),
    ),
    Rule(
        name="confirming-log-has-an-expression",
        reads=("confirm", "confirmLog"),
        at="confirm",
        message="waits for a line in the log, and confirmLog does not say which",
        remedy="give confirmLog, a regular expression that finds it",
        holds=lambda checkpoint: (
            checkpoint.confirm is not Confirmation.LOG or checkpoint.confirm_log
        ),
        cel="!has(self.confirm) || self.confirm != 'log' || has(self.confirmLog)",
    ),
    Rule(
        name="expression-confirms-by-log",
        reads=("confirm", "confirmLog"),
        at="confirmLog",
        message="is not used, because confirm is not log",
        remedy="write confirm: log, or leave confirmLog out",
        holds=lambda checkpoint: (
            not checkpoint.confirm_log or checkpoint.confirm is Confirmation.LOG
        ),
        cel="!has(self.confirmLog) || has(self.confirm) && self.confirm == 'log'",
    ),
)
