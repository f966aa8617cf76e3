"""
The cost of each rule of Pollux's world: its workloads with all rules, and without one at a time.

A record a policy, load and rule that is left out: the mean of the average completion times over the workloads of the
load. ``--workloads 5`` plays all of them, as ``docs/reproduction/pollux.md`` shows it; without it the first of each load is
played.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import click
from _measuring import print_result
from _progress import count, run

from dljob.core.profiles import Costs
from dljob.sim.inputs.shipped import find_folder
from dljob_lab.reproducing import pollux
from dljob_lab.reproducing.contests import Arena, Entry, play

LOADS = ("1.0", "2.0")
POLICIES = ("max-min", "adaptive", "optimus", "tiresias")


def vary_rules() -> Mapping[str, Arena]:
    """Build the world of Pollux, and that world without each of its rules."""
    arena = pollux.make_arena("pollux")
    rules = arena.rules
    assert rules is not None
    return {
        "all rules": arena,
        "no growth limit": replace(arena, rules=replace(rules, growth=None)),
        "distributed jobs may share nodes": replace(
            arena, rules=replace(rules, shares_network=True)
        ),
        "decisions at events": replace(arena, rules=replace(rules, round_s=0.0)),
        "changes for nothing": replace(arena, costs=Costs()),
    }


def measure(entry: Entry, arena: Arena, places: Sequence[pollux.Place]) -> float:
    """Play the workloads under one policy; return the mean of the average completion times."""
    folder = find_folder() / "peers"
    return fmean(
        play(entry, folder / place.trace, arena=arena)[0].score.avg_jct_s for place in places
    )


@click.command(help=__doc__)
@click.option("--workloads", type=click.IntRange(1, 5), default=1, show_default=True)
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(*, workloads: int, form: str) -> None:
    published = list(pollux.read_published())
    places = {load: [p for p in published if p.load == load][:workloads] for load in LOADS}
    entries = {entry.name: entry for entry in pollux.ENTRIES}
    rows: list[dict[str, Any]] = []
    arenas = vary_rules()
    for rule in count(tuple(arenas)):
        for name in POLICIES:
            means = [measure(entries[name], arenas[rule], places[load]) for load in LOADS]
            row = {f"avg_jct_{load}_s": mean for load, mean in zip(LOADS, means, strict=True)}
            rows.append({"rule": rule, "policy": name, "workloads": workloads, **row})
    print_result(rows, form)


if __name__ == "__main__":
    run(main)
