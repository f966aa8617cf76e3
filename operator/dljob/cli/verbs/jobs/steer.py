"""
``dljob suspend``, ``resume``, ``cancel`` and ``set``: changes of existing jobs.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import click

from dljob.cli.inputs.options import gpu_options, with_backend
from dljob.cli.inputs.selecting import Selection, with_selection
from dljob.cli.output.messages import complain
from dljob.client.backend import (
    Away,
    Backend,
    BackendError,
    Json,
    Keeping,
    NotThere,
)
from dljob.client.changing import cancel_job, change_job, describe_changes, suspend_job
from dljob.client.demands import Demand
from dljob.client.jobviews import CANCELLING

LOOK_S = 0.3

_WARNINGS = {
    Keeping.USUAL: "The checkpoints in their own folders are removed with them (--keep-checkpoints keeps them);"
    " those of Completed jobs are kept.",
    Keeping.KEEP: "Their checkpoints are kept.",
    Keeping.REMOVE: "The checkpoints in their own folders are removed with them, also those of Completed jobs.",
}


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
@click.option("--wait", is_flag=True, help="Return when the jobs are gone.")
@click.option(
    "--keep-checkpoints",
    is_flag=True,
    help="Keep the job's own folder of checkpoints; a job of the same name continues from there.",
)
@click.option(
    "--remove-checkpoints",
    is_flag=True,
    help="Remove that folder also where the job is Completed, with the model that it has trained.",
)
@with_backend
def cancel(
    backend: Backend,
    *,
    selection: Selection,
    wait: bool,
    keep_checkpoints: bool,
    remove_checkpoints: bool,
) -> int:
    """
    End jobs, without saving them, and forget them and their logs.

    On one machine the checkpoints in a job's own folder ($DLJOB_CHECKPOINT_DIR) are removed with it,
    unless you keep them; those of a Completed job are kept, unless you remove them. Elsewhere, and on
    a cluster, checkpoints stay where they are. As long as a job is Cancelling, cancel it again with
    --keep-checkpoints to keep them after all.
    """
    if keep_checkpoints and remove_checkpoints:
        raise click.UsageError("--keep-checkpoints and --remove-checkpoints exclude each other")
    keeping = Keeping.KEEP if keep_checkpoints else Keeping.USUAL
    keeping = Keeping.REMOVE if remove_checkpoints else keeping
    names = selection.find(
        backend,
        "cancel",
        applies=lambda job: keep_checkpoints or job.phase != CANCELLING,
        warning=_WARNINGS[keeping] if backend.removes_checkpoints else "",
    )
    status = for_each(names, lambda name: cancel_job(backend, name, keeping=keeping))
    for name in names if wait else ():
        with suppress(NotThere):
            while backend.get_job(name):
                time.sleep(LOOK_S)
    return status


@click.command("set")
@with_selection()
@gpu_options
@click.option("--priority", type=int, metavar="P", help="Jobs of a higher priority come first.")
@with_backend
def assign(backend: Backend, *, selection: Selection, priority: int | None, **said: Any) -> int:
    """
    Change on how many GPUs jobs can run, and their priority. They go on training meanwhile.

    \b
    dljob set bert --gpus 1,2,4
    dljob set bert --max-gpus 2 --priority 10
    dljob set -l team=vision --priority -5
    """
    demand = Demand(**said)
    if not demand.is_given and priority is None:
        raise click.UsageError("nothing is set; give --gpus, --min-gpus, --max-gpus or --priority")
    names = selection.find(backend, "change", applies=lambda job: not job.is_final)
    return for_each(names, lambda name: _set(backend, name, demand=demand, priority=priority))


def _set(backend: Backend, name: str, *, demand: Demand, priority: int | None) -> str:
    def alter(document: Json) -> Json:
        spec: Mapping[str, Any] = document["spec"]
        said: Json = {} if priority is None else {"priority": priority}
        if demand.is_given:
            said["gpus"] = demand.changed(spec["gpus"])
        altered = {**document, "spec": {**spec, **said}}
        return altered if spec != altered["spec"] else document

    change = change_job(backend, name, alter=alter)
    if not change.is_change:
        return "is unchanged"
    return f"changed: {', '.join(describe_changes(change.before, change.after)) or 'nothing'}"


def for_each(names: Iterable[str], change: Callable[[str], str]) -> int:
    """Change all jobs that can be changed, and print the errors of the others."""
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
    if not suspend_job(backend, name, suspended=suspended).is_change:
        return "is suspended already" if suspended else "is not suspended"
    return "suspended" if suspended else "resumed"
