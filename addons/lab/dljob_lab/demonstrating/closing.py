"""
The results of a demonstration, read from its event log: tables for people, values for programs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from rich import box
from rich.table import Table

from dljob.core.model import JobId
from dljob_lab.demonstrating.journal import Line
from dljob_lab.demonstrating.reading import (
    read_clock,
    read_interruptions,
    read_record,
    read_speeds,
    read_stints,
)
from dljob_lab.demonstrating.reshaping import Reshapes
from dljob_lab.demonstrating.script import Script
from dljob_lab.reproducing.sidecar.case import (
    PAPER,
    Approach,
    Sums,
    read_times,
    sum_up,
)

SLOWEST_S = max(time for times in PAPER.values() for time in times.values())
"""How long the slowest approach took in the paper."""

Curve = tuple[list[float], list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The results of one approach. Times and speeds are the shown ones."""

    approach: str
    policy: str
    mechanism: str
    times: Mapping[str, float]
    """By the names of :data:`~dljob_lab.reproducing.sidecar.case.PAPER`."""
    submitted: Mapping[JobId, float]
    done: Mapping[JobId, float]
    gpus: Mapping[JobId, tuple[int, ...]]
    """How many GPUs each start of a job's processes had."""
    curves: Mapping[JobId, Curve]
    interrupted_s: tuple[float, ...]
    """For how long, each time, the first job's processes were replaced. Real seconds."""

    @property
    def makespan_s(self) -> float:
        """From the first submission to the last completion."""
        return max(self.done.values()) - min(self.submitted.values())

    @property
    def avg_jct_s(self) -> float:
        """Completion less submission, on average."""
        return sum(self.done[job] - self.submitted[job] for job in self.done) / len(self.done)


def read_result(lines: Sequence[Line], approach: Approach, *, script: Script) -> Result:
    """Read what came out of an approach."""
    name, jobs = approach.name, script.jobs
    record = read_record(lines, name, jobs=jobs, factor=script.factor)
    clock = read_clock(lines, name, factor=script.factor)
    stints = {job: read_stints(lines, name, job=job) for job in jobs}
    return Result(
        approach=name,
        policy=approach.policy.name,
        mechanism=approach.mechanism.value,
        times=read_times(record),
        submitted={entry.job: entry.time for entry in record.log if entry.what == "submitted"},
        done={entry.job: entry.time for entry in record.log if entry.what == "completed"},
        gpus={job: tuple(stint.gpus for stint in stints[job]) for job in jobs},
        curves={job: read_speeds(stints[job], clock) for job in jobs},
        interrupted_s=tuple(read_interruptions(stints[jobs[0]])),
    )


def is_in_papers_order(results: Sequence[Result]) -> dict[str, bool]:
    """Return whether the approaches follow each other as in the paper, by makespan and by completion."""
    orders = {}
    for quantity in Sums._fields:
        by_paper = sorted(
            results, key=lambda r: float(getattr(sum_up(PAPER[r.approach]), quantity))
        )
        ours = [float(getattr(result, quantity)) for result in by_paper]
        orders[quantity] = all(before < after for before, after in pairwise(ours))
    return orders


def describe_order(results: Sequence[Result]) -> str:
    """Report in a sentence whether the approaches come in the paper's order."""
    words = {"makespan_s": "makespan", "avg_jct_s": "average JCT"}
    same = [words[quantity] for quantity, same in is_in_papers_order(results).items() if same]
    other = [word for word in words.values() if word not in same]
    told = [f"{' and '.join(same)} in the order of the paper"] if same else []
    told += [f"{' and '.join(other)} in another order than in the paper"] if other else []
    return ", ".join(told) + "\n"


def describe_gain(results: Sequence[Result]) -> str:
    """Compare DLJob with the other approaches in a sentence."""
    ours = results[-1]
    told = []
    for other in results[:-1]:
        makespan = ours.makespan_s / other.makespan_s - 1
        jct = ours.avg_jct_s / other.avg_jct_s - 1
        told.append(f"against {other.approach} makespan {makespan:+.0%} and average JCT {jct:+.0%}")
    return f"{ours.approach}: {', '.join(told)} (less is better)\n"


def suggest_next(*, real: bool) -> str:
    """Return what to try after this."""
    other = (
        "dljob demo                          the case study of the paper, in a twelfth of its time"
        if real
        else "dljob demo --real                   the same with real training"
    )
    return f"""
Try next:
  dljob up --virtual-gpus 4 --detach  run jobs of your own on this machine
  {other}
  dljob reproduce sidecar             the whole evaluation of the paper, simulated
"""


# --- for programs -------------------------------------------------------------------------


def to_values(results: Sequence[Result], reshapes: Sequence[Reshapes], **more: Any) -> Any:
    """All of it, for ``-o json``."""
    compared = more.get("factor", 1.0) != 1.0
    return {
        **more,
        "approaches": [_result_values(result, compared=compared) for result in results],
        **({"papers_order": is_in_papers_order(results)} if compared else {}),
        "measured_reshapes": [
            {
                "mechanism": each.mechanism.value,
                "changes": len(each.seconds),
                **{f"{name}_s": value for name, value in asdict(each.latency).items()},
            }
            for each in reshapes
        ],
    }


def _result_values(result: Result, *, compared: bool) -> dict[str, Any]:
    paper = sum_up(PAPER[result.approach])
    return {
        "approach": result.approach,
        "policy": result.policy,
        "mechanism": result.mechanism,
        "makespan_s": result.makespan_s,
        "avg_jct_s": result.avg_jct_s,
        **({"paper": paper._asdict()} if compared else {}),
        "jobs": [
            {
                "job": job,
                "submitted_s": result.submitted[job],
                "done_s": result.done[job],
                "gpus": list(result.gpus[job]),
            }
            for job in result.submitted
        ],
        "times": [
            {"event": event, "s": _or_none(result.times[event])}
            | ({"paper_s": theirs} if compared else {})
            for event, theirs in PAPER[result.approach].items()
        ],
        "interruptions_s": list(result.interrupted_s),
    }


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


# --- for people ---------------------------------------------------------------------------


def show_jobs(script: Script, results: Sequence[Result]) -> Table:
    """The paper's Table I, as it was."""
    table = _table("Table I: the two jobs")
    for title in ("job", "submitted", "GPUs asked for", "iterations", "containers"):
        table.add_column(title, justify="right" if title != "job" else "left")
    for act in script.acts:
        seen = [result.submitted[act.job] for result in results]
        table.add_row(
            act.job,
            f"{sum(seen) / len(seen):.0f} s",
            str(act.requested),
            f"{act.document['spec']['training']['iterations']:,}",
            "1",
        )
    return table


def show_times(results: Sequence[Result], *, compared: bool) -> Table:
    """Return when things happened (the paper's Figure 3)."""
    table = _table(
        "Figure 3: when what happened" + (", in the paper's seconds" if compared else "")
    )
    table.add_column("approach")
    table.add_column("event")
    table.add_column("this run", justify="right")
    if compared:
        table.add_column("paper", justify="right")
    for result in results:
        for event, paper in PAPER[result.approach].items():
            ours = result.times[event]
            if not compared and math.isnan(ours):
                continue
            row = [result.approach, event.replace("-", " "), _seconds(ours)]
            table.add_row(*row, *([_seconds(paper)] if compared else []))
        table.add_section()
    return table


def show_sums(results: Sequence[Result], *, compared: bool) -> Table:
    """Makespan and average completion time (the paper's Figure 4)."""
    table = _table("Figure 4: makespan and average job completion time (JCT)")
    table.add_column("approach")
    table.add_column("policy, mechanism")
    for title in ("makespan", "paper", "average JCT", "paper"):
        if compared or title != "paper":
            table.add_column(title, justify="right")
    for result in results:
        paper = sum_up(PAPER[result.approach])
        makespan, jct = [_seconds(result.makespan_s)], [_seconds(result.avg_jct_s)]
        if compared:
            makespan.append(_seconds(paper.makespan_s))
            jct.append(_seconds(paper.avg_jct_s))
        table.add_row(result.approach, f"{result.policy}, {result.mechanism}", *makespan, *jct)
    return table


def show_reshapes(reshapes: Sequence[Reshapes]) -> Table:
    """The measured times of a change of GPUs here, nothing modelled."""
    table = _table(
        "Measured on this machine, nothing modelled: for how long a change stops a training"
    )
    table.add_column("the change")
    for title in ("changes", "p50", "p99"):
        table.add_column(title, justify="right")
    words = {
        "in-place": "in place: stop, re-pin, start",
        "recreate": "recreation of the job's whole process tree",
    }
    for each in reshapes:
        low, high = each.latency.p50, each.latency.p99
        name = words[each.mechanism.value]
        table.add_row(name, str(len(each.seconds)), f"{low:.3f} s", f"{high:.3f} s")
    return table


def _table(title: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title)
    table.title_justify, table.title_style = "left", "bold"
    return table


def _seconds(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:,.0f} s"
