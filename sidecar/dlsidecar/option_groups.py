"""The options of the SideCar, in the groups in which `--help` shows them."""

from __future__ import annotations

from typing import Any

from dlsidecar.option_types import (
    choices_of,
    read_address,
    read_count,
    read_file_name,
    read_hook,
    read_list,
    read_mebibytes,
    read_pattern,
    read_seconds,
    read_signal,
    read_words,
)
from dlsidecar.settings import (
    MARKER,
    Complete,
    Confirmation,
    Framework,
    GpuIds,
    Split,
)

DEFAULT_CONTROLLER = "controller.dljob"


def add_training(group: Any) -> None:
    add = group.add_argument
    add(
        "--framework",
        choices=choices_of(Framework),
        default="none",
        help="the framework whose environment variables tell the processes their ranks and peers (%(default)s)",
    )
    add(
        "--processes",
        choices=choices_of(Split),
        default="perNode",
        help="how many processes to start here: one for each GPU, or one for all (%(default)s)",
    )
    add(
        "--gpu-ids",
        choices=choices_of(GpuIds),
        default="told",
        help="what CUDA_VISIBLE_DEVICES names: indices, UUIDs, or what the controller names (%(default)s)",
    )
    add(
        "--preload",
        type=read_list,
        default=(),
        metavar="MODULE[,MODULE...]",
        help="keep Python interpreters ready that have imported these modules, so that a start is warm",
    )
    add(
        "--most-spares",
        type=read_count,
        default=0,
        metavar="N",
        help="keep at most N of these interpreters, as far as memory allows (default: one for each"
        " visible GPU)",
    )
    add(
        "--spare-memory",
        type=read_mebibytes,
        default=0,
        metavar="MIB",
        help="how much memory these interpreters may take together, in MiB (default: half of the free memory)",
    )
    _add_watching(group)


def _add_watching(group: Any) -> None:
    add = group.add_argument
    add(
        "--grace-seconds",
        type=read_seconds,
        default=10.0,
        metavar="S",
        help="how long to wait between SIGTERM and SIGKILL (%(default)g)",
    )
    add(
        "--kill-seconds",
        type=read_seconds,
        default=5.0,
        metavar="S",
        help="how long to wait after SIGKILL before the SideCar reports a process that does not end and sends"
        " SIGKILL again (%(default)g)",
    )
    add(
        "--release-seconds",
        type=read_seconds,
        default=0.0,
        metavar="S",
        help="on GPUs that others share: after the job's last process has ended, release the GPUs after this"
        " time although memory is still in use that may be the job's (default: never)",
    )
    add(
        "--log-file",
        default="",
        metavar="FILE",
        help="write the output to this file (default: to the SideCar's own output)",
    )
    add(
        "--no-gpus-expected",
        action="store_true",
        help="report no problem when no GPU is visible",
    )
    add(
        "--poll-seconds",
        type=read_seconds,
        default=5.0,
        metavar="S",
        help="how often to read the GPUs and the progress (%(default)g)",
    )


def add_saving(group: Any) -> None:
    add = group.add_argument
    add(
        "--checkpoint-signal",
        type=read_signal,
        metavar="NAME",
        help="to ask for a checkpoint: send this signal, for example SIGUSR1",
    )
    add(
        "--checkpoint-command",
        type=read_words,
        default=(),
        metavar="JSON-LIST",
        help='or run this command in the environment of the training: \'["sh", "save.sh"]\'',
    )
    add(
        "--checkpoint-http",
        type=read_hook,
        metavar="PORT/PATH",
        help="or POST to this path on 127.0.0.1; with one process for each GPU the port is PORT + local rank",
    )
    add(
        "--checkpoint-to",
        choices=["leader", "all"],
        default="leader",
        help="which processes to ask: the first process of the whole job, or all (%(default)s)",
    )
    add(
        "--checkpoint-seconds",
        type=read_seconds,
        default=60.0,
        metavar="S",
        help="how long the checkpoint may take; after that the training stops without it (%(default)g)",
    )
    _add_confirming(group)


def _add_confirming(group: Any) -> None:
    add = group.add_argument
    add(
        "--checkpoint-confirm",
        choices=choices_of(Confirmation),
        default="exit",
        help="what shows that the checkpoint is done: a new checkpoint under --checkpoint-path, a line that matches"
        " --checkpoint-log, or the end of the processes that were asked (%(default)s)",
    )
    add("--checkpoint-log", default="", metavar="REGEX", help="the line that confirms a checkpoint")
    add("--checkpoint-path", default="", metavar="PATH", help="the folder of the checkpoints")
    add(
        "--checkpoint-files",
        type=read_pattern,
        default=None,
        metavar="PATTERN",
        help="which files or folders below --checkpoint-path are one checkpoint each, as in 'checkpoint-*'"
        " (default: all of them together are one)",
    )
    add(
        "--checkpoint-complete",
        choices=choices_of(Complete),
        default="auto",
        help="what shows that a checkpoint is complete: a framework's own files, a marker file, its final"
        " name (after a rename), or files that no longer change (%(default)s: the first of these"
        " that DLJob recognises)",
    )
    add(
        "--checkpoint-marker",
        type=read_file_name,
        default=MARKER,
        metavar="NAME",
        help="with --checkpoint-complete marker: the file that the training writes last (%(default)s)",
    )
    add(
        "--checkpoint-settle-seconds",
        type=read_seconds,
        default=None,
        metavar="S",
        help="a checkpoint without any such sign is complete when its files have not changed for this long"
        " (default: learnt from earlier checkpoints)",
    )
    add(
        "--checkpoint-memory",
        type=read_mebibytes,
        default=0,
        metavar="MIB",
        help="how much memory may hold checkpoints that are being written out to the disk; at least twice what"
        " one takes (none)",
    )
    add(
        "--checkpoint-memory-path",
        default="",
        metavar="PATH",
        help="with --checkpoint-memory: the folder in memory, which the SideCar makes and empties",
    )


def add_progress(group: Any) -> None:
    add = group.add_argument
    add(
        "--progress-log",
        default="",
        metavar="REGEX",
        help="a regular expression of Python for lines of the output; its named groups are iteration, epoch,"
        " batch, and metrics by their own names",
    )
    add(
        "--progress-file",
        default="",
        metavar="FILE",
        help="a file to which the training appends JSON objects, one per line",
    )
    add(
        "--progress-http",
        action="store_true",
        help="the training posts its progress over HTTP; needs --inner-socket",
    )
    add(
        "--samples-per-iteration",
        type=int,
        default=0,
        metavar="N",
        help="how many samples or tokens count as one iteration, where the training reports those",
    )
    add(
        "--stall-seconds",
        type=read_seconds,
        default=600.0,
        metavar="S",
        help="report a stalled training after this time without progress (%(default)g)",
    )


def add_serving(group: Any) -> None:
    add = group.add_argument
    add(
        "--socket",
        default="",
        metavar="FILE",
        help="on one machine: answer on this Unix socket, which only its owner may open",
    )
    add(
        "--listen",
        type=read_address,
        default=("", 0),
        metavar="[ADDRESS]:PORT",
        help="on a network: answer on this address, over mutual TLS",
    )
    add(
        "--tls",
        default="",
        metavar="FOLDER",
        help="with --listen: the folder of tls.crt, tls.key and ca.crt; the SideCar reads renewed files by itself",
    )
    add(
        "--job-uid",
        default="",
        metavar="UID",
        help="with --listen: the UID of the job that this SideCar belongs to, as its certificate names it",
    )
    add(
        "--controller-name",
        default=DEFAULT_CONTROLLER,
        metavar="NAME",
        help="the name in the certificate of the controller; only that one may command (%(default)s)",
    )
    add(
        "--inner-socket",
        default="",
        metavar="FILE",
        help="a Unix socket on which the training may report its progress",
    )
    add(
        "--health",
        type=read_address,
        default=None,
        metavar="[ADDRESS]:PORT",
        help="answer /healthz and /metrics on this address, over plain HTTP and without authentication",
    )
