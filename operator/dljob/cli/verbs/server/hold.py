"""
``dljob hold``: an administrator lets nothing be decided about jobs, and releases them.
"""

import click

from dljob.cli.inputs.options import with_backend
from dljob.cli.output import texts
from dljob.client.backend import Backend

ALL = "*"


@click.command("hold")
@click.argument("namespaces", nargs=-1, metavar="[NAMESPACE]…")
@click.option("--all", "is_all", is_flag=True, help="All jobs.")
@click.option("--reason", default="", metavar="TEXT", help="Shown to the users of these jobs.")
@click.option("--release", is_flag=True, help="Decide about these jobs again.")
@with_backend
def command(
    backend: Backend, *, namespaces: tuple[str, ...], is_all: bool, reason: str, release: bool
) -> None:
    """
    Let nothing be decided about the jobs of namespaces, or about all jobs.

    A job on hold keeps the GPUs that it has and trains on, and a job that waits starts only after
    the release. A change that was decided before goes on, and users may still cancel and suspend
    their jobs. Without a namespace and without --all the present holds are listed.

    On a cluster a hold is an annotation of the namespace (dljob.io/hold), or for all jobs of the
    namespace of the operator (dljob.io/hold-all), so that only those who may change namespaces can
    release it. With dljob up --system it needs root.
    """
    if is_all and namespaces:
        raise click.UsageError("name namespaces, or give --all")
    chosen = (ALL,) if is_all else namespaces
    if not chosen:
        if release or reason:
            raise click.UsageError("name namespaces, or give --all")
        holds = sorted(backend.list_holds().items())
        rows = [(namespace, why or texts.NOTHING) for namespace, why in holds]
        click.echo(texts.tabulate(("NAMESPACE", "REASON"), rows), nl=False)
    for namespace in chosen:
        jobs = "all jobs" if namespace == ALL else f"the jobs of {namespace}"
        if not release:
            backend.hold(namespace, reason)
            click.echo(f"{jobs}: on hold")
        else:
            was_held = backend.release(namespace)
            click.echo(f"{jobs}: {'released' if was_held else 'not on hold'}")
