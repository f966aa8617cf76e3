"""
The command line and the environment, read once into :class:`~dljob_sidecar.settings.Settings`.

A variable can replace each option, ``DLJOB_SIDECAR_JOB_UID`` the option ``--job-uid``; the command line
wins. Contradictory options are refused by name, before anything is started.
"""

from __future__ import annotations

import argparse
import platform
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from dljob_sidecar import __version__
from dljob_sidecar.settings import Serving, Settings
from dljob_wire.endpoints import Endpoint, read_endpoint
from dljob_wire.kinds import Wrong
from dljob_wire.training import Training, read_training

PREFIX = "DLJOB_SIDECAR_"
TERMINATION_LOG = "/dev/termination-log"
"""Where a kubelet reads the last message of a container, if its pod names no other file."""
PROGRESS_SOCKET = "DLJOB_PROGRESS_SOCKET"
SERVICE_LINK = re.compile(
    r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)"
)
"""The variables that Kubernetes adds for a Service, whose names may equal the SideCar's options."""


class UsageError(Exception):
    """The command line is invalid."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise instead of ending the process, so that one place ends it."""
        raise UsageError(message)


def read(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Return the settings, or raise :class:`UsageError`."""
    options = _build_parser().parse_args(_with_environment(arguments, environment))
    training = _training(options)
    return Settings(training, _serving(options, training))


def _build_parser() -> _Parser:
    version = f"dljob-sidecar {__version__} (Python {platform.python_version()})"
    parser = _Parser(prog="dljob-sidecar", description="Runs a training that can be reshaped.")
    parser.add_argument("--version", action="version", version=version)
    verbs = parser.add_subparsers(dest="verb", required=True, parser_class=_Parser)
    run = verbs.add_parser(
        "run",
        help="wait for the controller to assign GPUs, then run the command on them",
        usage="dljob-sidecar run [options] -- COMMAND [ARGUMENT ...]",
        epilog="Each option may also be set by a variable, as --job-uid by"
        f" {PREFIX}JOB_UID; the command line wins.",
    )
    run.add_argument(
        "--training",
        default="{}",
        metavar="JSON",
        help="the training as one JSON object; docs/sidecar.md lists its fields",
    )
    run.add_argument(
        "--socket",
        default="",
        metavar="FILE",
        help="on one machine: answer on this Unix socket, which only its owner may open",
    )
    run.add_argument(
        "--listen",
        type=_read_address,
        default=("", 0),
        metavar="[ADDRESS]:PORT",
        help="on a network: answer on this address, over mutual TLS",
    )
    run.add_argument(
        "--tls",
        default="",
        metavar="FOLDER",
        help="with --listen: the folder of tls.crt, tls.key and ca.crt; the SideCar reads renewed files by itself",
    )
    run.add_argument(
        "--job-uid",
        default="",
        metavar="UID",
        help="with --listen: the UID of the job that this SideCar belongs to, as its certificate names it",
    )
    run.add_argument(
        "--controller-name",
        default="controller.dljob",
        metavar="NAME",
        help="the name in the certificate of the controller; only that one may command (%(default)s)",
    )
    run.add_argument(
        "--health",
        type=_read_address,
        metavar="[ADDRESS]:PORT",
        help="answer /healthz and /metrics on this address, over plain HTTP and without authentication",
    )
    run.add_argument(
        "--left",
        default="",
        metavar="FILE",
        help="write here how the training has ended, for a controller that finds the SideCar gone"
        " (default: the name of the socket and .left, or /dev/termination-log)",
    )
    run.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _read_address(text: str) -> Endpoint:
    try:
        return read_endpoint(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _with_environment(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Put the environment's options first, so those of the command line take precedence."""
    if not arguments or arguments[0] != "run":
        return list(arguments)
    given = [
        f"--{name[len(PREFIX) :].lower().replace('_', '-')}={value}"
        for name, value in sorted(environment.items())
        if is_option(name) and value
    ]
    return [arguments[0], *given, *arguments[1:]]


def _training(options: argparse.Namespace) -> Training:
    command = list(options.command)
    if command[:1] == ["--"]:
        command.pop(0)
    if not command:
        raise UsageError(
            "the command to run is missing; write it after --, as in: -- python train.py"
        )
    try:
        training = read_training(options.training)
    except Wrong as error:
        raise UsageError(f"--training: {error}") from error
    name = training.checkpoint.signal
    if name and name not in signal.Signals.__members__:
        raise UsageError(f"--training: checkpoint.signal: {name} is not the name of a signal here")
    return replace(training, command=tuple(command))


def _serving(options: argparse.Namespace, training: Training) -> Serving:
    address, port = options.listen
    if not options.socket and not options.tls:
        raise UsageError(
            "the SideCar has no address to answer on; write --socket FILE on one machine, or on a network"
            " --listen [ADDRESS]:PORT, --tls FOLDER and --job-uid UID"
        )
    if bool(options.tls) != bool(port) or bool(options.tls) != bool(options.job_uid):
        raise UsageError("--listen, --tls and --job-uid need each other; give all three or none")
    health_address, health_port = options.health or ("", None)
    return Serving(
        socket=options.socket,
        left=options.left or (f"{options.socket}.left" if options.socket else TERMINATION_LOG),
        address=address,
        port=port,
        tls_folder=options.tls,
        job_uid=options.job_uid,
        controller_name=options.controller_name,
        progress_socket=training.progress_socket,
        health_address=health_address,
        health_port=health_port,
    )


def environment_of_training(
    environment: Mapping[str, str], progress_socket: str = ""
) -> dict[str, str]:
    """Return the environment without the SideCar's options, with the progress socket."""
    own = {PROGRESS_SOCKET: str(Path(progress_socket).absolute())} if progress_socket else {}
    return {**{name: to for name, to in environment.items() if not is_option(name)}, **own}


def is_option(name: str) -> bool:
    return name.startswith(PREFIX) and not SERVICE_LINK.fullmatch(f"_{name[len(PREFIX) :]}")
