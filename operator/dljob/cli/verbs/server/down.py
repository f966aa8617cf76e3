"""
``dljob down``: end the ``dljob up`` of this machine, in order.

The kernel says which process listens at the socket, and only a user who may signal that process can end it.
Trainings go on: the SideCars need no controller, and the next ``dljob up`` finds them.
"""

import os
import select
import signal
import socket
from pathlib import Path

import click

from dljob.cli.inputs.options import STATE_HELP
from dljob.cli.output.messages import say
from dljob.client.backend import BackendError
from dljob.client.jobviews import JobView
from dljob.client.local.socket_client import SocketClient, shorten
from dljob.client.places import find_folders
from dljob.control.sidecars.peers import read_peer

TIMEOUT_S = 60.0
PATIENCE_S = 5.0
"""The time-out of the list of jobs; without it the server ends unlisted."""

MOST_NAMES = 5


@click.command("down")
@click.option(
    "--state", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help=STATE_HELP
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.0, min_open=True),
    default=TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for its end.",
)
def command(*, state: Path | None, timeout: float) -> None:
    """
    End the dljob up of this machine.

    Trainings go on, and the next dljob up takes them over. To end jobs as well, use
    dljob cancel or dljob suspend before.
    """
    # The same server that the other verbs ask, which may be that of all users.
    folders = find_folders(state)
    process = find_process(folders.socket)
    if process is None:
        raise click.ClickException(
            f"{folders.root}: no dljob up runs there; if you mean another one, name its folder"
            " with --state"
        )
    training = _find_training(folders.socket)
    _end(process, timeout, folders.log)
    say(f"dljob up (process {process}) has ended. {_tell(training)}")


def find_process(path: Path) -> int | None:
    """Find the process that listens at a socket, if there is one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(str(shorten(path)))
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except OSError as error:
            problem = error.strerror or str(error)
            remedy = "end it as the user that runs it"
            raise click.ClickException(f"{path}: {problem}; {remedy}") from error
        process = read_peer(connection).pid
    if process <= 0:
        raise click.ClickException(
            f"{path}: the process that answers is in another container; end it there"
        )
    return process


def _find_training(path: Path) -> list[str] | None:
    """Return the names of the jobs that have GPUs, or ``None`` where the server does not answer."""
    client = SocketClient(path, patience_s=PATIENCE_S)
    try:
        jobs = [JobView.of(each, "") for each in client.ask("GET", ("jobs",))["items"]]
    except BackendError:
        # A server that hangs can still be ended, with its jobs unknown.
        return None
    return [job.name for job in jobs if job.slices and not job.is_final]


def _end(process: int, timeout: float, log: Path) -> None:
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        ended = select.select([handle], [], [], timeout)[0]
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise click.ClickException(
            f"dljob up is process {process} of another user; end it as that user"
        ) from error
    finally:
        os.close(handle)
    if not ended:
        raise click.ClickException(
            f"dljob up (process {process}) has not ended in {timeout:g} s; its log is {log}."
            f" kill -KILL {process} ends it at once, and no job loses anything"
        )


def _tell(training: list[str] | None) -> str:
    if training is None:
        return (
            "It did not name its jobs before its end; each job that has GPUs goes on training, and"
            " the next dljob up takes over."
        )
    if not training:
        return "No job has GPUs."
    names = ", ".join(training[:MOST_NAMES])
    more = f" and {len(training) - MOST_NAMES} more" if len(training) > MOST_NAMES else ""
    goes = "go" if len(training) > 1 else "goes"
    return f"{names}{more} {goes} on training; the next dljob up takes over."
