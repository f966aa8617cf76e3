"""
The command line and the environment, read once into :class:`~dlsidecar.settings.Settings`.

Each option may also be set by an environment variable, ``--grace-seconds`` by
``DLJOB_SIDECAR_GRACE_SECONDS``; the command line wins. What contradicts itself is refused here, by
name and before anything is started.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from dlsidecar import __version__
from dlsidecar.settings import (
    MARKER,
    Complete,
    Confirmation,
    Framework,
    GpuIds,
    Saving,
    Serving,
    Settings,
    Split,
    Training,
)

PREFIX = "DLJOB_SIDECAR_"
PROGRESS_SOCKET = "DLJOB_PROGRESS_SOCKET"
DEFAULT_CONTROLLER = "controller.dljob"
LARGEST_PORT = 65535
SERVICE_LINK = re.compile(
    r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)"
)
"""What Kubernetes puts into every container for a Service, which may well be named as we are."""


class UsageError(Exception):
    """The command line asks for something that cannot be."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise instead of ending the process, so that there is one place that does."""
        raise UsageError(message)


def read(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Make the settings, or raise :class:`UsageError`."""
    parser = _build_parser()
    commands = parser.parse_args(_with_environment(arguments, environment))
    return Settings(
        training=_training(commands),
        serving=_serving(commands),
        expected_gpus=not commands.no_gpus_expected,
        poll_seconds=max(commands.poll_seconds, 0.1),
    )


def _build_parser() -> _Parser:
    version = f"dljob-sidecar {__version__} (Python {platform.python_version()})"
    parser = _Parser(prog="dljob-sidecar", description="Runs a training that can be reshaped.")
    parser.add_argument("--version", action="version", version=version)
    verbs = parser.add_subparsers(dest="verb", required=True, parser_class=_Parser)
    run = verbs.add_parser(
        "run",
        help="wait to be told the GPUs, then run the command on them",
        usage="dljob-sidecar run [options] -- COMMAND [ARGUMENT ...]",
        epilog="Each option may also be set by a variable, as --grace-seconds by"
        f" {PREFIX}GRACE_SECONDS; the command line wins.",
    )
    _add_training(run.add_argument_group("the training"))
    _add_saving(run.add_argument_group("how it saves itself before a stop"))
    _add_progress(run.add_argument_group("where its progress is read"))
    _add_serving(run.add_argument_group("who may speak to the SideCar, and where"))
    run.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _add_training(group: Any) -> None:
    add = group.add_argument
    add(
        "--framework",
        choices=_words(Framework),
        default="none",
        help="in whose words the processes are told their ranks and peers (%(default)s)",
    )
    add(
        "--processes",
        choices=_words(Split),
        default="perNode",
        help="how many there are here: one for each GPU, or one for all (%(default)s)",
    )
    add(
        "--gpu-ids",
        choices=_words(GpuIds),
        default="told",
        help="what CUDA_VISIBLE_DEVICES names: indices, UUIDs, or what the controller names (%(default)s)",
    )
    add(
        "--preload",
        type=_listed,
        default=(),
        metavar="MODULE[,MODULE...]",
        help="keep interpreters ready that have imported these, to start warm from",
    )
    add(
        "--most-spares",
        type=_count,
        default=0,
        metavar="N",
        help="keep one for each process that there can be here, N at most, where memory allows it (one"
        " for each GPU that is seen)",
    )
    add(
        "--spare-memory",
        type=_mebibytes,
        default=0,
        metavar="MIB",
        help="how much memory they may take together, in MiB (half of what is free)",
    )
    _add_watching(group)


def _add_watching(group: Any) -> None:
    add = group.add_argument
    add(
        "--grace-seconds",
        type=_seconds,
        default=10.0,
        metavar="S",
        help="between SIGTERM and SIGKILL (%(default)g)",
    )
    add(
        "--kill-seconds",
        type=_seconds,
        default=5.0,
        metavar="S",
        help="after SIGKILL, before it is reported that something does not end, and sent again"
        " (%(default)g)",
    )
    add(
        "--release-seconds",
        type=_seconds,
        default=0.0,
        metavar="S",
        help="where others use the GPUs as well: how long GPU memory that may be the job's keeps its GPUs from"
        " being released, once no process of it is left (for ever)",
    )
    add(
        "--log-file",
        default="",
        metavar="FILE",
        help="where the output goes; to that of the SideCar if this is not said",
    )
    add(
        "--no-gpus-expected",
        action="store_true",
        help="do not report it when no GPU is to be seen",
    )
    add(
        "--poll-seconds",
        type=_seconds,
        default=5.0,
        metavar="S",
        help="how often the GPUs and the progress are looked at (%(default)g)",
    )


def _add_saving(group: Any) -> None:
    add = group.add_argument
    add("--checkpoint-signal", type=_signal, metavar="NAME", help="send this signal, say SIGUSR1")
    add(
        "--checkpoint-command",
        type=_words_of,
        default=(),
        metavar="JSON-LIST",
        help='or run this in the environment of the training: \'["sh", "save.sh"]\'',
    )
    add(
        "--checkpoint-http",
        type=_hook,
        metavar="PORT/PATH",
        help="or POST to this on 127.0.0.1; with a process for each GPU at PORT + its local rank",
    )
    add(
        "--checkpoint-to",
        choices=["leader", "all"],
        default="leader",
        help="who is asked: the first process of the whole job, or every one (%(default)s)",
    )
    add(
        "--checkpoint-seconds",
        type=_seconds,
        default=60.0,
        metavar="S",
        help="how long it may take before the training is stopped without it (%(default)g)",
    )
    _add_confirming(group)


def _add_confirming(group: Any) -> None:
    add = group.add_argument
    add(
        "--checkpoint-confirm",
        choices=_words(Confirmation),
        default="exit",
        help="how it is seen to be done: a new checkpoint under --checkpoint-path, a line that matches"
        " --checkpoint-log, or the end of who was asked (%(default)s)",
    )
    add("--checkpoint-log", default="", metavar="REGEX", help="the line that confirms it")
    add("--checkpoint-path", default="", metavar="PATH", help="the folder of the checkpoints")
    add(
        "--checkpoint-files",
        type=_pattern,
        default=None,
        metavar="PATTERN",
        help="which files or folders below it are one checkpoint each, as in 'checkpoint-*'; all of"
        " them together if this is not said",
    )
    add(
        "--checkpoint-complete",
        choices=_words(Complete),
        default="auto",
        help="how a checkpoint is seen to be complete: by a framework's own marks, by a marker, by"
        " its name (a rename), or by files that have settled (%(default)s: the marks that are"
        " recognised)",
    )
    add(
        "--checkpoint-marker",
        type=_file_name,
        default=MARKER,
        metavar="NAME",
        help="with --checkpoint-complete marker: the file that is written last (%(default)s)",
    )
    add(
        "--checkpoint-settle-seconds",
        type=_seconds,
        default=None,
        metavar="S",
        help="how long nothing may change in a checkpoint without any such sign; learnt from the"
        " former ones if this is not said",
    )


def _add_progress(group: Any) -> None:
    add = group.add_argument
    add(
        "--progress-log",
        default="",
        metavar="REGEX",
        help="one of Python's re for lines of the output; its named groups are iteration, epoch,"
        " batch, and metrics by their own names",
    )
    add(
        "--progress-file",
        default="",
        metavar="FILE",
        help="a file to which the training appends a JSON object a line",
    )
    add(
        "--progress-http",
        action="store_true",
        help="the training posts its progress: see to it that there is an --inner-socket",
    )
    add(
        "--samples-per-iteration",
        type=int,
        default=0,
        metavar="N",
        help="so many samples or tokens, where these are told, count as one iteration",
    )
    add(
        "--stall-seconds",
        type=_seconds,
        default=600.0,
        metavar="S",
        help="report it when nothing has moved for so long (%(default)g)",
    )


def _add_serving(group: Any) -> None:
    add = group.add_argument
    add(
        "--socket",
        default="",
        metavar="FILE",
        help="on one machine: a Unix socket that only its owner may open",
    )
    add(
        "--listen",
        type=_address,
        default=("", 0),
        metavar="[ADDRESS]:PORT",
        help="on a network: where to answer, over mutual TLS",
    )
    add(
        "--tls",
        default="",
        metavar="FOLDER",
        help="with --listen: tls.crt, tls.key and ca.crt, read again when they are renewed",
    )
    add(
        "--job-uid",
        default="",
        metavar="UID",
        help="with --listen: the job that this is a part of, as certificates name it",
    )
    add(
        "--controller-name",
        default=DEFAULT_CONTROLLER,
        metavar="NAME",
        help="the one name in a certificate that may command (%(default)s)",
    )
    add(
        "--inner-socket",
        default="",
        metavar="FILE",
        help="a Unix socket at which the training may tell its progress",
    )
    add(
        "--health",
        type=_address,
        default=None,
        metavar="[ADDRESS]:PORT",
        help="answer /healthz and /metrics there, plainly and to anybody",
    )


def _with_environment(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Put the options of the environment before those of the command line, which so win."""
    if not arguments or arguments[0] != "run":
        return list(arguments)
    given = []
    for name, value in sorted(environment.items()):
        if is_option(name) and value:
            option = "--" + name[len(PREFIX) :].lower().replace("_", "-")
            is_switch = option in {"--no-gpus-expected", "--progress-http"}
            given.append(option if is_switch else f"{option}={value}")
    return [arguments[0], *given, *arguments[1:]]


# --- from options to settings -------------------------------------------------------------


def _training(options: argparse.Namespace) -> Training:
    command = list(options.command)
    if command[:1] == ["--"]:
        command.pop(0)
    if not command:
        raise UsageError("what to run is missing; write it behind --, as in: -- python train.py")
    return Training(
        command=tuple(command),
        framework=Framework(options.framework),
        split=Split(options.processes),
        gpu_ids=GpuIds(options.gpu_ids),
        saving=_saving(options),
        grace_seconds=options.grace_seconds,
        kill_seconds=max(options.kill_seconds, 0.1),
        release_seconds=options.release_seconds,
        preload=options.preload,
        most_spares=options.most_spares,
        spare_memory_bytes=options.spare_memory,
        progress_log=options.progress_log,
        progress_file=options.progress_file,
        samples_per_iteration=max(0, options.samples_per_iteration),
        stall_seconds=options.stall_seconds,
        log_file=options.log_file,
    )


def _saving(options: argparse.Namespace) -> Saving:
    ways = {
        "--checkpoint-signal": options.checkpoint_signal,
        "--checkpoint-command": options.checkpoint_command,
        "--checkpoint-http": options.checkpoint_http,
    }
    named = [name for name, value in ways.items() if value]
    if len(named) > 1:
        raise UsageError(f"there is one way to ask for a checkpoint; leave one of {named} out")
    needed = {"file": "--checkpoint-path", "log": "--checkpoint-log"}
    missing = needed.get(options.checkpoint_confirm)
    given = {
        "--checkpoint-path": options.checkpoint_path,
        "--checkpoint-log": options.checkpoint_log,
    }
    if named and missing and not given[missing]:
        confirm = options.checkpoint_confirm
        raise UsageError(f"--checkpoint-confirm {confirm} needs {missing}")
    return Saving(
        signal=options.checkpoint_signal or "",
        command=options.checkpoint_command,
        http=options.checkpoint_http or "",
        to_all=options.checkpoint_to == "all",
        confirm=Confirmation(options.checkpoint_confirm),
        confirm_log=options.checkpoint_log,
        path=options.checkpoint_path,
        files=options.checkpoint_files or "",
        complete=Complete(options.checkpoint_complete),
        marker=options.checkpoint_marker,
        settle_seconds=options.checkpoint_settle_seconds,
        timeout_seconds=options.checkpoint_seconds,
    )


def _serving(options: argparse.Namespace) -> Serving:
    address, port = options.listen
    if not options.socket and not options.tls:
        raise UsageError(
            "nobody could speak to the SideCar; write --socket FILE on one machine, or on a network"
            " --listen [ADDRESS]:PORT, --tls FOLDER and --job-uid UID"
        )
    if bool(options.tls) != bool(port) or bool(options.tls) != bool(options.job_uid):
        raise UsageError("--listen, --tls and --job-uid are only possible together")
    if options.progress_http and not options.inner_socket:
        raise UsageError("--progress-http needs --inner-socket, where the training reports to")
    health_address, health_port = options.health or ("", None)
    return Serving(
        socket=options.socket,
        address=address,
        port=port,
        tls_folder=options.tls,
        job_uid=options.job_uid,
        controller_name=options.controller_name,
        inner_socket=options.inner_socket,
        health_address=health_address,
        health_port=health_port,
    )


# --- the kinds of values ------------------------------------------------------------------
# What these raise as ValueError, argparse tells as "invalid … value" with the name of the option.


def _words(enumeration: Any) -> list[str]:
    return [word.value for word in enumeration]


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= 1e7:
        raise argparse.ArgumentTypeError(f"{text} is no time in seconds, from 0 to 10000000")
    return seconds


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 4):
        raise argparse.ArgumentTypeError(f"{text} is no number from 0 to 9999")
    return int(text)


def _mebibytes(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 1 << 30):
        raise argparse.ArgumentTypeError(f"{text} is no amount in MiB, from 1 on")
    return int(text) << 20


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part for part in (part.strip() for part in text.split(",")) if part)


def _signal(text: str) -> str:
    if text.upper() not in signal.Signals.__members__:
        raise argparse.ArgumentTypeError(f"{text} is no signal; write one such as SIGUSR1")
    return text.upper()


def _pattern(text: str) -> str:
    parts = text.split("/")
    if not text or text.startswith("/") or ".." in parts:
        raise argparse.ArgumentTypeError(
            f"{text} is no pattern below --checkpoint-path; write one such as checkpoint-*"
        )
    return text


def _file_name(text: str) -> str:
    if not text or "/" in text:
        raise argparse.ArgumentTypeError(f"{text} is no name of a file; write one such as DONE")
    return text


def _words_of(text: str) -> tuple[str, ...]:
    try:
        words = json.loads(text)
    except ValueError:
        words = None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise argparse.ArgumentTypeError(f'{text} is no list of words such as ["sh", "save.sh"]')
    return tuple(words)


def _hook(text: str) -> str:
    if not re.fullmatch(r"[1-9][0-9]{0,4}/[\x21-\x7e]*", text):
        raise argparse.ArgumentTypeError(f"{text} is no hook; write PORT/PATH, as in 8080/save")
    return text


def _address(text: str) -> tuple[str, int]:
    address, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > LARGEST_PORT:
        raise argparse.ArgumentTypeError(f"{text} is no address; write [ADDRESS]:PORT")
    return address.strip("[]"), int(port)


def environment_of_training(
    environment: Mapping[str, str], inner_socket: str = ""
) -> dict[str, str]:
    """Return what the training would get without us, and where it may tell its progress."""
    door = {PROGRESS_SOCKET: str(Path(inner_socket).absolute())} if inner_socket else {}
    return {**{name: to for name, to in environment.items() if not is_option(name)}, **door}


def is_option(name: str) -> bool:
    """Whether a variable of the environment is meant for us."""
    return name.startswith(PREFIX) and not SERVICE_LINK.fullmatch(f"_{name[len(PREFIX) :]}")
