"""
The tables that ``dljob compare --suite --write FILE`` writes: the figures, the traces and the version.

They hold nothing that differs from one machine to another, so a user that plays the suite with the
same version writes the same bytes. In a page that has the two marks, such as ``docs/leaderboard.md``,
they replace the text between them; the rest of that page is written by hand.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from dljob.sim.jobs.workloads import name_of
from dljob.sim.policies import NAMES
from dljob_lab.comparing.suite import PARTS, Suite
from dljob_lab.comparing.summing import Line, sum_up
from dljob_lab.comparing.tasks import digest_program
from dljob_lab.verbs.comparisons import RANGE, list_cells, list_titles

Rows = Sequence[Mapping[str, Any]]

BEGIN, END = "<!-- suite -->", "<!-- end of suite -->"

NEW = f"# Leaderboard\n\ndocs/leaderboard.md of DLJob explains the columns.\n\n{BEGIN}\n{END}\n"
"""A page that has only the tables."""


def write_page(suite: Suite, rows: Rows, *, window: int | None, present: str = "") -> str:
    """Write these results into a page; ``window`` is the number of jobs, where it is not the suite's."""
    page = present if BEGIN in present and END in present else NEW
    head, _, rest = page.partition(BEGIN)
    blocks = "\n".join(_iter_blocks(suite, rows, window=window))
    return f"{head}{BEGIN}\n\n{blocks}\n{END}{rest.partition(END)[2]}"


def _iter_blocks(suite: Suite, rows: Rows, *, window: int | None) -> Iterator[str]:
    yield from _warn(window)
    for part in PARTS:
        for placement in suite.placements:
            found = [r for r in rows if r["part"] == part and r["placement"] == placement]
            if found:
                yield f"## For {part}, {placement}\n"
                lines = sorted(sum_up(found, references=[suite.reference]), key=_rank)
                yield _make_table(*_shorten(list_titles(lines, ()), list_cells(lines)), words=1)
    yield "## What was played\n"
    yield _describe_scenarios(suite, rows)
    yield _list_traces(suite)
    yield _describe_version(suite)


def _warn(window: int | None) -> Iterator[str]:
    if window is not None:
        yield (
            f"**Made with windows of {window} jobs, to try it: these figures count for nothing.**\n"
        )


def _rank(line: Line) -> tuple[float, str]:
    return (math.inf if line.bound is None else line.bound.mean, line.policy)


def _shorten(
    titles: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    """Leave out the ranges and empty columns, which ``-o wide`` prints."""
    kept = [
        place
        for place, title in enumerate(titles)
        if title != RANGE and any(row[place] for row in rows)
    ]
    return [titles[place] for place in kept], [[row[place] for place in kept] for row in rows]


def _make_table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, words: int) -> str:
    rule = ["---"] * words + ["---:"] * (len(titles) - words)
    table = [titles, rule, *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in table)


def _describe_scenarios(suite: Suite, rows: Rows) -> str:
    windows = sorted({row["window"] for row in rows})
    played = list(dict.fromkeys(row["policy"] for row in rows))
    known = {each.partition(":")[0] for each in played}
    missing = [name for name in NAMES if name not in known]
    return (
        f"{len({row['trace'] for row in rows})} traces at loads "
        f"{_join(suite.loads)}, with restart costs of {_join(suite.restart_costs)} s and seed "
        f"{_join(suite.seeds)}, in windows of {_join(windows)} jobs; policies: "
        f"{', '.join(played)}. {_describe_missing(missing)}"
        "[profiles/README.md](../profiles/README.md) says where the traces are from.\n"
    )


def _describe_missing(names: Sequence[str]) -> str:
    return f"Not played: {', '.join(names)}. " if names else ""


def _join(values: Iterable[float]) -> str:
    *most, last = [f"{value:g}" for value in values] or ["–"]
    return f"{', '.join(most)} and {last}" if most else last


def _list_traces(suite: Suite) -> str:
    rows = [(name_of(each.path), each.part, f"`{each.cluster}`") for each in suite.entries]
    return _make_table(["trace", "for", "cluster"], sorted(rows, key=lambda r: r[1]), words=3)


def _describe_version(suite: Suite) -> str:
    return (
        f"By DLJob {version('dljob')} (source `{digest_program()[:12]}`), suite {suite.version} "
        f"(`{suite.digest[:12]}`).\n"
    )
