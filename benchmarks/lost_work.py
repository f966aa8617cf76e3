"""
How wrong forecasts of changes are where changes lose work, before the law ``work-kept``, with it, and with trials.

Part of a trace is played with shares of jobs that have no checkpoint, or a broken one. At the last change of each
running job the time until its end is forecast as policies do, with the work that is known to be lost in it; the
error is that forecast over what it really took, less 1. A row a rule: ``blind`` counts no lost work and
changes jobs at any cost, ``kept`` knows of jobs without a checkpoint and learns of a broken one by the first change
that loses work, ``tried`` tries each checkpoint before the first change. ``lost_work_s`` is the training
in vain, in seconds of jobs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import click
from _measuring import describe_machine, print_result, summarize
from _progress import count, run

from dljob.core.checking import Law
from dljob.core.contract import Decision, Policy, View
from dljob.core.model import JobId
from dljob.sim import policies
from dljob.sim.clusters import fill_nodes
from dljob.sim.engine.settings import Setting
from dljob.sim.engine.world import World
from dljob.sim.inputs.shipped import find_folder
from dljob.sim.jobs.workloads import Workload
from dljob.sim.results.records import Entry, Happening, Record
from dljob.sim.results.scoring import score
from dljob.sim.scenarios import Scenario, build_setting, draw_checkpoints, read_workload

CHANGES = (Happening.ADDING, Happening.REMOVING)
ENDS = (Happening.STOPPED, Happening.LOST)
RULES: Mapping[str, Mapping[str, Any]] = {
    "blind": {"keeps_work": False},
    "kept": {"tries": False},
    "tried": {},
}


@dataclass(frozen=True)
class Foretelling:
    """A policy that notes what it foretells of each job that it wants to change."""

    policy: Policy
    told: dict[tuple[JobId, float, int], float] = field(default_factory=dict)
    """The remaining seconds of a job if it is changed at that time to this number of GPUs."""
    name: ClassVar[str] = "foretelling"
    paper: ClassVar[str] = ""
    needs: ClassVar[str] = ""
    breaks: ClassVar[frozenset[Law]] = frozenset()

    def allocate(self, view: View) -> Decision:
        decision = self.policy.allocate(view)
        for state in view.running:
            share = decision.shares.get(state.id)
            held = state.placement.gpus if state.placement is not None else 0
            if share is not None and share.gpus != held and not state.adjusting:
                shape = view.predictor.shape(
                    share.gpus, view.predictor.best_type(state.job, share.gpus)
                )
                left = view.predictor.remaining_after(state, shape, now=view.now)
                self.told[state.id, view.now, share.gpus] = left
        return decision


def find_errors(record: Record, foretelling: Foretelling) -> list[float]:
    """How wrong the forecast at the last change of each job was, unless the job was stopped later."""
    last: dict[JobId, Entry] = {}
    for entry in record.log:
        if entry.what in (*CHANGES, *ENDS):
            last[entry.job] = entry
    errors = []
    for job in record.completed:
        change = last.get(job.job)
        left = change and foretelling.told.get((job.job, change.time, change.gpus))
        if change is not None and change.what in CHANGES and left and job.completed_at is not None:
            errors.append(abs(left / (job.completed_at - change.time) - 1.0))
    return errors


def play(workload: Workload, setting: Setting, name: str, rule: str) -> dict[str, Any]:
    """Return the results of one rule."""
    foretelling = Foretelling(policies.make(name))
    record = World(workload, replace(setting, **RULES[rule]), policy=foretelling).play()
    errors = find_errors(record, foretelling)
    figures = score(record, policy=name)
    return {
        "policy": name,
        "rule": rule,
        "changes": figures.reshapes,
        "forecast_error": summarize(errors),
        "lost_work_s": round(figures.lost_work_s, 1),
        "avg_jct_s": round(figures.avg_jct_s, 1),
    }


@click.command()
@click.option(
    "--window", type=click.IntRange(min=1), default=150, help="The number of jobs of the trace."
)
@click.option("--gpus", type=click.IntRange(min=1), default=32, help="How many GPUs there are.")
@click.option(
    "--none", type=click.FloatRange(0.0, 1.0), default=0.2, help="Jobs without a checkpoint."
)
@click.option(
    "--broken", type=click.FloatRange(0.0, 1.0), default=0.2, help="Jobs with a broken one."
)
@click.option("--policy", "names", multiple=True, default=("foresight", "adaptive", "afs-l"))
@click.option("--seed", type=int, default=0)
@click.option("-o", "output", type=click.Choice(["table", "json"]), default="table")
def main(
    *,
    window: int,
    gpus: int,
    none: float,
    broken: float,
    names: tuple[str, ...],
    seed: int,
    output: str,
) -> None:
    """Compare forecasts of changes with the fate of the jobs."""
    scenario = Scenario(
        trace=find_folder() / "suite" / "philly_6c71a0_part.csv.gz",
        machines=fill_nodes(gpus),
        window=window,
        load=1.2,
        seed=seed,
    )
    setting = build_setting(scenario)
    workload = read_workload(scenario, setting)
    workload = draw_checkpoints(workload, none=none, broken=broken, seed=seed)
    rows = [play(workload, setting, name, rule) for name in count(names) for rule in RULES]
    print_result([*rows, {"window": window, "gpus": gpus, **describe_machine()}], output)


if __name__ == "__main__":
    run(main)
