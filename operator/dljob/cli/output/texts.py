"""
Plain text as kubectl writes it: columns, durations, and colours on a terminal.
"""

import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence

import click

from dljob.control.reporting.formatting import NOTHING, duration, speed

__all__ = [
    "COLOURS",
    "GAP",
    "NOTHING",
    "age",
    "align",
    "duration",
    "flow",
    "indent",
    "instant",
    "measure",
    "moment",
    "paint",
    "room",
    "speed",
    "tabulate",
    "tell_hidden",
]

GAP = "   "

LEAST_PROSE = 24
"""The least room in which sentences of the last column are wrapped."""

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


def paint(word: str, padded: str | None = None) -> str:
    """Colour a known word; ``padded`` is printed instead of it."""
    text = word if padded is None else padded
    colour = COLOURS.get(word)
    stream = sys.stdout
    is_coloured = not os.environ.get("NO_COLOR") and stream is not None and stream.isatty()
    return click.style(text, fg=colour) if colour and is_coloured else text


def measure(rows: Iterable[Sequence[str]]) -> list[int]:
    """Return the width of each column."""
    return [max(map(len, cells)) for cells in zip(*rows, strict=True)]


def align(row: Sequence[str], widths: Sequence[int]) -> str:
    """Write a row of a table with these widths; longer cells stay whole."""
    cells = [paint(cell, f"{cell:<{width}}") for cell, width in zip(row, widths, strict=True)]
    return GAP.join((*cells[:-1], paint(row[-1])))


def room() -> int | None:
    """Return the width of the terminal; ``None`` if the output goes to a file or a program."""
    stream = sys.stdout
    return shutil.get_terminal_size().columns if stream is not None and stream.isatty() else None


def tabulate(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    hide: Sequence[str] = (),
    inset: int = 0,
) -> str:
    """
    Write a table with its header, such that it fits the terminal where there is one.

    Of the columns to ``hide``, least important first, as many are left out as need be, and a line
    below names them. Sentences in the last column are continued below themselves. A file or a
    program gets all of it. The caller will indent the output by ``inset``.
    """
    width = room()
    hidden: list[str] = []
    table = [tuple(header), *(tuple(row) for row in rows)]
    if width is not None:
        for title in hide:
            if _is_narrow(table, width - inset):
                break
            if title in table[0]:
                place = table[0].index(title)
                table = [(*row[:place], *row[place + 1 :]) for row in table]
                hidden.append(title)
    lines = _write(table, None if width is None else width - inset)
    return "".join(f"{line}\n" for line in (*lines, *tell_hidden(hidden, width)))


def tell_hidden(hidden: Sequence[str], width: int | None) -> list[str]:
    """Name the hidden columns of a table, and the option that prints them."""
    if not hidden or width is None:
        return []
    note = f"No room for {', '.join(hidden)} in {width} columns; -o wide prints all."
    return textwrap.wrap(note, width)


def _is_narrow(table: Sequence[Sequence[str]], width: int) -> bool:
    widths = measure(table)
    return sum(widths) + len(GAP) * (len(widths) - 1) <= width


def _write(table: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Write the rows, and wrap sentences of the last column if there is room."""
    widths = measure(table)
    before = sum(widths[:-1]) + len(GAP) * (len(widths) - 1)
    left = 0 if width is None or _is_narrow(table, width) else width - before
    lines = []
    for row in table:
        parts = textwrap.wrap(row[-1], left) if left >= LEAST_PROSE else []
        lines.append(align((*row[:-1], parts[0] if parts else row[-1]), widths).rstrip())
        lines += [" " * before + part for part in parts[1:]]
    return lines


def flow(text: str, *, first: str = "", rest: str = "") -> str:
    """
    Write a sentence in lines that fit the terminal, where there is one.

    The first line begins with ``first``, the others with ``rest``. A file or a program gets one line.
    """
    width = room()
    if width is None or width - len(rest) < LEAST_PROSE:
        return f"{first}{text}\n"
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "".join(f"{line}\n" for line in lines) or f"{first}\n"


def indent(text: str) -> str:
    """Move lines to the right by two."""
    return "".join(f"  {line}\n" for line in text.splitlines())


# --- times ---------------------------------------------------------------------------------


def age(since: float | None, now: float | None = None) -> str:
    if since is None:
        return NOTHING
    return duration((time.time() if now is None else now) - since)


def instant(at: float | None) -> str:
    """Write a time for a column, in the zone of this machine."""
    if at is None:
        return NOTHING
    return time.strftime("%m-%d %H:%M:%S", time.localtime(at))


def moment(at: float | None) -> str:
    """Write a time and its age."""
    if at is None:
        return NOTHING
    local = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(at))
    return f"{local} ({age(at)} ago)"
