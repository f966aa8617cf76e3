"""
How the reproduction of Rubick hangs on what a start or a change of GPUs costs.

A record a policy and cost: the average completion time of all jobs of the trace, that of the jobs that are not wide,
and the number of reshapes. ``docs/reproduction/rubick.md`` shows the outcome.
"""

from dataclasses import replace
from statistics import fmean
from typing import Any

import click
from _measuring import print_result
from _progress import count, run

from dljob.sim.engine.controlling.costs import costs_of_change
from dljob.sim.inputs.shipped import find_folder
from dljob_lab.reproducing import rubick
from dljob_lab.reproducing.contests import Entry, play

COSTS_S = (0.0, 30.0, 78.0, rubick.CHANGE_S)
POLICIES = ("srsf", "max-min", "adaptive", "tiresias")


def measure(entry: Entry, cost_s: float) -> dict[str, Any]:
    """Play the trace under one policy where a start or a change takes so many seconds."""
    path = find_folder() / "rubick" / "rubick_base.csv.gz"
    outcome, _ = play(entry, path, arena=replace(rubick.ARENA, costs=costs_of_change(cost_s)))
    narrow = [job.jct for job in outcome.record.completed if job.requested < rubick.WIDE]
    return {
        "policy": entry.name,
        "change_s": cost_s,
        "avg_jct_s": outcome.score.avg_jct_s,
        "narrow_avg_jct_s": fmean(narrow),
        "reshapes": outcome.score.reshapes,
    }


@click.command(help=__doc__)
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(form: str) -> None:
    entries = {entry.name: entry for entry in rubick.ENTRIES}
    costs = count(COSTS_S, "{:g} s a change".format)
    print_result([measure(entries[name], cost) for cost in costs for name in POLICIES], form)


if __name__ == "__main__":
    run(main)
