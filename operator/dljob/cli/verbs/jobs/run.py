"""
``dljob run``: a training command becomes a job, and the terminal shows its output until it ends.

``dljob submit``: the jobs of files, all or none.
"""

import os
import re
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from dljob.cli.inputs.completing import complete_files
from dljob.cli.inputs.options import gpu_options, output_option, with_backend
from dljob.cli.inputs.spans import read_span_option
from dljob.cli.output.forms import to_json, to_yaml
from dljob.cli.output.messages import say
from dljob.cli.verbs.watching.logs import Printer
from dljob.client.backend import (
    Away,
    Backend,
    BackendError,
    Json,
    LogQuery,
    NotThere,
)
from dljob.client.changing import cancel_job
from dljob.client.demands import Demand
from dljob.client.drafting import Draft, build, name_of
from dljob.client.jobviews import JobView
from dljob.client.local.local_backend import LocalBackend
from dljob.client.sources import (
    Source,
    check,
    iter_sources,
    refuse,
)
from dljob.client.turns import show_plan
from dljob.core.documents.jobnames import full_name

LOOK_S = 0.3
ATTEMPTS = 5
"""The number of chosen names that are tried while other jobs take them first."""
INTERRUPTED = 130
WAITING = frozenset({"Submitted", "Queued", "Suspended"})
FRAMEWORKS = ("none", "pytorch", "tensorflow", "horovod", "jax")

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _read_pairs(
    ctx: click.Context,  # noqa: ARG001 - as click calls it
    param: click.Parameter,
    texts: tuple[str, ...],
) -> dict[str, str]:
    """Read NAME=VALUE; without a value the variable has its value in this environment."""
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if param.name == "environment" and not equals and _VARIABLE.fullmatch(name):
            if name not in os.environ:
                raise click.BadParameter(f"{name} is not set here; write {name}=VALUE")
            value = os.environ[name]
        elif not name or not equals:
            raise click.BadParameter(f"{text!r} is not a pair; write NAME=VALUE")
        pairs[name] = value
    return pairs


@click.command("run", context_settings={"ignore_unknown_options": False})
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND…")
@click.option("--name", default="", help="The name of the job.  [default: that of the script]")
@gpu_options
@click.option("--priority", type=int, metavar="P", help="Jobs of a higher priority come first.")
@click.option(
    "--framework",
    type=click.Choice(FRAMEWORKS),
    help="The framework by whose rules processes find each other.  [default: none, a process"
    " alone]",
)
@click.option(
    "--processes",
    type=click.Choice(("perGpu", "perNode")),
    help="Start a process for each GPU or for each node.",
)
@click.option(
    "--iterations",
    type=click.IntRange(1),
    metavar="N",
    help="The number of training steps.  [default: not known, until the command ends]",
)
@click.option(
    "--batch-size", type=click.IntRange(1), metavar="N", help="The batch size over all GPUs."
)
@click.option(
    "--model",
    metavar="NAME",
    help="The name of the model; jobs of one model share measured speeds.",
)
@click.option(
    "--progress",
    "progress_log",
    metavar="REGEX",
    help="Finds the progress in its output, in a group (?P<iteration>…).  [default: step 12, tqdm, …]",
)
@click.option(
    "--progress-file", metavar="FILE", help="The file to which it appends its progress as JSON."
)
@click.option(
    "--checkpoint",
    "checkpoint_path",
    metavar="DIR",
    help="The folder that it saves its checkpoints to.",
)
@click.option(
    "--checkpoint-files",
    metavar="PATTERN",
    help="The pattern of one checkpoint in that folder, such as *.pt.",
)
@click.option(
    "--checkpoint-signal",
    metavar="SIGNAL",
    help="The signal that asks it to save, such as SIGUSR1.",
)
@click.option("--checkpoint-command", metavar="COMMAND", help="The command that makes it save.")
@click.option("--checkpoint-shared", is_flag=True, help="That folder is the same on every node.")
@click.option(
    "--retries",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    show_default=True,
    help="How often it is started again after a crash.",
)
@click.option(
    "--deadline",
    callback=read_span_option,
    metavar="TIME",
    help="The limit from its first GPUs until DLJob stops it as failed, such as 8h.",
)
@click.option(
    *("-e", "--env", "environment"),
    multiple=True,
    callback=_read_pairs,
    metavar="NAME[=VALUE]",
    help="An environment variable.",
)
@click.option(
    "--label", "labels", multiple=True, callback=_read_pairs, metavar="NAME=VALUE", help="A label."
)
@click.option("--workdir", metavar="DIR", help="The folder in which it runs.  [default: this one]")
@click.option("--image", default="", metavar="IMAGE", help="On a cluster: the container image.")
@click.option("--detach", is_flag=True, help="Return when the job is submitted.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Submit nothing: print the decision that DLJob would take now; with -o, print the job.",
)
@output_option("yaml", "json", "name")
@with_backend
def command(
    backend: Backend,
    *,
    counts: Mapping[str, Any] | None,
    least: int | None,
    most: int | None,
    detach: bool,
    dry_run: bool,
    output: str | None,
    **said: Any,
) -> int:
    """
    Run a training command as a job, and show what it writes until it ends.

    \b
    dljob run -- python train.py
    dljob run --gpus 1,2,4 --framework pytorch --checkpoint ckpt -- python train.py --epochs 3

    The exit status is that of the job. Ctrl-C asks whether to leave the job running or to cancel it;
    pressed twice, it leaves the job running. --dry-run -o yaml prints the job as a file for dljob
    submit.
    """
    draft = Draft(demand=Demand(counts, least, most), **said)
    if isinstance(backend, LocalBackend):
        draft = draft.placed(Path.cwd())
    if dry_run:
        return _show(backend, draft, output)
    if draft.checkpoint_path and not (draft.checkpoint_signal or draft.checkpoint_command):
        say(
            "note: DLJob cannot ask the training for a checkpoint, so a change of GPUs loses the work"
            " since its own last one; --checkpoint-signal or --checkpoint-command avoids that"
        )
    if _has_input():
        say(
            "note: a job has no standard input, so the training does not get what dljob run gets there;"
            " put it into a file"
        )
    created = _submit(backend, draft)
    name = full_name(created, backend.home)
    if detach or output:
        click.echo(_written(created, output, name), nl=False)
        return 0
    return _attend(backend, name)


def _has_input() -> bool:
    """Return whether standard input is a file or a pipe, which a command without a job would read."""
    try:
        status = os.fstat(sys.stdin.fileno())
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_size > 0)


# --- submitting ---------------------------------------------------------------------------


def _show(backend: Backend, draft: Draft, output: str | None) -> int:
    document = _check(draft, draft.name or name_of(draft.words))
    if output:
        click.echo(_written(document, output, full_name(document)), nl=False)
        return 0
    try:
        preview(backend, [document], None)
    except BackendError as error:
        refuse(error, [Source("run", document)])
    return 0


def _written(document: Json, output: str | None, name: str) -> str:
    if output == "yaml":
        return to_yaml(document)
    if output == "json":
        return to_json(document)
    return f"dljob.dljob.io/{name}\n" if output == "name" else f"{name} submitted\n"


def _check(draft: Draft, name: str) -> Json:
    (document,) = check([Source("run", build(draft, name))])
    return document


def _submit(backend: Backend, draft: Draft) -> Json:
    """Submit the job; without ``--name``, under a free name."""
    for attempt in range(ATTEMPTS):
        name = draft.name or _free_name(backend, name_of(draft.words))
        document = _check(draft, name)
        try:
            created = backend.create_jobs([document])
        except BackendError as error:
            is_taken = any(each.line.startswith("metadata.name:") for each in error.complaints)
            if is_taken and not draft.name and attempt < ATTEMPTS - 1:
                continue
            refuse(error, [Source("run", document)])
        for notice in created.notices:
            say(f"note: {notice}")
        return created.items[0]
    raise AssertionError("the last attempt returns or raises")


def _free_name(backend: Backend, name: str) -> str:
    taken = {item["metadata"]["name"] for item in backend.list_jobs().items}
    number, chosen = 1, name
    while chosen in taken:
        number += 1
        chosen = f"{name}-{number}"
    return chosen


# --- attending ----------------------------------------------------------------------------


def _attend(backend: Backend, name: str) -> int:
    """Show the job's output until it ends or the user leaves; return the exit status."""
    try:
        # Within the try, because the user may press Ctrl-C as soon as this is printed.
        say(f"{name} submitted; Ctrl-C asks whether to leave it running or to cancel it")
        _await_turn(backend, name)
        printer = Printer(is_shown=sys.stdout.isatty())
        with suppress(NotThere):
            for line in backend.read_logs(name, LogQuery(follow=True)):
                printer.print(line)
                printer.flush()
        return _tell_end(backend, name)
    except KeyboardInterrupt:
        if sys.stdin.isatty() and _wants_to_cancel(name):
            say(f"{name} {cancel_job(backend, name)}")
        else:
            say(
                f"{name} continues: dljob logs -f {name} shows its output, dljob cancel {name} ends it"
            )
        return INTERRUPTED


def _await_turn(backend: Backend, name: str) -> None:
    """Print the reason why the job waits whenever it changes, until the job starts."""
    told = ""
    while (job := _look(backend, name)) is not None and job.phase in WAITING:
        if job.message and job.message != told:
            told = job.message
            say(f"{name} {told}")
        time.sleep(LOOK_S * backend.look_seconds)


def _look(backend: Backend, name: str) -> JobView | None:
    """Return the job; ``None`` if it no longer exists. Wait for an unreachable server, because the job goes on without it."""
    told = False
    while True:
        try:
            return JobView.of(backend.get_job(name), backend.home)
        except NotThere:
            return None
        except Away as error:
            if not told:
                say(f"note: {error}; looking for {name} until it answers")
            told = True
            time.sleep(LOOK_S * backend.look_seconds)


def _tell_end(backend: Backend, name: str) -> int:
    job = _look(backend, name)
    if job is None or not job.is_final:
        say(f"{name} was cancelled")
        return 1
    say(f"{name} is {job.phase}: {job.message}")
    if job.phase == "Completed":
        return 0
    return int(job.status.get("exitCode") or 1)


def _wants_to_cancel(name: str) -> bool:
    """Ask; a second Ctrl-C or the end of the input means no."""
    try:
        answer = click.prompt(
            f"\nLeave {name} running (d, detach) or end it (c, cancel)?",
            type=click.Choice(("d", "c", "detach", "cancel"), case_sensitive=False),
            default="d",
            show_choices=False,
            err=True,
        )
    except (click.Abort, KeyboardInterrupt):
        say("")
        return False
    return str(answer).startswith("c")


# --- submitting files ---------------------------------------------------------------------


@click.command("submit")
@click.argument("files", nargs=-1, required=True, metavar="FILE…", shell_complete=complete_files)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Submit nothing: print the decision now and its effect on other jobs.",
)
@output_option("json", "yaml", "name")
@with_backend
def submit(backend: Backend, *, files: tuple[str, ...], dry_run: bool, output: str | None) -> None:
    """
    Submit the jobs of YAML files, of the files in folders, or of standard input (-).

    A file may hold several documents. All of them are checked before anything happens; where one
    is wrong none is submitted.
    """
    sources = [source for name in files for source in iter_sources(name)]
    documents = check(sources)
    try:
        if dry_run:
            preview(backend, documents, output)
            return
        created = backend.create_jobs(documents)
    except BackendError as error:
        refuse(error, sources)
    for notice in created.notices:
        say(f"note: {notice}")
    if output in ("json", "yaml"):
        items = created.items
        document = items[0] if len(items) == 1 else {"kind": "DLJobList", "items": items}
        click.echo(_written(document, output, ""), nl=False)
        return
    for item in created.items:
        click.echo(_written(item, output, full_name(item, backend.home)), nl=False)


def preview(backend: Backend, documents: Sequence[Json], output: str | None) -> None:
    """Print the decision that would follow if these jobs were submitted."""
    plan = backend.preview(documents)
    for notice in plan.notices:
        say(f"note: {notice}")
    if output == "json":
        click.echo(to_json(plan.effects), nl=False)
    elif output == "yaml":
        click.echo(to_yaml(plan.effects), nl=False)
    elif output == "name":
        click.echo("".join(f"{effect['job']}\n" for effect in plan.effects), nl=False)
    else:
        click.echo(show_plan(plan.effects, tells_others=plan.tells_others), nl=False)
