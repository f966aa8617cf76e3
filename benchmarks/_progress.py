"""
The progress of a benchmark: what it measures and where, what it does now, and limited waits that say for what.

Each benchmark starts by `run(main)`. It also makes the servers of the tests importable, which are no installed package.
"""

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TypeVar

import click
from _measuring import describe_machine

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

from tests.servers.binaries import Unavailable  # noqa: E402

NEWS_S = 30.0
LIMIT_S = 300.0
"""Of a wait, if the caller names no other limit."""

T = TypeVar("T")


class CannotRun(click.ClickException):
    """This machine lacks what the benchmark needs; scripts/run-benchmarks knows the exit status."""

    exit_code = 77


class _Progress:
    """The present activity of the benchmark: printed every 30 s, unless something else was."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.now = "begins"
        self.printed = threading.Event()

    def print(self, text: str) -> None:
        # Not through sys.stderr, whose lock a forked process could inherit.
        os.write(2, f"{time.monotonic() - self.began:6.0f} s  {text}\n".encode())
        self.printed.set()

    def repeat(self) -> None:
        while True:
            if self.printed.wait(NEWS_S):
                self.printed.clear()
            else:
                self.print(f"still: {self.now}")
                self.printed.clear()


_progress = _Progress()


def run(command: click.Command) -> None:
    """Run the command of a benchmark, with progress on stderr."""
    # An exception, so that blocks end the processes that they have started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    title, _, _ = (sys.modules["__main__"].__doc__ or "").strip().partition("\n\n")
    machine = describe_machine()
    _progress.print(
        f"{' '.join(title.split())} Here: {machine['processor']}, {machine['cores']} cores."
    )
    threading.Thread(target=_progress.repeat, daemon=True).start()
    try:
        command()
    except Unavailable as error:
        click.echo(f"cannot run here: {error}", err=True)
        sys.exit(CannotRun.exit_code)


def say(text: str) -> None:
    """Print what the benchmark begins to do."""
    _progress.now = text
    _progress.print(text)


def count(items: Sequence[T], name: Callable[[T], str] = str) -> Iterator[T]:
    """Yield each item; meanwhile its number and name are the progress."""
    for number, item in enumerate(items, start=1):
        _progress.now = f"{number} of {len(items)}: {name(item)}"
        yield item


def attempts(what: str, limit_s: float = LIMIT_S) -> Iterator[float]:
    """
    Yield the remaining seconds until the caller has what it waits for, and leaves the loop.

    Raises TimeoutError with ``what``, which completes "waits until".
    """
    before, _progress.now = _progress.now, f"waits until {what}"
    end = time.monotonic() + limit_s
    try:
        while (left := end - time.monotonic()) > 0.0:
            yield left
    finally:
        _progress.now = before
    raise TimeoutError(f"waited {limit_s:g} s in vain until {what}")


def wait_until(
    is_so: Callable[[], bool], what: str, *, limit_s: float = LIMIT_S, every_s: float = 0.1
) -> None:
    """Ask again and again; raises TimeoutError."""
    for _ in attempts(what, limit_s):
        if is_so():
            return
        time.sleep(every_s)


def read_line(pipe: IO[str], what: str, limit_s: float = LIMIT_S) -> str:
    """Read the next line of a process, which writes one line at a time; raises TimeoutError."""
    for left in attempts(what, limit_s):
        if select.select([pipe], [], [], left)[0]:
            return pipe.readline()
    raise AssertionError
