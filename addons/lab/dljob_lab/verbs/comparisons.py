"""The table of a comparison: the lines of :mod:`dljob_lab.comparing.summing`, for a terminal and for a page."""

import math
from collections.abc import Mapping, Sequence

from dljob.cli.output import printing
from dljob_lab.comparing.summing import FIGURES, Line, Spread

TITLES: Mapping[str, str] = {
    "avg_jct_s": "average JCT",
    "p99_jct_s": "p99 JCT",
    "makespan_s": "makespan",
}

LEAST = ("cases", "unfair", "worst", "p99 JCT", "makespan")
"""The columns that a narrow terminal leaves out after the ranges, the first one first."""

RANGE = "from–to"


def list_titles(lines: Sequence[Line], by: Sequence[str]) -> list[str]:
    """Name the columns."""
    bound = ["JCT / bound", "worst"] if any(line.bound for line in lines) else []
    ratios = [title for figure in FIGURES for title in (TITLES[figure], RANGE)]
    return [*by, "policy", "cases", *bound, *ratios, "unfair", "unfinished"]


def list_cells(lines: Sequence[Line]) -> list[list[str]]:
    """Write the cells of each line."""
    with_bound = any(line.bound for line in lines)
    return [_write_cells(line, with_bound=with_bound) for line in lines]


def _write_cells(line: Line, *, with_bound: bool) -> list[str]:
    bound = [_mean(line.bound), _high(line.bound)] if with_bound else []
    ratios = [write(line.ratios[figure]) for figure in FIGURES for write in (_mean, _range)]
    unfair = "–" if math.isnan(line.unfair) else f"{100 * line.unfair:.1f}%"
    tail = [unfair, f"{line.unfinished:,}" if line.unfinished else ""]
    return [*line.group, line.policy, f"{line.cases:,}", *bound, *ratios, *tail]


def show(lines: Sequence[Line], *, by: Sequence[str], references: Sequence[str], wide: bool) -> str:
    """Write the table for people, as detailed as the terminal is wide."""
    best = "the best of " if len(references) > 1 else ""
    titles = list_titles(lines, by)
    first, *ranges = [place for place, title in enumerate(titles) if title == RANGE]
    return printing.tabulate(
        titles,
        list_cells(lines),
        title=f"ratios to {best}{', '.join(references)}: geometric mean ± spread; below 1 is less",
        words=len(by) + 1,
        hide=[ranges, [first], *([titles.index(name)] for name in LEAST if name in titles)],
        wide=wide,
    )


def _mean(spread: Spread | None) -> str:
    return "–" if spread is None else f"{spread.mean:.3f} ± {spread.deviation:.3f}"


def _high(spread: Spread | None) -> str:
    return "–" if spread is None else f"{spread.high:.3f}"


def _range(spread: Spread | None) -> str:
    return "–" if spread is None else f"{spread.low:.3f}–{spread.high:.3f}"
