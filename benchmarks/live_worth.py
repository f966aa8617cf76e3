"""
What live changes are worth: jobs whose processes stay when their GPUs change, beside the same jobs that restart.

The jobs of four kinds of world are played once with restarts and once with live changes:

- judging: the judging traces of ``dljob compare --suite``, on nodes, at loads 0.9 and 1.5, with 30 s a restart;
- unsaved: the same, where 40 % of the jobs have no working checkpoint (``--no-checkpoint``, ``--broken-checkpoint``);
- unmeasured: the streams of ``benchmarks/ignorance.py``, of which policies know only what jobs show;
- sidecar: the four workloads of the SideCar paper, with its measured costs.

A row for each kind and policy: the mean completion time and p99 with live changes over those with restarts
(geometric means over the plays, in brackets the largest), the changes and stops of a job, and the share of the
held GPU time in which no process trains: starts, saves, pauses, and GPUs on which newcomers start.
"""

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean, geometric_mean
from typing import Any, NamedTuple

import click
from _measuring import describe_machine, print_result
from _newcomers import NODES, Stream, draw, forget
from _progress import count, run
from _suites import plan_tasks

from dljob.core.profiles import Costs
from dljob.sim import policies
from dljob.sim.engine.controlling.costs import LIVE_GROW_S, LIVE_SHRINK_S
from dljob.sim.engine.settings import Setting
from dljob.sim.engine.world import World
from dljob.sim.jobs.workloads import Workload
from dljob.sim.scenarios import Scenario, build_setting, draw_live, read_workload
from dljob_lab.reproducing.sidecar.constants import FROZEN
from dljob_lab.reproducing.sidecar.workloads import PLANS, make_workload

POLICIES = ("foresight", "afs-l", "afs-p", "ones", "adaptive")
"""``adaptive`` is the SideCar paper's own."""

RESTART_S = 30.0
LOADS = (0.9, 1.5)
UNSAVED = 0.2
"""The share of jobs without a checkpoint, and of jobs with one that does not work."""
PERIOD_S = 15.0
"""How often controllers decide at least, where jobs are unmeasured."""


class Play(NamedTuple):
    """One workload under one policy."""

    kind: str
    place: str
    number: int
    policy: str
    is_live: bool


class Result(NamedTuple):
    mean_s: float
    p99_s: float
    changes: float
    lost: float


class Sizes(NamedTuple):
    """How much is played."""

    window: int
    jobs: int
    seeds: int
    pauses_s: tuple[float, float]
    """Those of live changes, to fewer GPUs and to more."""


Played = tuple[Workload, Setting]


def list_scenarios(sizes: Sizes) -> list[Scenario]:
    """List the judging traces on nodes, at each load."""
    tasks = plan_tasks(("foresight",), parts=("judging",), window=sizes.window, costs=(RESTART_S,))
    scenarios = dict.fromkeys(task.scenario for task in tasks if task.policy is not None)
    return [each for each in scenarios if not each.counted and each.load in LOADS]


def build_judging(task: Play, sizes: Sizes) -> Played:
    scenario = list_scenarios(sizes)[task.number]
    share = UNSAVED if task.kind == "unsaved" else 0.0
    scenario = replace(scenario, no_checkpoint=share, broken_checkpoint=share)
    setting = build_setting(scenario)
    return read_workload(scenario, setting), setting


def build_unmeasured(task: Play, sizes: Sizes) -> Played:
    stream = Stream(jobs=sizes.jobs, start_s=(5.0, 30.0))
    setting = Setting(nodes=NODES, seed=task.number, period_s=PERIOD_S, trial_s=None, learns=True)
    return forget(draw(stream, task.number)), setting


def build_sidecar(task: Play, sizes: Sizes) -> Played:
    plan, seed = PLANS[task.number // sizes.seeds], task.number % sizes.seeds
    setting = Setting(nodes=plan.nodes, costs=FROZEN.costs, seed=seed)
    return make_workload(plan, seed), setting


KINDS: Mapping[str, Callable[[Play, Sizes], Played]] = {
    "judging": build_judging,
    "unsaved": build_judging,
    "unmeasured": build_unmeasured,
    "sidecar": build_sidecar,
}


def list_plays(kind: str, policy: str, sizes: Sizes) -> list[Play]:
    """List the plays of a kind under a policy, with restarts."""
    if kind == "unmeasured":
        places = [f"seed {seed}" for seed in range(sizes.seeds)]
    elif kind == "sidecar":
        places = [f"{plan.name}, seed {seed}" for plan in PLANS for seed in range(sizes.seeds)]
    else:
        places = [f"{each.trace.name}, load {each.load:g}" for each in list_scenarios(sizes)]
    return [Play(kind, place, number, policy, is_live=False) for number, place in enumerate(places)]


def play(task: Play, sizes: Sizes) -> Result:
    workload, setting = KINDS[task.kind](task, sizes)
    if task.is_live:
        workload = draw_live(workload, 1.0, seed=0)
        shrink_s, grow_s = sizes.pauses_s

        def charge(costs: Costs) -> Costs:
            return replace(costs, live_shrink=shrink_s, live_grow=grow_s)

        profiles = {
            kind: profile
            if profile.costs is None
            else replace(profile, costs=charge(profile.costs))
            for kind, profile in workload.truths.items()
        }
        known = {kind: profiles[kind] for kind in workload.known}
        workload = replace(workload, truths=profiles, known=known)
        setting = replace(setting, costs=charge(setting.costs))
    record = World(workload, setting, policy=policies.read(task.policy)).play()
    times = sorted(job.jct for job in record.completed)
    return Result(
        fmean(times),
        times[-(-99 * len(times) // 100) - 1],
        fmean(job.reshapes + job.stops for job in record.jobs),
        1.0 - record.sums.training / record.sums.used,
    )


def make_row(
    kind: str, policy: str, sizes: Sizes, results: Mapping[Play, Result]
) -> dict[str, Any]:
    """Sum up a policy in one kind of world."""
    plays = list_plays(kind, policy, sizes)
    before = [results[each] for each in plays]
    after = [results[each._replace(is_live=True)] for each in plays]
    row: dict[str, Any] = {"jobs": kind, "policy": policy, "plays": len(plays)}
    for name in ("mean_s", "p99_s"):
        pairs = zip(after, before, strict=True)
        ratios = [getattr(live, name) / getattr(restarted, name) for live, restarted in pairs]
        row[f"{name[:-2]} over restarts"] = f"{geometric_mean(ratios):.3f} ({max(ratios):.3f})"
    row["mean, restarts -> live"] = _show(before, after, "mean_s", "{:,.0f} s")
    row["changes a job"] = _show(before, after, "changes", "{:.2f}")
    row["GPU time lost"] = _show(before, after, "lost", "{:.1%}")
    return row


def _show(before: Sequence[Result], after: Sequence[Result], name: str, form: str) -> str:
    means = [fmean(getattr(each, name) for each in results) for results in (before, after)]
    return " -> ".join(map(form.format, means))


def _name(task: Play) -> str:
    how = "live" if task.is_live else "restarts"
    return f"{task.kind}, {task.place}, {task.policy}, {how}"


@click.command(help=__doc__)
@click.option("--kind", "kinds", multiple=True, type=click.Choice(list(KINDS)), default=list(KINDS))
@click.option("--policy", "names", multiple=True, default=POLICIES, show_default=True)
@click.option("--window", type=click.IntRange(1), default=40, show_default=True)
@click.option(
    "--jobs", type=click.IntRange(1), default=60, show_default=True, help="Unmeasured ones."
)
@click.option("--seeds", type=click.IntRange(1), default=2, show_default=True)
@click.option("--shrink", type=float, default=LIVE_SHRINK_S, show_default=True, help="Seconds.")
@click.option("--grow", type=float, default=LIVE_GROW_S, show_default=True, help="Seconds.")
@click.option("--processes", type=int, default=2, show_default=True)
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(**given: Any) -> None:
    sizes = Sizes(given["window"], given["jobs"], given["seeds"], (given["shrink"], given["grow"]))
    pairs = [(kind, name) for kind in given["kinds"] for name in given["names"]]
    plays = [each for kind, name in pairs for each in list_plays(kind, name, sizes)]
    tasks = [each._replace(is_live=is_live) for each in plays for is_live in (False, True)]
    with multiprocessing.Pool(given["processes"]) as pool:
        played = pool.imap(partial(play, sizes=sizes), tasks)
        results = dict(zip(count(tasks, _name), played, strict=True))
    print_result(
        [make_row(*pair, sizes, results) | describe_machine() for pair in pairs], given["form"]
    )


if __name__ == "__main__":
    run(main)
