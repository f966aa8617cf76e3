"""
``dljob suspend``, ``resume`` and ``cancel``: what a user may change about jobs that are there.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import click

from dlctl.backends import Away, Backend, BackendError, Conflict, Json, NotThere
from dlctl.choosing import name_argument, with_backend
from dlctl.jobviews import JobView
from dlctl.messages import complain

ATTEMPTS = 5
"""So often a change is tried again that somebody else got in the way of."""

LOOK_S = 0.3


@click.command("suspend")
@name_argument(several=True)
@with_backend
def suspend(backend: Backend, *, names: tuple[str, ...]) -> int:
    """
    Take all GPUs from jobs. They save themselves, and wait until they are resumed.
    """
    return _for_each(names, lambda name: _set_suspended(backend, name, suspended=True))


@click.command("resume")
@name_argument(several=True)
@with_backend
def resume(backend: Backend, *, names: tuple[str, ...]) -> int:
    """
    Put suspended jobs into the queue again, at the place that they had.
    """
    return _for_each(names, lambda name: _set_suspended(backend, name, suspended=False))


@click.command("cancel")
@name_argument(several=True)
@click.option("--wait", is_flag=True, help="Return when nothing is left of them.")
@click.option(
    "--keep-checkpoints",
    is_flag=True,
    help="Keep the job's own folder of checkpoints; a job of the same name goes on from there.",
)
@with_backend
def cancel(backend: Backend, *, names: tuple[str, ...], wait: bool, keep_checkpoints: bool) -> int:
    """
    End jobs, without saving them, and forget them and their logs.

    On one machine the checkpoints in a job's own folder ($DLJOB_CHECKPOINT_DIR) are removed with it,
    unless you keep them. Elsewhere, and on a cluster, checkpoints stay where they are.
    """
    keep = keep_checkpoints
    status = _for_each(names, lambda name: _cancel(backend, name, keep_checkpoints=keep))
    if wait:
        _wait_until_gone(backend, names)
    return status


def _for_each(names: Iterable[str], change: Callable[[str], str]) -> int:
    """Do what can be done, and tell of the rest."""
    status = 0
    for name in names:
        try:
            click.echo(f"{name} {change(name)}")
        except Away:
            raise
        except BackendError as error:
            complain(str(error))
            status = 1
    return status


def _set_suspended(backend: Backend, name: str, *, suspended: bool) -> str:
    """Read, change and write it; once more if somebody else has changed it in between."""
    for _ in range(ATTEMPTS - 1):
        with suppress(Conflict):
            return _try_to_set_suspended(backend, name, suspended=suspended)
    return _try_to_set_suspended(backend, name, suspended=suspended)


def _try_to_set_suspended(backend: Backend, name: str, *, suspended: bool) -> str:
    document = backend.get_job(name)
    job = JobView.of(document, backend.home)
    if job.is_final:
        remedy = "submit it under another name to train it again"
        raise BackendError(f"{name} is {job.phase} already; {remedy}")
    if bool(job.spec.get("suspend", False)) is suspended:
        return "is suspended already" if suspended else "is not suspended"
    backend.replace_job(_with_suspend(document, suspended=suspended))
    return "suspended" if suspended else "resumed"


def _with_suspend(document: Json, *, suspended: bool) -> Json:
    return {**document, "spec": {**document["spec"], "suspend": suspended}}


def _cancel(backend: Backend, name: str, *, keep_checkpoints: bool) -> str:
    backend.delete_job(name, keep_checkpoints=keep_checkpoints)
    return "cancelled"


def _wait_until_gone(backend: Backend, names: Iterable[str]) -> None:
    for name in names:
        while True:
            try:
                backend.get_job(name)
            except NotThere:
                break
            time.sleep(LOOK_S)
