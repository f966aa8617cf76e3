"""
How well policies decide about unmeasured jobs, beside the same jobs when all is known.

Each job is of a type of its own: speeds, lengths and costs are learnt in the course of the run, by the
code that controllers learn with (``dljob simulate --known none``). A row for each policy:

- over informed: its mean completion time over that of the best informed policy of the same streams;
- over max-min, over tiresias: over that policy in the same ignorance;
- GPU time lost: the share of the GPU time held in which no job trains;
- changes: decisions that change or end the GPUs of a running job, for each job.

Means are over the jobs that complete; jobs that crash for good do not.
"""

import multiprocessing
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from itertools import product
from statistics import fmean, geometric_mean
from typing import Any, NamedTuple

import click
from _measuring import describe_machine, print_result
from _newcomers import NODES, Range, Stream, draw, forget, inform
from _progress import count, run

from dljob.core.profiles import Costs
from dljob.sim import policies
from dljob.sim.engine.settings import Setting
from dljob.sim.engine.world import World

POLICIES = ("foresight", "max-min", "tiresias", "afs-l")
ORACLES = ("foresight", "max-min", "srsf")
"""
The policies of which the best, with everything known, is the standard. ``srsf-e`` is none of them, because it
changes GPUs at each decision: where starts take longer than the time between two decisions, its jobs never train.
"""

PERIOD_S = 15.0
"""How often controllers decide at least."""

RIVALS = ("max-min", "tiresias")
"""The policies beside which all are shown in the same ignorance."""

LOADS = (0.9, 1.3)
STARTS: tuple[Range, ...] = ((5.0, 30.0), (20.0, 120.0))
"""Cheaper and dearer starts, in seconds."""


class Known(Enum):
    """What policies know beforehand."""

    ALL = "all known"
    NONE = "nothing known"


class Play(NamedTuple):
    """One stream under one policy."""

    stream: Stream
    seed: int
    policy: str
    known: Known


class Result(NamedTuple):
    mean_s: float
    p99_s: float
    lost: float
    changes: float


def play(task: Play) -> Result:
    workload = draw(task.stream, task.seed)
    ignores = task.known is Known.NONE
    workload = forget(workload) if ignores else inform(workload)
    setting = Setting(
        nodes=NODES,
        costs=Costs(),
        seed=task.seed,
        period_s=PERIOD_S,
        trial_s=None,
        learns=ignores,
    )
    record = World(workload, setting, policy=policies.read(task.policy)).play()
    times = sorted(job.jct for job in record.completed)
    return Result(
        fmean(times),
        times[-(-99 * len(times) // 100) - 1],
        1.0 - record.sums.training / record.sums.used,
        fmean(job.reshapes + job.stops for job in record.jobs),
    )


def compare(
    streams: Sequence[Stream], seeds: range, names: Sequence[str], processes: int
) -> list[dict[str, Any]]:
    """Play all; return a row for each policy."""
    asked = [(name, Known.ALL) for name in dict.fromkeys((*ORACLES, *names))]
    asked += [(name, Known.NONE) for name in dict.fromkeys((*RIVALS, *names))]
    tasks = [
        Play(stream, seed, name, known)
        for stream, seed, (name, known) in product(streams, seeds, asked)
    ]
    with multiprocessing.Pool(processes) as pool:
        results = dict(zip(count(tasks, _name), pool.imap(play, tasks), strict=True))
    return [_make_row(name, list(product(streams, seeds)), results) for name in names]


def _name(task: Play) -> str:
    return f"{task.policy}, {task.known.value}, load {task.stream.load:g}, seed {task.seed}"


def _make_row(
    name: str, places: Sequence[tuple[Stream, int]], results: Mapping[Play, Result]
) -> dict[str, Any]:
    def find(policy: str, known: Known) -> list[Result]:
        return [results[Play(stream, seed, policy, known)] for stream, seed in places]

    own, informed = find(name, Known.NONE), find(name, Known.ALL)
    oracles = zip(*(find(oracle, Known.ALL) for oracle in ORACLES), strict=True)
    over_best = [
        one.mean_s / min(each.mean_s for each in best)
        for one, best in zip(own, oracles, strict=True)
    ]
    return {
        "policy": name,
        "mean_s": fmean(each.mean_s for each in own),
        "p99_s": fmean(each.p99_s for each in own),
        "over_informed": geometric_mean(over_best),
        "worst": max(over_best),
        "over_itself_informed": _compare(own, informed),
        **{f"over_{rival}": _compare(own, find(rival, Known.NONE)) for rival in RIVALS},
        "lost": fmean(each.lost for each in own),
        "lost_informed": fmean(each.lost for each in informed),
        "changes": fmean(each.changes for each in own),
        "changes_informed": fmean(each.changes for each in informed),
        **describe_machine(),
    }


def _compare(own: Sequence[Result], others: Sequence[Result]) -> float:
    pairs = zip(own, others, strict=True)
    return geometric_mean(one.mean_s / other.mean_s for one, other in pairs)


@click.command(help=__doc__)
@click.option("--full", is_flag=True, help="Loads 0.9 and 1.3, cheaper and dearer starts, 6 seeds.")
@click.option("--policy", "names", multiple=True, default=POLICIES, show_default=True)
@click.option("--load", type=float, default=0.9, show_default=True)
@click.option("--start", "start_s", default="20,120", show_default=True, help="Seconds: from,to.")
@click.option("--save", "save_s", default="1,60", show_default=True, help="Seconds: from,to.")
@click.option("--crash", type=float, default=0.08, show_default=True)
@click.option("--mute", type=float, default=0.08, show_default=True)
@click.option("--untold", type=float, default=0.15, show_default=True)
@click.option("--jobs", type=int, default=80, show_default=True)
@click.option("--seeds", type=int, help="How many streams of each kind: 2, with --full 6.")
@click.option("--first-seed", type=int, default=0, show_default=True)
@click.option("--processes", type=int, default=2, show_default=True)
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(**given: Any) -> None:
    full, first = given["full"], given["first_seed"]
    drawn = ("jobs", "load", "crash", "mute", "untold")
    own: dict[str, Any] = {name: given[name] for name in drawn}
    own |= {name: _read_range(given[name]) for name in ("start_s", "save_s")}
    streams = [Stream(**own)]
    if full:
        streams = [
            replace(streams[0], load=load, start_s=start_s)
            for load, start_s in product(LOADS, STARTS)
        ]
    seeds = range(first, first + (given["seeds"] or (6 if full else 2)))
    rows = compare(streams, seeds, given["names"], given["processes"])
    print_result(rows, given["form"])


def _read_range(text: str) -> Range:
    low, _, high = text.partition(",")
    return float(low), float(high or low)


if __name__ == "__main__":
    run(main)
