"""
How the figures of studies look: tables for people, JSON and CSV for programs.

The verbs make rows and choose a printer. Everything here returns text, so that a verb prints nothing before all of
it is complete.
"""

import csv
import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from dljob.cli.output import texts

WIDE = "wide"
"""The table with all of its columns, however wide the terminal is."""

FORMATS = ("table", WIDE, "json", "csv")

PIPED_WIDTH = 140
"""The width of sentences where no terminal limits it."""

ENDLESS = 10_000
"""The width of a table of figures there: programs that cut columns do not want them broken."""


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """CSV with a header; what does not exist is left empty."""
    text = io.StringIO()
    # Not the line ends of the standard, which tools on Unix show as part of the last column.
    writer = csv.writer(text, lineterminator="\n")
    flat = [flatten(row) for row in rows]
    writer.writerow(flat[0].keys())
    writer.writerows(
        ["" if v is None or (isinstance(v, float) and math.isnan(v)) else v for v in row.values()]
        for row in flat
    )
    return text.getvalue()


def flatten(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Make columns of the parts of fields that have parts."""
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            flat.update((f"{name}_{part}", each) for part, each in value.items())
        else:
            flat[name] = value
    return flat


def tabulate(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str | None = None,
    words: int = 1,
    hide: Sequence[Sequence[int]] = (),
    shares: Sequence[int | None] = (),
    wide: bool = False,
) -> str:
    """
    Write a table that fits the terminal where there is one, in colour if it takes colour.

    The first ``words`` columns are aligned to the left, the others, which hold figures, to the right. Of the groups
    of columns to ``hide``, as many are left out as need be, the first group first, and a line below the table names
    them; a ``wide`` table has all columns. ``shares`` are those of the width that columns of sentences get.
    """
    room = ENDLESS if wide else find_width(PIPED_WIDTH if shares else ENDLESS)
    hidden: set[int] = set()
    groups = list(hide)
    while True:
        table = Table(box=box.SIMPLE_HEAD, title=title, show_header=any(titles))
        table.title_justify, table.title_style = "left", "bold"
        shown = [number for number in range(len(titles)) if number not in hidden]
        for number in shown:
            share = shares[number] if shares else None
            table.add_column(
                titles[number],
                justify="left" if number < words else "right",
                no_wrap=share is None,
                ratio=share,
            )
        for row in rows:
            table.add_row(*(row[number] for number in shown))
        if not groups or Console(width=ENDLESS).measure(table).maximum <= room:
            break
        hidden.update(groups.pop(0))
    console = Console(width=room)
    with console.capture() as capture:
        console.print(table)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    note = texts.tell_hidden(_name_columns(titles, hidden), room)
    return "".join(f"{line}\n" for line in (*lines, *note, *([""] if note else [])))


def _name_columns(titles: Sequence[str], hidden: set[int]) -> list[str]:
    """Name columns; one whose title others have too belongs to the column before it."""
    names = []
    for number in sorted(hidden):
        if titles.count(titles[number]) == 1:
            names.append(titles[number])
        elif number - 1 not in hidden:
            names.append(f"{titles[number]} of {titles[number - 1]}")
    return names


def find_width(piped_width: int) -> int:
    """Return the width of the terminal, or ``piped_width`` where there is none."""
    console = Console()
    return console.width if console.is_terminal else piped_width


def list_premises(premises: Sequence[str]) -> str:
    """List what was assumed, below a table, in lines that fit the terminal."""
    if not premises:
        return ""
    width = max(40, min(find_width(PIPED_WIDTH), PIPED_WIDTH))
    lines = ["Assumed:"]
    for premise in premises:
        lines += textwrap.wrap(
            f"- {premise}",
            width=width,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "".join(f"{line}\n" for line in lines)
