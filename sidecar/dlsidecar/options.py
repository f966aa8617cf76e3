"""
The command line and the environment, read once into :class:`~dlsidecar.settings.Settings`.

Each option may also be set by an environment variable, ``--grace-seconds`` by
``DLJOB_SIDECAR_GRACE_SECONDS``; the command line wins. Contradictory options are refused here, by
name and before anything is started.
"""

from __future__ import annotations

import argparse
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from dlsidecar import __version__
from dlsidecar.option_groups import add_progress, add_saving, add_serving, add_training
from dlsidecar.settings import (
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
SERVICE_LINK = re.compile(
    r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)"
)
"""The variables that Kubernetes puts into every container for a Service, which may well have our name."""


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
        help="wait for the controller to assign GPUs, then run the command on them",
        usage="dljob-sidecar run [options] -- COMMAND [ARGUMENT ...]",
        epilog="Each option may also be set by a variable, as --grace-seconds by"
        f" {PREFIX}GRACE_SECONDS; the command line wins.",
    )
    add_training(run.add_argument_group("the training"))
    add_saving(run.add_argument_group("how it saves itself before a stop"))
    add_progress(run.add_argument_group("where the SideCar reads its progress"))
    add_serving(run.add_argument_group("who may speak to the SideCar, and where"))
    run.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


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
        raise UsageError(
            "the command to run is missing; write it after --, as in: -- python train.py"
        )
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
        raise UsageError(
            f"only one way to ask for a checkpoint is possible; remove all but one of {named}"
        )
    needed = {"file": "--checkpoint-path", "log": "--checkpoint-log"}
    missing = needed.get(options.checkpoint_confirm)
    given = {
        "--checkpoint-path": options.checkpoint_path,
        "--checkpoint-log": options.checkpoint_log,
    }
    if named and missing and not given[missing]:
        confirm = options.checkpoint_confirm
        raise UsageError(f"--checkpoint-confirm {confirm} needs {missing}")
    if bool(options.checkpoint_memory) != bool(options.checkpoint_memory_path):
        raise UsageError(
            "--checkpoint-memory and --checkpoint-memory-path are only possible together"
        )
    if options.checkpoint_memory and options.checkpoint_confirm != "file":
        raise UsageError("--checkpoint-memory needs --checkpoint-confirm file")
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
        memory_bytes=options.checkpoint_memory,
        memory_path=options.checkpoint_memory_path,
    )


def _serving(options: argparse.Namespace) -> Serving:
    address, port = options.listen
    if not options.socket and not options.tls:
        raise UsageError(
            "the SideCar has no address to answer on; write --socket FILE on one machine, or on a network"
            " --listen [ADDRESS]:PORT, --tls FOLDER and --job-uid UID"
        )
    if bool(options.tls) != bool(port) or bool(options.tls) != bool(options.job_uid):
        raise UsageError("--listen, --tls and --job-uid need each other; give all three or none")
    if options.progress_http and not options.inner_socket:
        raise UsageError(
            "--progress-http needs --inner-socket, the socket to which the training reports"
        )
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
# argparse reports a ValueError of these as "invalid … value" with the name of the option.


def environment_of_training(
    environment: Mapping[str, str], inner_socket: str = ""
) -> dict[str, str]:
    """Return what the training would get without us, and where it may tell its progress."""
    door = {PROGRESS_SOCKET: str(Path(inner_socket).absolute())} if inner_socket else {}
    return {**{name: to for name, to in environment.items() if not is_option(name)}, **door}


def is_option(name: str) -> bool:
    """Whether a variable of the environment is meant for us."""
    return name.startswith(PREFIX) and not SERVICE_LINK.fullmatch(f"_{name[len(PREFIX) :]}")
