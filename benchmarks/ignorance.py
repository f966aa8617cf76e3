"""
How well policies decide about jobs that nobody has measured, beside the same jobs when all is known.

Each job is of a type of its own: speeds, lengths and costs are learnt in the course of the run, by the
code that controllers learn with (``dljob simulate --known none``). A row for each policy:

- over informed: its mean completion time over that of the best informed policy of the same streams;
- over max-min, over tiresias: over that policy in the same ignorance;
- GPU time lost: the share of the GPU time held in which no job trains;
- changes: decisions that change or end the GPUs of a running job, for each job.

Means are over the jobs that complete; jobs that crash for good do not.
"""

import multiprocessing
from collections.abc import Iterable, Sequence
from itertools import product
from statistics import fmean, geometric_mean
from typing import Any, NamedTuple

import click
from _measuring import describe_machine, print_result
from _newcomers import NODES, Stream, draw, forget, inform
from _progress import count, run

from dlcore.profiles import Costs
from dlsim import policies
from dlsim.engine.settings import Setting
from dlsim.engine.world import World

POLICIES = ("foresight", "max-min", "tiresias", "afs-l")
ORACLES = ("foresight", "max-min", "srsf-e")
"""The policies of which the best, with everything known, is the standard."""

PERIOD_S = 15.0
"""How often controllers decide at least."""

STARTS = {"cheaper": (5.0, 30.0), "dearer": (20.0, 120.0)}


class Play(NamedTuple):
    """One stream under one policy."""

    stream: Stream
    seed: int
    policy: str
    is_known: bool


class Result(NamedTuple):
    mean_s: float
    p99_s: float
    lost: float
    changes: float


def play(task: Play) -> Result:
    workload = draw(task.stream, task.seed)
    workload = inform(workload) if task.is_known else forget(workload)
    setting = Setting(
        nodes=NODES,
        costs=Costs(),
        seed=task.seed,
        period_s=PERIOD_S,
        trial_s=None,
        learns=not task.is_known,
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
    streams: Sequence[Stream], seeds: int, names: Sequence[str], processes: int
) -> list[dict[str, Any]]:
    """Play all; return a row for each policy."""
    asked = [(name, True) for name in dict.fromkeys((*ORACLES, *names))]
    asked += [(name, False) for name in dict.fromkeys(("max-min", "tiresias", *names))]
    tasks = [
        Play(stream, seed, name, is_known)
        for stream, seed, (name, is_known) in product(streams, range(seeds), asked)
    ]
    with multiprocessing.Pool(processes) as pool:
        results = dict(zip(count(tasks, _name), pool.imap(play, tasks), strict=True))
    return [_make_row(name, streams, range(seeds), results) for name in names]


def _name(task: Play) -> str:
    known = "known" if task.is_known else "ignorant"
    return f"{task.policy}, {known}, load {task.stream.load:g}, seed {task.seed}"


def _make_row(
    name: str, streams: Sequence[Stream], seeds: Iterable[int], results: dict[Play, Result]
) -> dict[str, Any]:
    over_best: list[float] = []
    over: dict[str, list[float]] = {"max-min": [], "tiresias": [], "itself": []}
    own: list[Result] = []
    known: list[Result] = []
    for stream, seed in product(streams, seeds):
        one = results[Play(stream, seed, name, False)]
        best = min(results[Play(stream, seed, oracle, True)].mean_s for oracle in ORACLES)
        over_best.append(one.mean_s / best)
        over["max-min"].append(one.mean_s / results[Play(stream, seed, "max-min", False)].mean_s)
        over["tiresias"].append(one.mean_s / results[Play(stream, seed, "tiresias", False)].mean_s)
        informed = results[Play(stream, seed, name, True)]
        over["itself"].append(one.mean_s / informed.mean_s)
        own.append(one)
        known.append(informed)
    return {
        "policy": name,
        "mean_s": fmean(each.mean_s for each in own),
        "p99_s": fmean(each.p99_s for each in own),
        "over_informed": geometric_mean(over_best),
        "worst": max(over_best),
        "over_itself_informed": geometric_mean(over["itself"]),
        "over_max_min": geometric_mean(over["max-min"]),
        "over_tiresias": geometric_mean(over["tiresias"]),
        "lost": fmean(each.lost for each in own),
        "lost_informed": fmean(each.lost for each in known),
        "changes": fmean(each.changes for each in own),
        "changes_informed": fmean(each.changes for each in known),
        **describe_machine(),
    }


@click.command(help=__doc__)
@click.option("--full", is_flag=True, help="Loads 0.9 and 1.3, cheaper and dearer starts, 6 seeds.")
@click.option("--policy", "names", multiple=True, default=POLICIES, show_default=True)
@click.option("--load", type=float, default=0.9, show_default=True)
@click.option("--start", "start", default="20,120", show_default=True, help="Seconds, from,to.")
@click.option("--save", "save", default="1,60", show_default=True, help="Seconds, from,to.")
@click.option("--crash", type=float, default=0.08, show_default=True)
@click.option("--mute", type=float, default=0.08, show_default=True)
@click.option("--untold", type=float, default=0.15, show_default=True)
@click.option("--jobs", type=int, default=80, show_default=True)
@click.option("--seeds", type=int, default=None, help="2; with --full 6.")
@click.option("--processes", type=int, default=2, show_default=True)
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(
    full: bool,
    names: tuple[str, ...],
    load: float,
    start: str,
    save: str,
    crash: float,
    mute: float,
    untold: float,
    jobs: int,
    seeds: int | None,
    processes: int,
    form: str,
) -> None:
    base = Stream(
        jobs=jobs,
        load=load,
        start_s=_read_range(start),
        save_s=_read_range(save),
        crash=crash,
        mute=mute,
        untold=untold,
    )
    streams = [base]
    if full:
        streams = [
            base.__class__(**{**_as_dict(base), "load": each, "start_s": starts})
            for each, starts in product((0.9, 1.3), STARTS.values())
        ]
    rows = compare(streams, seeds or (6 if full else 2), names, processes)
    print_result(rows, form)


def _as_dict(stream: Stream) -> dict[str, Any]:
    return {name: getattr(stream, name) for name in Stream.__slots__}


def _read_range(text: str) -> tuple[float, float]:
    low, _, high = text.partition(",")
    return float(low), float(high or low)


if __name__ == "__main__":
    run(main)
