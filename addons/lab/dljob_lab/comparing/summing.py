"""
The table of a comparison: pure functions from results to lines.

:mod:`dljob_lab.verbs.compare` prints the lines. Times of different traces cannot be averaged, their ratios
can: each figure of a policy is divided by that of a reference in the very same scenario, and the
ratios are averaged geometrically, so that it does not matter which of the two is the reference. A
case counts only if policy and reference both have a figure there.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any, NamedTuple

FIGURES = ("avg_jct_s", "p99_jct_s", "makespan_s")
"""The figures that are compared."""

GROUPS = (
    "trace",
    "part",
    "cluster",
    "placement",
    "window",
    "load",
    "restart_cost_s",
    "speed_error",
    "size_error",
    "sizes",
    "known",
    "seed",
)
"""The properties of a case apart from its policy, by which lines can be distinguished."""

EXACT = "exact"
"""As a reference: each policy itself, where it knows everything."""

KNOWING_ALL = {"speed_error": 0.0, "size_error": 0.0, "sizes": "known", "known": "all"}

Row = Mapping[str, Any]
"""A result with its scenario, as ``-o json`` prints it."""


class Spread(NamedTuple):
    """Ratios over several cases."""

    mean: float
    """Geometric."""
    deviation: float
    """The standard deviation of the logarithms: 0.05 where cases differ by some 5 %."""
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """How one policy did in a group of cases."""

    group: tuple[str, ...]
    policy: str
    cases: int
    unfinished: int
    """Jobs that never ended, over all cases; their times are in no figure."""
    bound: Spread | None
    """Average JCT over the lower bound; ``None`` where there is none."""
    ratios: Mapping[str, Spread | None]
    """Each of :data:`FIGURES` over the reference's."""
    unfair: float
    """The mean of ``unfair_local_share``."""


def sum_up(
    rows: Sequence[Row], *, by: Sequence[str] = (), references: Sequence[str] = ()
) -> list[Line]:
    """
    Sum up the rows, a line for each group and policy, in the order in which they first appear.

    With several references, each figure is compared with the least of theirs. The reference
    :data:`EXACT` is the policy itself in the same case with exact knowledge.
    """
    found_references = _References(rows, references)
    groups: dict[tuple[tuple[str, ...], str], list[Row]] = {}
    for group in dict.fromkeys(_name_group(row, by) for row in rows):
        for row in rows:
            if _name_group(row, by) == group:
                groups.setdefault((group, row["policy"]), []).append(row)
    return [
        _make_line(group, policy, rows=found, least=found_references)
        for (group, policy), found in groups.items()
    ]


def spread(ratios: Iterable[float]) -> Spread | None:
    """Average ratios; what is no ratio does not count."""
    logs = [math.log(ratio) for ratio in ratios if 0.0 < ratio < math.inf]
    if not logs:
        return None
    return Spread(math.exp(fmean(logs)), pstdev(logs), math.exp(min(logs)), math.exp(max(logs)))


def ratios_of(
    rows: Sequence[Row], figure: str, *, references: Sequence[str]
) -> dict[str, list[float]]:
    """The ratio of each case, by policy, for those who draw them."""
    least = _References(rows, references)
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row["policy"], []).append(_divide(row[figure], least.find(row, figure)))
    return {
        policy: [each for each in some if not math.isnan(each)] for policy, some in found.items()
    }


def bound_ratio(row: Row) -> float:
    """
    Average JCT over the lower bound; not a number where there is none.

    The bound is about all jobs that can run. A policy that left some of them unfinished has an
    average of others, which may be below it.
    """
    if row.get("bound_jobs") != row.get("jobs", 0) - row["unfinished"]:
        return math.nan
    return _divide(row["avg_jct_s"], row.get("bound_avg_jct_s"))


def _make_line(
    group: tuple[str, ...], policy: str, *, rows: Sequence[Row], least: "_References"
) -> Line:
    def compare(figure: str) -> Spread | None:
        return spread(_divide(row[figure], least.find(row, figure)) for row in rows)

    unfair = [row["unfair_local_share"] for row in rows if _is_figure(row["unfair_local_share"])]
    return Line(
        group=group,
        policy=policy,
        cases=len(rows),
        unfinished=sum(row["unfinished"] for row in rows),
        bound=spread(map(bound_ratio, rows)),
        ratios={figure: compare(figure) for figure in FIGURES},
        unfair=fmean(unfair) if unfair else math.nan,
    )


Case = tuple[str, ...]


class _References:
    """With what figures are compared."""

    def __init__(self, rows: Sequence[Row], names: Sequence[str]) -> None:
        self._itself = EXACT in names
        self._least: dict[tuple[Case, str], float] = {}
        for row in rows:
            if self._itself or row["policy"] in names:
                self._add(row)

    def _add(self, row: Row) -> None:
        for figure in FIGURES:
            key, value = (self._place(row), figure), row[figure]
            if _is_figure(value) and value < self._least.get(key, math.inf):
                self._least[key] = value

    def find(self, row: Row, figure: str) -> float | None:
        """Find the figure of the best reference in the case of this row; ``None`` if none has one."""
        if self._itself:
            row = {**row, **KNOWING_ALL}
        return self._least.get((self._place(row), figure))

    def _place(self, row: Row) -> Case:
        return (*_case(row), row["policy"]) if self._itself else _case(row)


def _case(row: Row) -> Case:
    """Return the values that two rows share if they differ in their policies only."""
    return tuple(str(row.get(name)) for name in GROUPS)


def _name_group(row: Row, by: Sequence[str]) -> tuple[str, ...]:
    return tuple(_write(row.get(name)) for name in by)


def _write(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _divide(value: Any, by: Any) -> float:
    if not _is_figure(value) or not _is_figure(by) or by <= 0.0:
        return math.nan
    return float(value / by)


def _is_figure(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
