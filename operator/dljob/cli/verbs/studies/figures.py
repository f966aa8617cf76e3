"""
The figures of policies as a table: what ``dljob simulate`` prints, of one seed or of several.

A row is a result as ``-o json`` has it: the fields of a :class:`~dljob.sim.results.scoring.Score`, with the bound in the
same scenario if one was asked for.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from dljob.cli.output import printing
from dljob.cli.output.forms import to_json
from dljob.sim.comparing.summing import bound_ratio
from dljob.sim.results.scoring import Score

Row = Mapping[str, Any]


class Unit(NamedTuple):
    """The unit of the shown times."""

    name: str
    seconds: float


UNITS = (Unit("h", 3600.0), Unit("min", 60.0), Unit("s", 1.0))


class Figure(NamedTuple):
    """A column: a field of a result, and how it is written."""

    title: str
    field: str
    is_time: bool = False
    factor: float = 1.0
    digits: int = 1
    unit: str = ""


AVERAGE = Figure("avg JCT", "avg_jct_s", is_time=True)
BOUND = Figure("bound", "bound_avg_jct_s", is_time=True)
RATIO = Figure("JCT/bound", "avg_jct_over_bound", digits=3)
TIMES = (
    Figure("p50", "p50_jct_s", is_time=True),
    Figure("p95", "p95_jct_s", is_time=True),
    Figure("p99", "p99_jct_s", is_time=True),
    Figure("makespan", "makespan_s", is_time=True),
    Figure("GPU use", "utilization", factor=100.0, unit="%"),
)
WAIT = Figure("avg wait", "avg_wait_s", is_time=True)
FAIRNESS = (
    Figure("slowdown", "mean_slowdown", digits=2),
    Figure("worst rho", "worst_local_rho", digits=2),
    Figure("unfair", "unfair_local_share", factor=100.0, unit="%"),
)
CHANGES = (
    Figure("reshapes", "reshapes", digits=0),
    Figure("lost to them", "reshape_share", factor=100.0, unit="%"),
)
LOST_WORK = Figure("lost work", "lost_work_s", is_time=True)
UNFINISHED = Figure("unfinished", "unfinished", digits=0)

OF_ONE = (
    *(AVERAGE, BOUND, RATIO, *TIMES, *CHANGES, LOST_WORK, WAIT),
    Figure("queue", "avg_queue"),
    Figure("blocking", "blocking_index", digits=2),
    Figure("efficiency", "cluster_efficiency", factor=100.0, unit="%"),
    *FAIRNESS,
    Figure("decisions", "decisions", digits=0),
    Figure("ms each", "decision_ms_p50", digits=2),
)
"""The columns for one seed, the more important ones first: a narrow terminal leaves out the last ones."""

OF_SEVERAL = (AVERAGE, RATIO, *TIMES, WAIT, *FAIRNESS, *CHANGES, UNFINISHED)
"""The columns for several seeds."""


def show(
    rows: Sequence[Row],
    form: str,
    *,
    title: str,
    columns: Sequence[Figure] = OF_ONE,
    premises: Sequence[str] = (),
) -> str:
    """
    Show results in one of :data:`~dljob.cli.output.printing.FORMATS`.

    The assumptions follow a table, and are the field ``assumed`` in JSON; CSV has no place for them.
    """
    if form == "csv":
        return printing.to_csv(rows)
    if form == "json":
        return to_json([{**row, **({"assumed": premises} if premises else {})} for row in rows])
    unit = _choose_unit(row["avg_jct_s"] for row in rows)
    lines = _group(rows) if columns is OF_SEVERAL else [[row] for row in rows]
    write = _write_mean if columns is OF_SEVERAL else _write
    values = [[_read(line, figure, unit=unit) for figure in columns] for line in lines]
    # A column of nothing is left out: the bound, work that was lost, and unfinished jobs.
    shown = [
        number
        for number, figure in enumerate(columns)
        if figure not in (BOUND, RATIO, LOST_WORK, UNFINISHED)
        or any(any(cells[number]) for cells in values)
    ]
    table = printing.tabulate(
        ["policy", *(columns[number].title for number in shown)],
        [
            [line[0]["policy"], *(write(cells[number], columns[number]) for number in shown)]
            for line, cells in zip(lines, values, strict=True)
        ],
        title=f"{title}; times in {unit.name}",
        hide=[[place] for place in range(len(shown), 1, -1)],
        wide=form == printing.WIDE,
    )
    return table + printing.list_premises(premises)


def _choose_unit(times: Iterable[float]) -> Unit:
    """Choose one unit for all times of a table, so that they can be compared at a glance."""
    least = min((time for time in times if time > 0), default=0.0)
    return next((unit for unit in UNITS if least >= 2 * unit.seconds), UNITS[-1])


def _group(rows: Sequence[Row]) -> list[list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["policy"], []).append(row)
    return list(found.values())


def _read(rows: Sequence[Row], figure: Figure, *, unit: Unit) -> list[float]:
    """Read a figure from each result that has it."""
    factor = 1.0 / unit.seconds if figure.is_time else figure.factor
    found = [
        row.get(RATIO.field, bound_ratio(row))
        if figure is RATIO
        else printing.flatten(row).get(figure.field)
        for row in rows
    ]
    return [factor * value for value in found if value is not None and not math.isnan(value)]


def _write(values: Sequence[float], figure: Figure) -> str:
    if not values:
        return "–"
    # Decimals of thousands are useless.
    digits = 0 if abs(values[0]) >= 10_000 else figure.digits
    return f"{values[0]:,.{digits}f}{figure.unit}"


def _write_mean(values: Sequence[float], figure: Figure) -> str:
    if not values:
        return "–"
    spread = stdev(values) if len(values) > 1 else 0.0
    digits = figure.digits
    return f"{fmean(values):,.{digits}f} ± {spread:,.{max(digits, 1)}f}{figure.unit}"


def title_of(score: Score) -> str:
    """Name the trace, the mechanism and the seed of a result."""
    dropped = f", {score.dropped} dropped" if score.dropped else ""
    jobs = f"{score.trace}: {score.jobs:,} job{'s' if score.jobs != 1 else ''}{dropped}"
    return f"{jobs}; {score.mechanism}, seed {score.seed}"
