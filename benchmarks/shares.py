"""
Shares of users (``limits.shares``): how exactly they are kept, and what they cost.

- hour: three users, each with more jobs than its share holds, on 8 GPUs of one node for an hour, 30 s a restart.
  A row for each policy and weights: the GPU time of the users as shares of all, and the largest deviation from
  their part by the weights, in percent of that part.
- machine: the same users and jobs for an hour of real time on one machine, in ``dljob up --system`` with virtual GPUs and real
  trainings that save and go on. It needs root, because each job runs as its user.
- traces: the jobs of three virtual clusters of Philly, and of three of ITP, on one cluster of 64 GPUs; each virtual
  cluster is a user. A row for each trace, load and policy: the mean completion time with equal shares over that without, for
  all jobs and by user, and the same for p99.
"""

import csv
import gzip
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import click
from _measuring import describe_machine, print_result
from _progress import ROOT, run
from _shared_machine import GPUS, live_through

from dljob.core.placement.limits import NamespaceLimits, namespace_of
from dljob.core.recording.record import Given
from dljob.core.recording.record import Record as Happenings
from dljob.core.recording.sums import list_spans
from dljob.sim import policies
from dljob.sim.clusters import fill_nodes
from dljob.sim.results.records import Record
from dljob.sim.scenarios import Scenario, build_setting, read_workload
from dljob.sim.simulating import Contestant, Outcome, simulate

HOUR_S = 3600.0
RESTART_S = 30.0
WEIGHTS = ({"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 1, "c": 1})
TRACES = {
    "philly": ("peers/philly_2869ce", "peers/philly_7f04ca", "peers/philly_0e4a51"),
    "itp": ("suite/itp_cluster01_models", "suite/itp_cluster03", "suite/itp_cluster06"),
}
COLUMNS = ("job_id", "submit_time_s", "duration_s", "num_gpus")


def write_trace(path: Path, rows: Iterable[Sequence[object]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    return path


def draw_hour(seed: int) -> Iterator[Sequence[object]]:
    """Draw 40 jobs of 10 to 60 minutes for each user, which all come within the first minute."""
    rng = Random(seed)
    for number in range(40):
        for user in "abc":
            duration, gpus = rng.uniform(600, 3600), rng.choice((1, 1, 2, 4))
            yield f"{user}/{number}", rng.uniform(0, 60), duration, gpus


def merge(names: Sequence[str]) -> list[Sequence[object]]:
    """Read the jobs of virtual clusters; each is a user."""
    rows: list[Sequence[object]] = []
    for name in names:
        with gzip.open(ROOT / "profiles" / f"{name}.csv.gz", "rt", encoding="utf-8") as file:
            user = name.split("_")[1]
            rows += [
                (f"{user}/{row['job_id']}", *(row[each] for each in COLUMNS[1:]))
                for row in csv.DictReader(file)
            ]
    return rows


def play(scenario: Scenario, policy: str, *, records: bool = False) -> Outcome:
    setting = build_setting(scenario)
    contestant = Contestant(policy, policies.make(policy, {}))
    workload = read_workload(scenario, setting)
    [outcome] = simulate(workload, setting, contestants=(contestant,), records=records)
    return outcome


def measure_hour(folder: Path, policy: str, weights: Mapping[str, int], seed: int) -> Any:
    scenario = Scenario(
        trace=write_trace(folder / f"hour-{seed}.csv", draw_hour(seed)),
        machines=fill_nodes(GPUS),
        restart_cost_s=RESTART_S,
        limits=NamespaceLimits(shares=weights),
        seed=seed,
    )
    happenings = play(scenario, policy, records=True).happenings
    assert happenings is not None
    held = sum_up(happenings, weights, until=HOUR_S)
    return {"policy": policy, "seed": seed, **compare(held, weights, seconds=HOUR_S)}


def measure_machine(policy: str, weights: Mapping[str, int], seed: int, *, seconds: float) -> Any:
    hour = live_through(list(draw_hour(seed)), weights, seconds=seconds, policy=policy)
    named = sum_up(hour.record, hour.users, since=hour.began, until=hour.began + seconds)
    held = {user: named[name] for name, user in hour.users.items()}
    changes = [line for line in hour.record.lines if isinstance(line, Given) and line.placement]
    return {
        "policy": policy,
        "seed": seed,
        "on": f"a machine, {seconds:.0f} s",
        **compare(held, weights, seconds=seconds),
        "jobs given GPUs": len({line.job for line in changes}),
        "times": len(changes),
    }


def sum_up(
    record: Happenings, users: Iterable[str], *, since: float = 0.0, until: float
) -> dict[str, float]:
    """Return the seconds of GPUs of each user."""
    held = dict.fromkeys(users, 0.0)
    for span in list_spans(record):
        seconds = max(0.0, min(span.end, until) - max(span.begin, since))
        held[namespace_of(span.job)] += seconds * span.placement.gpus
    return held


def compare(held: Mapping[str, float], weights: Mapping[str, int], *, seconds: float) -> Any:
    due = {
        user: sum(held.values()) * part / sum(weights.values()) for user, part in weights.items()
    }
    off = max(abs(held[user] / due[user] - 1.0) for user in weights)
    return {
        "weights": ":".join(map(str, weights.values())),
        "GPU time": {user: f"{each / sum(held.values()):.1%}" for user, each in held.items()},
        "used": f"{sum(held.values()) / (GPUS * seconds):.1%}",
        "largest deviation": f"{off:.1%}",
    }


def measure_trace(
    folder: Path, name: str, policy: str, *, load: float, window: int, seed: int
) -> Any:
    scenario = Scenario(
        trace=write_trace(folder / f"{name}.csv", merge(TRACES[name])),
        machines=fill_nodes(64),
        restart_cost_s=RESTART_S,
        load=load,
        window=window,
        seed=seed,
    )
    shared = replace(scenario, limits=NamespaceLimits(shares={"*": 1}))
    off, on = play(scenario, policy), play(shared, policy)
    before, after = _times(off.record), _times(on.record)
    return {
        "trace": f"{name}, {window} jobs, load {load}, seed {seed}",
        "policy": policy,
        "mean JCT without": f"{off.score.avg_jct_s:.0f} s",
        "mean JCT with": f"{on.score.avg_jct_s:.0f} s",
        "mean with/without": f"{on.score.avg_jct_s / off.score.avg_jct_s:.3f}",
        "p99 with/without": f"{on.score.p99_jct_s / off.score.p99_jct_s:.3f}",
        "by user": {
            f"{user} ({len(before[user])})": f"{fmean(after[user]) / fmean(before[user]):.3f}"
            for user in before
        },
        "seconds": f"{off.score.wall_s:.0f} and {on.score.wall_s:.0f}",
    }


def _times(record: Record) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {}
    for job in record.completed:
        if job.completed_at is not None:
            user = namespace_of(job.job)
            times.setdefault(user, []).append(job.completed_at - job.submitted_at)
    return times


@click.command(help=__doc__)
@click.option("--policy", "chosen", multiple=True, default=("foresight",), show_default=True)
@click.option("--load", "loads", type=float, multiple=True, default=(0.9, 1.5), show_default=True)
@click.option("--window", type=click.IntRange(1), default=60, show_default=True)
@click.option("--seed", "seeds", type=int, multiple=True, default=(0,), show_default=True)
@click.option("--only", type=click.Choice(["hour", "machine", "traces"]), default=None)
@click.option("--minutes", type=click.FloatRange(1.0), default=60.0, show_default=True)
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(
    *,
    chosen: tuple[str, ...],
    loads: tuple[float, ...],
    window: int,
    seeds: tuple[int, ...],
    only: str | None,
    minutes: float,
    form: str,
) -> None:
    print_result(describe_machine(), form)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hours = list(product(chosen, seeds, WEIGHTS))
        for policy, seed, weights in hours if only in (None, "hour") else ():
            print_result(measure_hour(folder, policy, weights, seed), form)
        for policy, seed, weights in hours if only == "machine" else ():
            seconds = 60.0 * minutes
            print_result(measure_machine(policy, weights, seed, seconds=seconds), form)
        traces = product(chosen, seeds, TRACES if only in (None, "traces") else (), loads)
        for policy, seed, trace, load in traces:
            measured = measure_trace(folder, trace, policy, load=load, window=window, seed=seed)
            print_result(measured, form)


if __name__ == "__main__":
    run(main)
