"""
How much the evaluation of the SideCar paper hangs on what had to be assumed for it.

Every assumption is changed alone: the costs, the arrivals, the numbers of GPUs a job may have, and
which measurements speak for the paper's job types. Each row holds the reductions by SideCar and
the time lost to reshaping, as means over the seeds. ``docs/reproduction/sidecar.md`` shows the outcome.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from statistics import fmean
from typing import Any, NamedTuple

import click
from _measuring import describe_machine
from _progress import count, run

from dljob.core.profiles import Costs
from dljob_lab.reproducing.sidecar.constants import FROZEN
from dljob_lab.reproducing.sidecar.job_types import Rule
from dljob_lab.reproducing.sidecar.runs import (
    BASELINES,
    OURS,
    Outcomes,
    play_seeds,
    reduce_by,
)
from dljob_lab.reproducing.sidecar.workloads import (
    PLANS,
    USUAL,
    WINDOW_S,
    Assumptions,
)


class Variant(NamedTuple):
    """One way to assume something else."""

    name: str
    assumptions: Assumptions = USUAL
    costs: Costs = FROZEN.costs


def scale(costs: Costs, factor: float) -> Costs:
    """All costs dearer or cheaper by the same factor."""
    return Costs(**{field.name: factor * getattr(costs, field.name) for field in fields(costs)})


VARIANTS = (
    Variant("as assumed"),
    Variant("costs +25 %", costs=scale(FROZEN.costs, 1.25)),
    Variant("costs -25 %", costs=scale(FROZEN.costs, 0.75)),
    Variant("arrivals within 8,250 s", Assumptions(window_s=0.75 * WINDOW_S)),
    Variant("arrivals within 13,750 s", Assumptions(window_s=1.25 * WINDOW_S)),
    Variant("iterations 1.5 times as long", Assumptions(slowness=1.5)),
    Variant("iterations half as long", Assumptions(slowness=0.5)),
    Variant("options 1, 2, 4 only", Assumptions(options=(1, 2, 4))),
    Variant("nearest model as measured", Assumptions(rule=Rule.AS_MEASURED)),
    Variant("scaling of Gavel's ResNet-50", Assumptions(rule=Rule.GAVEL_CURVES)),
)


def measure(variant: Variant, numbers: tuple[int, ...], seeds: int) -> Iterator[dict[str, Any]]:
    """Play some workloads in one variant."""
    plans = [plan for plan in PLANS if plan.number in numbers]
    found = play_seeds(plans, seeds=seeds, assumptions=variant.assumptions, costs=variant.costs)
    for name, runs in found.items():
        row: dict[str, Any] = {"assumed": variant.name, "workload": name, "seeds": seeds}
        for baseline in BASELINES:
            row[f"makespan_reduction_{baseline}"] = _reduction(runs, baseline, "makespan_s")
            row[f"jct_reduction_{baseline}"] = _reduction(runs, baseline, "avg_jct_s")
        for approach in ("termination", OURS):
            share = fmean(run[approach].reshape_share for run in runs)
            row[f"reshape_share_{approach}"] = round(share, 4)
        yield row


def _reduction(runs: tuple[Outcomes, ...], baseline: str, quantity: str) -> float:
    return round(reduce_by(runs, baseline, quantity=quantity).mean / 100.0, 4)


def to_markdown(rows: list[dict[str, Any]]) -> str:
    """One line an assumption; in a cell the workloads in their order, in percent."""
    titles = {
        "makespan_reduction_default": "makespan, default",
        "jct_reduction_default": "JCT, default",
        "makespan_reduction_termination": "makespan, termination",
        "jct_reduction_termination": "JCT, termination",
        "reshape_share_termination": "lost, termination",
        "reshape_share_sidecar": "lost, SideCar",
    }
    lines = ["| assumed | " + " | ".join(titles.values()) + " |", "|---" * 7 + "|"]
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_name.setdefault(row["assumed"], []).append(row)
    for name, some in by_name.items():
        cells = [" ".join(f"{100 * row[key]:.0f}" for row in some) for key in titles]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


@click.command(help=__doc__)
@click.option("--seeds", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--workloads", default="2", show_default=True, help="Numbers, with commas.")
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(seeds: int, workloads: str, form: str) -> None:
    """Measure every variant."""
    known = {str(plan.number): plan.number for plan in PLANS}
    if not set(workloads.split(",")) <= set(known):
        raise click.UsageError(f"--workloads wants some of {', '.join(known)}, with commas")
    numbers = tuple(known[part] for part in workloads.split(","))
    varied = count(VARIANTS, lambda variant: variant.name)
    rows = [row for variant in varied for row in measure(variant, numbers, seeds)]
    if form == "json":
        print(json.dumps([{**row, "machine": describe_machine()} for row in rows], indent=2))
        return
    print(to_markdown(rows))


if __name__ == "__main__":
    run(main)
