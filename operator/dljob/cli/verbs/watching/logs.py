"""
``dljob logs``: what the training of a job wrote.
"""

import re
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator

import click

from dljob.cli.inputs.options import name_argument, with_backend
from dljob.cli.inputs.spans import read_span_option
from dljob.cli.output.messages import say
from dljob.cli.output.streams import harmless_output
from dljob.client.backend import (
    Backend,
    Conflict,
    LogLine,
    LogQuery,
    NotThere,
)
from dljob.client.jobviews import JobView
from dljob.core.documents.launchers import PER_GPU, processes_of

_SIGNED = re.compile(rb"rank (\d{1,6}) \| ")
"""The beginning of a line of a rank (:mod:`dljob_sidecar.observing.rank_outputs`)."""
_OF_THE_SIDECAR = b"dljob-sidecar "
"""The beginning of the SideCar's own lines, which are in the log of the pod as well."""


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
    help="Only the output of this rank of the job; of a job with one process on each node, the output from "
    "the node where the rank is now.",
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

    Where a job was on several nodes, each line begins with the node, and where each GPU has a
    process, with the rank; --node and --rank choose one. On one machine DLJob keeps 64 MiB and
    three older parts of that size (logs.largestBytes, logs.keptParts), and --since is exact to
    about five seconds. On a terminal, characters that would move its cursor or
    retitle its window are shown by their numbers; a file or a program gets the bytes as they are.
    """
    of_rank: int | None = None
    if rank is not None:
        if node:
            raise click.UsageError("--node and --rank exclude each other; give one of them")
        job = JobView.of(backend.get_job(name), backend.home)
        if processes_of(job.spec) == PER_GPU:
            of_rank = rank
        else:
            node = find_node(job, name, rank)
    several = not node and rank is None and len(backend.list_log_nodes(name)) > 1
    printer = Printer(several=several, is_shown=sys.stdout.isatty() and not raw)
    query = LogQuery(node, lines, follow, since)
    read = (
        backend.read_logs(name, query)
        if of_rank is None
        else read_rank(backend, name, query, of_rank)
    )
    for line in read:
        printer.print(line)
        if follow:
            printer.flush()
    printer.flush()
    if not printer.nodes and not follow and since is None:
        is_over = JobView.of(backend.get_job(name), backend.home).is_final
        writer = name if of_rank is None else f"rank {of_rank} of {name}"
        say(f"{writer} has written nothing{'' if is_over else ' yet; -f waits for it'}")


def find_node(job: JobView, name: str, rank: int) -> str:
    """Return the node of a rank of a job with one process on each node."""
    if not job.slices:
        raise Conflict(
            f"{name} has no GPUs now ({job.phase}), so it has no ranks; choose by --node"
        )
    if rank >= len(job.slices):
        count = len(job.slices)
        raise NotThere(f"{name} has no rank {rank}; it has {count} now, which are counted from 0")
    return job.slices[rank].node


def read_rank(backend: Backend, name: str, query: LogQuery, rank: int) -> Iterator[LogLine]:
    """Yield the lines of one rank from all its nodes, without the prefix."""
    if query.lines is None:
        return _choose(backend.read_logs(name, query), rank)
    # The last lines of a rank are among an unknown number of lines of all ranks.
    once = query._replace(lines=None, follow=False)
    if not query.follow:
        return iter(deque(_choose(backend.read_logs(name, once), rank), maxlen=query.lines))
    reach = _find_reach(backend.read_logs(name, once), rank, query.lines)
    return _choose(backend.read_logs(name, query._replace(lines=reach)), rank)


def _find_reach(lines: Iterable[LogLine], rank: int, wanted: int) -> int:
    """Return the number of last lines of a node that hold the wanted lines of this rank."""
    counts: Counter[str] = Counter()
    latest: deque[tuple[str, int]] = deque(maxlen=wanted)
    for line in lines:
        if any(True for _ in _choose([line], rank)):
            latest.append((line.node, counts[line.node]))
        counts[line.node] += 1
    return max((counts[node] - number for node, number in latest), default=0)


def _choose(lines: Iterable[LogLine], rank: int) -> Iterator[LogLine]:
    # A line may hold several states of progress bars, each of another rank.
    states = (
        line._replace(text=text) for line in lines for text in line.text.splitlines(keepends=True)
    )
    for line in states:
        signed = _SIGNED.match(line.text)
        if signed is not None and int(signed[1]) == rank:
            yield line._replace(text=line.text[signed.end() :])
        # A job with one process has no prefixes, and the process is rank 0.
        elif signed is None and rank == 0 and not line.text.startswith(_OF_THE_SIDECAR):
            yield line


class Printer:
    """Prints lines, with the node in front as soon as there are several."""

    def __init__(self, *, several: bool = False, is_shown: bool = False) -> None:
        """``is_shown``: standard output is a terminal, so that control characters are escaped."""
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
    """Return the visible part of a line, such as the last state of a progress bar, made harmless."""
    text = line.decode("utf-8", "replace")
    ending = "\n" if text.endswith("\n") else ""
    states = [state for state in text.rstrip("\r\n").split("\r") if state]
    return f"{harmless_output(states[-1]) if states else ''}{ending}".encode()
