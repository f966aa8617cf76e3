"""
Plain text as kubectl writes it: columns, durations, colours where somebody sees them.
"""

import os
import sys
import time
from collections.abc import Iterable, Sequence

import click

from dlcontrol.figures import NOTHING, duration, speed

__all__ = [
    "COLOURS",
    "GAP",
    "NOTHING",
    "age",
    "align",
    "duration",
    "indent",
    "instant",
    "is_coloured",
    "measure",
    "moment",
    "paint",
    "speed",
    "tabulate",
]

GAP = "   "

COLOURS = {
    "Running": "green",
    "Completed": "green",
    "Initialized": "cyan",
    "Adjusting": "cyan",
    "Submitted": "yellow",
    "Queued": "yellow",
    "Suspended": "blue",
    "Cancelling": "magenta",
    "Failed": "red",
    "Warning": "yellow",
}


def is_coloured() -> bool:
    """Whether what is printed goes to somebody who sees colours and has not forbidden them."""
    stream = sys.stdout
    return not os.environ.get("NO_COLOR") and stream is not None and stream.isatty()


def paint(word: str, padded: str | None = None) -> str:
    """Give a word that has a colour its colour; ``padded`` is what is printed of it."""
    text = word if padded is None else padded
    colour = COLOURS.get(word)
    return click.style(text, fg=colour) if colour and is_coloured() else text


def measure(rows: Iterable[Sequence[str]]) -> list[int]:
    """How wide each column has to be."""
    return [max(map(len, cells)) for cells in zip(*rows, strict=True)]


def align(row: Sequence[str], widths: Sequence[int]) -> str:
    """Write a row of a table whose columns are so wide; what is longer stays whole."""
    cells = [paint(cell, f"{cell:<{width}}") for cell, width in zip(row, widths, strict=True)]
    return GAP.join((*cells[:-1], paint(row[-1])))


def tabulate(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table with its header."""
    widths = measure([header, *rows])
    return "".join(f"{align(row, widths).rstrip()}\n" for row in (header, *rows))


def indent(text: str) -> str:
    """Move lines to the right by two."""
    return "".join(f"  {line}\n" for line in text.splitlines())


# --- times ---------------------------------------------------------------------------------


def age(since: float | None, now: float | None = None) -> str:
    """How long ago something was."""
    if since is None:
        return NOTHING
    return duration((time.time() if now is None else now) - since)


def instant(at: float | None) -> str:
    """Write a time of a column, in the zone of this machine."""
    if at is None:
        return NOTHING
    return time.strftime("%m-%d %H:%M:%S", time.localtime(at))


def moment(at: float | None) -> str:
    """Write a time with how long ago that is."""
    if at is None:
        return NOTHING
    local = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(at))
    return f"{local} ({age(at)} ago)"
