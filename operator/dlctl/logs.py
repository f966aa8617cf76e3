"""
``dljob logs``: what the training of a job wrote.
"""

import sys

import click

from dlctl.backends import Backend, LogQuery
from dlctl.choosing import name_argument, with_backend
from dlctl.messages import say


@click.command("logs")
@name_argument()
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option("--node", default="", metavar="NODE", help="Only what was written on this node.")
@click.option(
    "--tail",
    "lines",
    type=click.IntRange(0),
    metavar="N",
    help="Only the last N lines; without it, all.",
)
@with_backend
def command(backend: Backend, *, name: str, follow: bool, node: str, lines: int | None) -> None:
    """
    Print the output of a job's training, over all its starts.

    Of a job that was on several nodes each line begins with the node, unless one is named.
    """
    written = sys.stdout.buffer
    several = not node and _is_on_several(backend, name)
    anything = False
    for line in backend.read_logs(name, LogQuery(node, lines, follow)):
        anything = True
        if several:
            written.write(f"[{line.node}] ".encode())
        written.write(line.text)
        if follow:
            written.flush()
    written.flush()
    if not anything and not follow:
        say(f"{name} has written nothing yet; -f waits for it")


def _is_on_several(backend: Backend, name: str) -> bool:
    """Whether it is, or may come to be while it is followed."""
    return len(backend.list_log_nodes(name)) > 1
