"""
``dljob logs``: what the training of a job wrote.
"""

import sys

import click

from dlctl.backends import Backend, LogLine, LogQuery
from dlctl.choosing import name_argument, with_backend
from dlctl.jobviews import JobView
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
    printer = Printer(several=not node and len(backend.list_log_nodes(name)) > 1)
    for line in backend.read_logs(name, LogQuery(node, lines, follow)):
        printer.print(line)
        if follow:
            printer.flush()
    printer.flush()
    if not printer.nodes and not follow:
        is_over = JobView.of(backend.get_job(name), backend.home).is_final
        say(f"{name} has written nothing{'' if is_over else ' yet; -f waits for it'}")


class Printer:
    """Prints lines as they were written, with their nodes as soon as there are several."""

    def __init__(self, *, several: bool = False) -> None:
        self.nodes: set[str] = set()
        self._several = several
        self._written = sys.stdout.buffer

    def print(self, line: LogLine) -> None:
        self.nodes.add(line.node)
        if self._several or len(self.nodes) > 1:
            self._written.write(f"[{line.node}] ".encode())
        self._written.write(line.text)

    def flush(self) -> None:
        self._written.flush()
