"""
``dljob top``: all GPUs and jobs on the whole screen, again and again.
"""

import os
import re
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Console, ConsoleDimensions, Group
from rich.live import Live

from dljob.cli.inputs.options import output_option, with_wide_backend
from dljob.cli.output.frames import Facts, Frame, Signs, Window
from dljob.cli.output.streams import harmless_document, raw
from dljob.client.backend import Away, Backend, BackendError
from dljob.client.jobviews import JobView

ENDLESS = 10_000
"""The width without a terminal; a picture takes only the width that it needs."""

PAGE = 10

_MOVES = {
    b"\x1b[A": -1,
    b"k": -1,
    b"\x1b[B": 1,
    b"j": 1,
    b"\x1b[5~": -PAGE,
    b"\x1b[6~": PAGE,
    b"g": -(10**9),
    b"G": 10**9,
}
_QUITS = frozenset({b"q", b"Q"})
_KEY = re.compile(rb"\x1b\[[0-9;]*[A-Za-z~]|.", re.DOTALL)
"""One key as a terminal sends it."""


@click.command("top")
@click.option("--once", is_flag=True, help="Print one picture and end.")
@output_option("wide")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600.0),
    metavar="SECONDS",
    help="The interval between pictures.  [default: 1, and 5 on a cluster]",
)
@with_wide_backend
def command(backend: Backend, *, once: bool, output: str | None, interval: float | None) -> None:
    """
    Watch GPUs and jobs: the job of each GPU, and the progress and the reason of each job.

    In the map a letter is a job, reversed where it uses the GPU and plain where the GPU is only
    decided for it; · is free and × is out of service. -o wide with --once prints all columns and whole
    reasons, however wide the terminal is.
    """
    if output and not once:
        raise click.UsageError("-o wide needs --once; without it the size of the window decides")
    if once:
        _print_once(backend, all_of_it=output == "wide")
    elif not sys.stdout.isatty():
        raise click.UsageError("standard output is not a terminal; use --once, or dljob get -w")
    else:
        _Screen(backend, interval or backend.look_seconds).run()


def read_facts(backend: Backend) -> Facts:
    """Ask for everything that is shown."""
    items = harmless_document(backend.list_jobs().items)
    jobs = [JobView.of(item, backend.home) for item in items]
    nodes = harmless_document(backend.list_nodes())
    return Facts(harmless_document(backend.about()), jobs, nodes, time.time())


def _print_once(backend: Backend, *, all_of_it: bool) -> None:
    facts, signs = read_facts(backend), Signs()
    signs.learn(facts.jobs)
    # The stream below, because the map is reversed where a job uses a GPU; read_facts() has cleaned all texts.
    console = Console(file=raw(sys.stdout), highlight=False)
    width = console.width if console.is_terminal and not all_of_it else ENDLESS
    for line in Frame(facts, signs, window=Window(width, None)).lines():
        console.print(line, width=width, no_wrap=True, soft_wrap=True)


class _Screen:
    """The screen for as long as it is watched."""

    def __init__(self, backend: Backend, interval: float) -> None:
        self._backend = backend
        self._interval = interval
        self._signs = Signs()
        self._skipped = 0
        self._console = Console(file=raw(sys.stdout), highlight=False)
        # Before the screen, so that an error here is printed as a line.
        self._facts = read_facts(backend)

    def run(self) -> None:
        with (
            _keyboard() as keys,
            Live(console=self._console, screen=True, auto_refresh=False) as live,
        ):
            while True:
                live.update(self._draw(), refresh=True)
                if not self._wait(keys):
                    return

    def _draw(self) -> Group:
        self._signs.learn(self._facts.jobs)
        # Not from the environment, which does not change with the window.
        size = os.get_terminal_size(sys.stdout.fileno())
        width, height = self._console.size = ConsoleDimensions(size.columns or 80, size.lines or 24)
        frame = Frame(self._facts, self._signs, window=Window(width, height, self._skipped))
        self._skipped = min(self._skipped, frame.most_skipped)
        return Group(*frame.lines())

    def _wait(self, keys: int | None) -> bool:
        """Wait for the next picture or a key; false ends the screen."""
        until = time.monotonic() + self._interval
        while (left := until - time.monotonic()) > 0:
            if keys is None:
                time.sleep(left)
            elif select.select([keys], [], [], left)[0]:
                pressed = _KEY.findall(os.read(keys, 256))
                if not pressed or _QUITS.intersection(pressed):
                    return False
                moved = sum(_MOVES.get(key, 0) for key in pressed)
                if moved:
                    self._skipped = max(0, self._skipped + moved)
                    return True
        self._look()
        return True

    def _look(self) -> None:
        old = self._facts
        try:
            self._facts = read_facts(self._backend)
        except BackendError as error:
            kind = "waits for it" if isinstance(error, Away) else "tries again"
            problem = f"{error} (what is shown is old; {kind})"
            self._facts = Facts(old.about, old.jobs, old.nodes, old.at, problem)


@contextmanager
def _keyboard() -> Iterator[int | None]:
    """Read single keys from a terminal; Ctrl-C still interrupts."""
    if not sys.stdin.isatty():
        yield None
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
