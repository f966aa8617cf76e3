"""
``dljob suspend``, ``resume`` and ``cancel``: what a user may change about jobs that are there.
"""

import time
from collections.abc import Callable, Iterable

import click

from dlctl.backends import Away, Backend, BackendError, Json, NotThere
from dlctl.changing import change_job
from dlctl.choosing import with_backend
from dlctl.jobviews import CANCELLING, JobView
from dlctl.messages import complain
from dlctl.selecting import Selection, with_selection

LOOK_S = 0.3


@click.command("suspend")
@with_selection()
@with_backend
def suspend(backend: Backend, *, selection: Selection) -> int:
    """
    Take all GPUs from jobs. They save themselves, and wait until they are resumed.
    """
    names = selection.find(
        backend, "suspend", applies=lambda job: not job.is_final and not job.is_suspended
    )
    return for_each(names, lambda name: _set_suspended(backend, name, suspended=True))


@click.command("resume")
@with_selection()
@with_backend
def resume(backend: Backend, *, selection: Selection) -> int:
    """
    Put suspended jobs into the queue again, at the place that they had.
    """
    names = selection.find(
        backend, "resume", applies=lambda job: not job.is_final and job.is_suspended
    )
    return for_each(names, lambda name: _set_suspended(backend, name, suspended=False))


@click.command("cancel")
@with_selection()
@click.option("--wait", is_flag=True, help="Return when nothing is left of them.")
@click.option(
    "--keep-checkpoints",
    is_flag=True,
    help="Keep the job's own folder of checkpoints; a job of the same name goes on from there.",
)
@with_backend
def cancel(backend: Backend, *, selection: Selection, wait: bool, keep_checkpoints: bool) -> int:
    """
    End jobs, without saving them, and forget them and their logs.

    On one machine the checkpoints in a job's own folder ($DLJOB_CHECKPOINT_DIR) are removed with it,
    unless you keep them. Elsewhere, and on a cluster, checkpoints stay where they are.
    """
    names = selection.find(backend, "cancel", applies=lambda job: job.phase != CANCELLING)
    keep = keep_checkpoints
    status = for_each(names, lambda name: _cancel(backend, name, keep_checkpoints=keep))
    if wait:
        _wait_until_gone(backend, names)
    return status


def for_each(names: Iterable[str], change: Callable[[str], str]) -> int:
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
    def alter(document: Json) -> Json:
        if JobView.of(document).is_suspended is suspended:
            return document
        return {**document, "spec": {**document["spec"], "suspend": suspended}}

    if not change_job(backend, name, alter).is_change:
        return "is suspended already" if suspended else "is not suspended"
    return "suspended" if suspended else "resumed"


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
