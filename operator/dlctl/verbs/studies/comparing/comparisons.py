"""How a comparison looks: the table of :mod:`dlsim.comparing.summing`'s lines."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from dlctl.output import printing
from dlsim.comparing.summing import FIGURES, Line, Spread

TITLES: Mapping[str, str] = {
    "avg_jct_s": "average JCT",
    "p99_jct_s": "p99 JCT",
    "makespan_s": "makespan",
}


LEAST = ("cases", "unfair", "worst", "p99 JCT", "makespan")
"""The columns that a narrow terminal leaves out, the first one first."""


class Choice(NamedTuple):
    """The parts of the table that are shown."""

    ranges: Sequence[str]
    """The figures that have a range beside their mean."""
    without: Sequence[str] = ()
    """The titles of columns that are left out."""


CHOICES = (
    Choice(FIGURES),
    Choice(FIGURES[:1]),
    *(Choice((), LEAST[:count]) for count in range(len(LEAST) + 1)),
)
"""From wide to narrow terminals."""


def list_titles(
    lines: Sequence[Line], by: Sequence[str], *, ranges: Sequence[str] = FIGURES
) -> list[str]:
    """Name the columns."""
    bound = ["JCT / bound", "worst"] if any(line.bound for line in lines) else []
    figures: list[str] = []
    for figure in FIGURES:
        figures += [TITLES[figure], "from–to"] if figure in ranges else [TITLES[figure]]
    return [*by, "policy", "cases", *bound, *figures, "unfair", "unfinished"]


def list_cells(lines: Sequence[Line], *, ranges: Sequence[str] = FIGURES) -> list[list[str]]:
    """Write the cells of each line."""
    with_bound = any(line.bound for line in lines)
    return [_write_cells(line, with_bound=with_bound, ranges=ranges) for line in lines]


def _write_cells(line: Line, *, with_bound: bool, ranges: Sequence[str]) -> list[str]:
    bound = [_mean(line.bound), _high(line.bound)] if with_bound else []
    figures: list[str] = []
    for figure in FIGURES:
        ratio = line.ratios[figure]
        figures += [_mean(ratio), _range(ratio)] if figure in ranges else [_mean(ratio)]
    unfair = "–" if math.isnan(line.unfair) else f"{100 * line.unfair:.1f}%"
    tail = [unfair, f"{line.unfinished:,}" if line.unfinished else ""]
    return [*line.group, line.policy, f"{line.cases:,}", *bound, *figures, *tail]


def tabulate(
    lines: Sequence[Line],
    *,
    by: Sequence[str],
    references: Sequence[str],
    all_of_it: bool = False,
) -> str:
    """Make the table for people, as detailed as the terminal is wide; what it leaves out is named."""
    best = "the best of " if len(references) > 1 else ""
    title = f"ratios to {best}{', '.join(references)}: geometric mean ± spread; below 1 is less"
    room = printing.ENDLESS if all_of_it else printing.find_width(printing.ENDLESS)
    wide = Console(width=printing.ENDLESS)
    chosen = CHOICES[-1]
    for choice in CHOICES:
        if wide.measure(_make_table(lines, by, title=title, choice=choice)).maximum <= room:
            chosen = choice
            break
    table = _make_table(lines, by, title=title, choice=chosen)
    text = printing.render(table, piped_width=printing.ENDLESS, all_of_it=all_of_it)
    left_out = [name for name in list_titles(lines, by) if name in chosen.without]
    ranges = [TITLES[figure] for figure in FIGURES if figure not in chosen.ranges]
    hidden = [*left_out, *(f"from–to of {name}" for name in ranges if name not in left_out)]
    return text + printing.tell_hidden(hidden, room)


def _make_table(lines: Sequence[Line], by: Sequence[str], *, title: str, choice: Choice) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title)
    table.title_justify, table.title_style = "left", "bold"
    titles = list_titles(lines, by, ranges=choice.ranges)
    shown = [number for number, name in enumerate(titles) if name not in choice.without]
    for number in shown:
        justify: Literal["left", "right"] = "left" if number <= len(by) else "right"
        table.add_column(titles[number], justify=justify, no_wrap=True)
    for cells in list_cells(lines, ranges=choice.ranges):
        table.add_row(*(cells[number] for number in shown))
    return table


def _mean(spread: Spread | None) -> str:
    return "–" if spread is None else f"{spread.mean:.3f} ± {spread.deviation:.3f}"


def _high(spread: Spread | None) -> str:
    return "–" if spread is None else f"{spread.high:.3f}"


def _range(spread: Spread | None) -> str:
    return "–" if spread is None else f"{spread.low:.3f}–{spread.high:.3f}"
