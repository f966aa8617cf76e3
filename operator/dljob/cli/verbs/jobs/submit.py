"""
``dljob submit``: job files are checked here and there, and taken in all or none.
"""

from collections.abc import Sequence

import click

from dljob.cli.inputs.completing import complete_files
from dljob.cli.inputs.options import output_option, with_backend
from dljob.cli.output.forms import to_json, to_yaml
from dljob.cli.output.messages import say
from dljob.client.backend import Backend, BackendError, Json
from dljob.client.sources import (
    check,
    iter_sources,
    refuse,
)
from dljob.client.turns import show_plan
from dljob.core.documents.jobnames import full_name


@click.command("submit")
@click.argument("files", nargs=-1, required=True, metavar="FILE…", shell_complete=complete_files)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Submit nothing: print the decision now and its effect on other jobs.",
)
@output_option("json", "yaml", "name")
@with_backend
def command(backend: Backend, *, files: tuple[str, ...], dry_run: bool, output: str | None) -> None:
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
        else:
            _submit(backend, documents, output)
    except BackendError as error:
        refuse(error, sources)


def _submit(backend: Backend, documents: Sequence[Json], output: str | None) -> None:
    created = backend.create_jobs(documents)
    for notice in created.notices:
        say(f"note: {notice}")
    if output in ("json", "yaml"):
        items = created.items
        document = items[0] if len(items) == 1 else {"kind": "DLJobList", "items": items}
        click.echo(to_json(document) if output == "json" else to_yaml(document), nl=False)
        return
    for item in created.items:
        name = full_name(item, backend.home)
        click.echo(f"dljob.dljob.io/{name}" if output == "name" else f"{name} submitted")


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
