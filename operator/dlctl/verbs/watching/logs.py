"""
``dljob logs``: what the training of a job wrote.
"""

import sys

import click

from dlcore.documents.launchers import PER_GPU, processes_of
from dlctl.backends.backend import (
    Backend,
    Conflict,
    LogLine,
    LogQuery,
    NotThere,
)
from dlctl.backends.choosing import name_argument, with_backend
from dlctl.inputs.spans import read_span_option
from dlctl.output.jobviews import JobView
from dlctl.output.messages import say
from dlctl.output.streams import harmless_output


@click.command("logs")
@name_argument()
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the job has ended.")
@click.option("--node", default="", metavar="NODE", help="Only the output from this node.")
@click.option(
    "--tail",
    "lines",
    type=click.IntRange(0),
    metavar="N",
    help="Only the last N lines; without it, all.",
)
@click.option(
    "--rank",
    type=click.IntRange(0),
    metavar="N",
    help="Only the output from the node where this rank of the job is now.",
)
@click.option(
    "--since",
    callback=read_span_option,
    metavar="TIME",
    help="Only the output of the latest time, such as 90s or 10m.",
)
@click.option(
    "--raw",
    is_flag=True,
    help="Print the raw bytes to a terminal too, which obeys control characters in them.",
)
@with_backend
def command(
    backend: Backend,
    *,
    name: str,
    follow: bool,
    node: str,
    lines: int | None,
    rank: int | None,
    since: float | None,
    raw: bool,
) -> None:
    """
    Print the output of a job's training, over all its starts.

    Of a job that was on several nodes each line begins with the node, unless one is named. The
    processes of one node write into one log. On a terminal, characters that would move its cursor or
    retitle its window are shown by their numbers; a file or a program gets the bytes as they are.
    """
    if rank is not None:
        if node:
            raise click.UsageError("--node and --rank exclude each other; give one of them")
        node = find_node(JobView.of(backend.get_job(name), backend.home), name, rank)
    several = not node and len(backend.list_log_nodes(name)) > 1
    printer = Printer(several=several, is_shown=sys.stdout.isatty() and not raw)
    for line in backend.read_logs(name, LogQuery(node, lines, follow, since)):
        printer.print(line)
        if follow:
            printer.flush()
    printer.flush()
    if not printer.nodes and not follow and since is None:
        is_over = JobView.of(backend.get_job(name), backend.home).is_final
        say(f"{name} has written nothing{'' if is_over else ' yet; -f waits for it'}")


def find_node(job: JobView, name: str, rank: int) -> str:
    """Name the node on which a rank of a job is; that it shares its log with others is said."""
    if not job.slices:
        raise Conflict(
            f"{name} has no GPUs now ({job.phase}), so it has no ranks; choose by --node"
        )
    is_by_gpu = processes_of(job.spec) == PER_GPU
    first = 0
    for part in job.slices:
        count = len(part.gpus) if is_by_gpu else 1
        if rank < first + count:
            if count > 1:
                say(f"note: ranks {first} to {first + count - 1} on {part.node} write into one log")
            return part.node
        first += count
    raise NotThere(f"{name} has no rank {rank}; it has {first} now, which are counted from 0")


class Printer:
    """Prints lines as they were written, with their nodes as soon as there are several."""

    def __init__(self, *, several: bool = False, is_shown: bool = False) -> None:
        """With ``is_shown`` a terminal gets what is printed, and none of it does anything there."""
        self.nodes: set[str] = set()
        self._several = several
        self._is_shown = is_shown
        self._written = sys.stdout.buffer

    def print(self, line: LogLine) -> None:
        self.nodes.add(line.node)
        if self._several or len(self.nodes) > 1:
            self._written.write(f"[{line.node}] ".encode())
        self._written.write(_shown(line.text) if self._is_shown else line.text)

    def flush(self) -> None:
        self._written.flush()


def _shown(line: bytes) -> bytes:
    """Return what is left to be seen of a line, such as the last state of a progress bar, made harmless."""
    text = line.decode("utf-8", "replace")
    ending = "\n" if text.endswith("\n") else ""
    states = [state for state in text.rstrip("\r\n").split("\r") if state]
    return f"{harmless_output(states[-1]) if states else ''}{ending}".encode()
