"""How a comparison looks: the table of :mod:`dlsim.comparing.summing`'s lines."""

import math
from collections.abc import Iterator, Mapping, Sequence

from rich import box
from rich.table import Table

from dlctl import printing
from dlsim.comparing.summing import FIGURES, Line, Spread

TITLES: Mapping[str, str] = {
    "avg_jct_s": "average JCT",
    "p99_jct_s": "p99 JCT",
    "makespan_s": "makespan",
}


def list_titles(lines: Sequence[Line], by: Sequence[str]) -> list[str]:
    """Name the columns."""
    bound = ["JCT / bound", "worst"] if any(line.bound for line in lines) else []
    figures = [title for figure in FIGURES for title in (TITLES[figure], "from–to")]
    return [*by, "policy", "cases", *bound, *figures, "unfair", "unfinished"]


def list_cells(line: Line, *, with_bound: bool) -> list[str]:
    """Write the cells of a line."""
    bound = [_mean(line.bound), _high(line.bound)] if with_bound else []
    figures = [cell for figure in FIGURES for cell in _pair(line.ratios[figure])]
    unfair = "–" if math.isnan(line.unfair) else f"{100 * line.unfair:.1f}%"
    tail = [unfair, f"{line.unfinished:,}" if line.unfinished else ""]
    return [*line.group, line.policy, f"{line.cases:,}", *bound, *figures, *tail]


def tabulate(lines: Sequence[Line], *, by: Sequence[str], references: Sequence[str]) -> str:
    """Make the table for people."""
    best = "the best of " if len(references) > 1 else ""
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"ratios to {best}{', '.join(references)}: geometric mean ± spread; below 1 is less",
    )
    table.title_justify, table.title_style = "left", "bold"
    for number, title in enumerate(list_titles(lines, by)):
        words = number <= len(by)
        table.add_column(title, justify="left" if words else "right", no_wrap=True)
    for cells in _iter_cells(lines):
        table.add_row(*cells)
    return printing.render(table, piped_width=printing.ENDLESS)


def _iter_cells(lines: Sequence[Line]) -> Iterator[list[str]]:
    with_bound = any(line.bound for line in lines)
    for line in lines:
        yield list_cells(line, with_bound=with_bound)


def _mean(spread: Spread | None) -> str:
    return "–" if spread is None else f"{spread.mean:.3f} ± {spread.deviation:.3f}"


def _high(spread: Spread | None) -> str:
    return "–" if spread is None else f"{spread.high:.3f}"


def _pair(spread: Spread | None) -> tuple[str, str]:
    ends = "–" if spread is None else f"{spread.low:.3f}–{spread.high:.3f}"
    return _mean(spread), ends
