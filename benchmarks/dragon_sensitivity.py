"""
How much the evaluation of DRAGON hangs on what had to be assumed for it.

Every assumption is changed alone. A row holds by how much DRAGON and the locality-aware scheduler
lower the average elapsed time of the twelve jobs of Table 1 against Kubeflow, the three utilizations,
how many jobs start at once, and under Kubeflow the share of waiting and the makespan. ``docs/reproduction/dragon.md`` shows the outcome.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import click
from _measuring import print_result
from _progress import count, run

from dljob.core.profiles import Costs
from dljob_lab.reproducing.dragon import AT_ONCE_S, play_testbed, reduce_elapsed
from dljob_lab.reproducing.dragon_jobs import COSTS, USUAL, Assumptions


class Variant(NamedTuple):
    """One way to assume something else."""

    name: str
    assumptions: Assumptions = USUAL
    costs: Costs = COSTS
    options: str = ""


VARIANTS = (
    Variant("as assumed"),
    Variant("batches of 32", replace(USUAL, batch=32)),
    Variant("batches of 128", replace(USUAL, batch=128)),
    Variant("parameters cross the network twice", replace(USUAL, crossings=2)),
    Variant("a network of 10 Gb/s", replace(USUAL, megabytes_per_s=1250.0)),
    Variant("parameter servers next to the workers", replace(USUAL, spreads_servers=False)),
    Variant("all jobs share the network", replace(USUAL, shares_network=True)),
    Variant(
        "all jobs share the network, batches of 16", replace(USUAL, shares_network=True, batch=16)
    ),
    Variant("arrivals twice as close", replace(USUAL, arrival_unit_s=30.0)),
    Variant("arrivals in seconds, as printed", replace(USUAL, arrival_unit_s=1.0)),
    Variant("restarts cost nothing", costs=COSTS.faster(1e9)),
    Variant("idle for 5 min before scaling up", options=":idle_seconds=300"),
    Variant("urgent after 5 min", options=":urgent_seconds=300"),
)


def measure(variant: Variant) -> dict[str, Any]:
    """Play the testbed in one variant."""
    found = play_testbed(variant.assumptions, costs=variant.costs, options=variant.options)
    row: dict[str, Any] = {"assumed": variant.name}
    for name in ("dragon", "locality"):
        row[f"{name}_below_kubeflow_percent"] = round(
            reduce_elapsed(found, name, baseline="kubeflow"), 1
        )
    for name, outcome in found.items():
        row[f"{name}_utilization_percent"] = round(100.0 * outcome.utilization, 1)
    kubeflow = found["kubeflow"]
    for name, outcome in found.items():
        row[f"{name}_at_once"] = sum(wait < AT_ONCE_S for wait in outcome.waits_s)
    row["kubeflow_waiting_percent"] = round(100.0 * kubeflow.waiting_s / kubeflow.elapsed_s, 1)
    row["kubeflow_makespan_minutes"] = round(kubeflow.makespan_s / 60.0, 1)
    return row


@click.command(help=__doc__)
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(form: str) -> None:
    """Measure every variant."""
    print_result([measure(each) for each in count(VARIANTS, lambda each: each.name)], form)


if __name__ == "__main__":
    run(main)
