"""
How results look: tables for people, JSON and CSV for programs.

The verbs make results and choose a printer; everything here returns text, so that nothing is
printed before all of it is complete.
"""

import csv
import io
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from dlctl.output import texts
from dlctl.output.forms import to_json
from dlsim.bounding.bounds import Bound
from dlsim.jobs.workloads import TracedJob, Workload
from dlsim.results.records import JobRecord, Record
from dlsim.results.scoring import Score

WIDE = "wide"
"""The table with all of its columns, however wide the terminal is."""

FORMATS = ("table", WIDE, "json", "csv")

PIPED_WIDTH = 140
"""How wide a table with sentences is where no terminal says how wide it is."""

ENDLESS = 10_000
"""How wide a table of figures may be there: programs that cut columns do not want them broken."""


class Column(NamedTuple):
    """A column of the table of scores."""

    title: str
    show: Callable[[Score], str]


class Unit(NamedTuple):
    """The unit of the shown times."""

    name: str
    seconds: float


UNITS = (Unit("h", 3600.0), Unit("min", 60.0), Unit("s", 1.0))


# --- for programs -------------------------------------------------------------------------


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """CSV with a header; what does not exist is left empty."""
    text = io.StringIO()
    # Not the line ends of the standard, which tools on Unix show as part of the last column.
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows[0].keys())
    writer.writerows([_to_cell(value) for value in row.values()] for row in rows)
    return text.getvalue()


def _to_cell(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else value


# --- scores -------------------------------------------------------------------------------


def show_scores(
    scores: Sequence[Score],
    form: str,
    *,
    bound: Bound | None = None,
    premises: Sequence[str] = (),
) -> str:
    """
    Show the figures of several policies in one of the :data:`FORMATS`, beside a bound if given.

    The assumptions follow a table, and are the field ``assumed`` in JSON; CSV has no place for them.
    """
    if form in ("table", WIDE):
        return _tabulate(scores, bound, all_of_it=form == WIDE) + list_premises(premises)
    rows = [asdict(score) | _compare(score, bound) for score in scores]
    if form == "csv":
        return to_csv([flatten(row) for row in rows])
    return to_json([row | ({"assumed": list(premises)} if premises else {}) for row in rows])


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


def _compare(score: Score, bound: Bound | None) -> dict[str, float | None]:
    """The fields of a score that exist only beside a bound."""
    if bound is None:
        return {}
    return {
        "bound_avg_jct_s": bound.avg_jct_s,
        "avg_jct_over_bound": bound.ratio(score.avg_jct_s, score.jobs - score.unfinished),
    }


def flatten(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Make columns of the parts of fields that have parts."""
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            flat.update((f"{name}_{part}", each) for part, each in value.items())
        else:
            flat[name] = value
    return flat


def _tabulate(scores: Sequence[Score], bound: Bound | None, *, all_of_it: bool) -> str:
    """The more important columns come first; those for which the terminal is too narrow are named."""
    unit = choose_unit(score.avg_jct_s for score in scores)
    first, *others = _choose_columns(unit, loses_work=any(score.lost_work_s for score in scores))
    beside = () if bound is None else _columns_of(bound, unit)
    columns: Sequence[Column] = (first, *beside, *others)
    wide = Console(width=ENDLESS)
    table = _make_table(scores, columns, unit=unit)
    room = ENDLESS if all_of_it else find_width(ENDLESS)
    hidden: list[str] = []
    while len(columns) > 1 and wide.measure(table).maximum > room:
        hidden.insert(0, columns[-1].title)
        columns = columns[:-1]
        table = _make_table(scores, columns, unit=unit)
    text = render(table, piped_width=ENDLESS, all_of_it=all_of_it)
    return text + tell_hidden(hidden, room)


def tell_hidden(hidden: Sequence[str], width: int) -> str:
    """Say below a table what it does not show for want of room, and what prints it."""
    lines = texts.tell_hidden(hidden, width)
    return "".join(f"{line}\n" for line in [*lines, ""]) if lines else ""


def _make_table(scores: Sequence[Score], columns: Sequence[Column], *, unit: Unit) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=_title(scores[0], unit))
    table.title_justify, table.title_style = "left", "bold"
    table.add_column("policy", no_wrap=True)
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True)
    for score in scores:
        table.add_row(score.policy, *(column.show(score) for column in columns))
    return table


def _title(score: Score, unit: Unit) -> str:
    dropped = f", {score.dropped} dropped" if score.dropped else ""
    jobs = f"{score.trace}: {score.jobs:,} job{'s' if score.jobs != 1 else ''}{dropped}"
    return f"{jobs}; {score.mechanism}, seed {score.seed}; times in {unit.name}"


def choose_unit(times: Iterable[float]) -> Unit:
    """One unit for all times of a table, so that they can be compared at a glance."""
    least = min((time for time in times if time > 0), default=0.0)
    return next((unit for unit in UNITS if least >= 2 * unit.seconds), UNITS[-1])


def _columns_of(bound: Bound, unit: Unit) -> tuple[Column, ...]:
    """The columns that a bound adds to the table."""

    def ratio(score: Score) -> str:
        value = bound.ratio(score.avg_jct_s, score.jobs - score.unfinished)
        return "–" if value is None else f"{value:.3f}"

    return (
        Column("bound", lambda _score: _show(bound.avg_jct_s / unit.seconds, 1)),
        Column("JCT/bound", ratio),
    )


def _choose_columns(unit: Unit, *, loses_work: bool) -> tuple[Column, ...]:
    def time(title: str, of: Callable[[Score], float]) -> Column:
        return Column(title, lambda score: _show(of(score) / unit.seconds, 1))

    return (
        time("avg JCT", lambda score: score.avg_jct_s),
        time("p50", lambda score: score.p50_jct_s),
        time("p95", lambda score: score.p95_jct_s),
        time("p99", lambda score: score.p99_jct_s),
        time("makespan", lambda score: score.makespan_s),
        Column("GPU use", lambda score: _show(100 * score.utilization, 1, "%")),
        Column("reshapes", lambda score: f"{score.reshapes:,}"),
        Column("lost to them", lambda score: _show(100 * score.reshape_share, 1, "%")),
        *([time("lost work", lambda score: score.lost_work_s)] if loses_work else []),
        time("avg wait", lambda score: score.avg_wait_s),
        Column("queue", lambda score: _show(score.avg_queue, 1)),
        Column("blocking", lambda score: _show(score.blocking_index, 2)),
        Column("efficiency", lambda score: _show(100 * score.cluster_efficiency, 1, "%")),
        Column("slowdown", lambda score: _show(score.mean_slowdown, 2)),
        Column("worst rho", lambda score: _show(score.worst_local_rho, 2)),
        Column("unfair", lambda score: _show(100 * score.unfair_local_share, 1, "%")),
        Column("decisions", lambda score: f"{score.decisions:,}"),
        Column("ms each", lambda score: _show(score.decision_ms.p50, 2)),
    )


def _show(value: float, digits: int, unit: str = "") -> str:
    if math.isnan(value):
        return "–"
    # Decimals of thousands are useless.
    return f"{value:,.{0 if abs(value) >= 10_000 else digits}f}{unit}"


def find_width(piped_width: int) -> int:
    """How wide a table may be: as the terminal, or as is said where none is."""
    console = Console()
    return console.width if console.is_terminal else piped_width


def render(table: Table, *, piped_width: int = PIPED_WIDTH, all_of_it: bool = False) -> str:
    """
    Turn a table into text, in colour if it goes to a terminal that takes colour.

    With ``all_of_it`` it may be wider than the terminal, which then breaks its lines.
    """
    console = Console(width=ENDLESS if all_of_it else find_width(piped_width))
    with console.capture() as capture:
        console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


# --- jobs ---------------------------------------------------------------------------------


def list_jobs(policy: str, record: Record, workload: Workload) -> list[dict[str, Any]]:
    """How it went for each job of a run, those that were dropped last."""
    traced = {each.job.id: each for each in workload.jobs}
    rows = [_describe_job(policy, job, traced=traced[job.job]) for job in record.jobs]
    empty = dict.fromkeys(rows[0] if rows else ())
    rows += [
        {**empty, "policy": policy, "job_id": job, "outcome": "dropped"} for job in record.dropped
    ]
    return rows


def _describe_job(policy: str, job: JobRecord, *, traced: TracedJob) -> dict[str, Any]:
    done = job.completed_at is not None
    return {
        "policy": policy,
        "job_id": job.job,
        "outcome": "completed" if done else "unfinished",
        "requested_gpus": job.requested,
        "allowed_gpus": " ".join(map(str, traced.job.gpus.options)),
        "speeds_of": traced.curve,
        "drawn_by_lot": "yes" if traced.is_drawn else "no",
        "submitted_s": job.submitted_at,
        "started_s": job.started_at,
        "completed_s": job.completed_at,
        "jct_s": job.jct if done else None,
        "isolated_s": job.isolated_s,
        "slowdown": job.jct / job.isolated_s if done and job.isolated_s > 0.0 else None,
        "gpu_seconds": job.gpu_seconds,
        "iterations": job.iterations,
        "redone_iterations": job.redone,
        "lost_work_s": job.lost_work_s,
        "lost_s": job.lost_s,
        "reshapes": job.reshapes,
        "stops": job.stops,
    }
