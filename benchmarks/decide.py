"""
How long one decision takes: a whole cycle, from a snapshot to a checked plan.

Each repetition gets a snapshot of its own, from its own seed: jobs of measured types on a cluster
of one type of GPU (or several, as in ``--gpu-types V100,P100``) in nodes of eight, 10 % of the jobs
pending (or ``--arrivals N`` of them), 5 % of the GPUs idle. ``--unmeasured`` gives a share of the jobs types
of their own, of which no speed is known. Several sizes, as in ``--jobs 100,1000,10000``, also give the exponent with which
the time grows.

``processor_ms`` is the time that the process was on a processor, which other work on the machine
changes little; ``decision_ms`` is what passed meanwhile. A first decision, about few jobs, is not counted: it
pays once for loading modules. Neither is the search for garbage that making up a snapshot has left.

``--all-policies`` holds every policy against the promise: 100 ms for 1,000 jobs on 4,000 GPUs, and
1 s for 10,000 jobs on 10,000 GPUs. ``ones`` and ``sia`` promise what their options limit instead, and
their times are those with the options that they have by themselves.
"""

import gc
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click
from _measuring import (
    describe_machine,
    draw_rows,
    fit_exponent,
    print_markdown,
    print_result,
    summarize,
)
from _progress import run, say

from dljob.core import cycle, policies
from dljob.core.model import (
    Checkpoint,
    Cluster,
    GpuDemand,
    Job,
    JobId,
    JobState,
    Node,
    NodeName,
    Placement,
    Snapshot,
    Training,
)
from dljob.core.planning import Plan
from dljob.core.profiles import Costs, JobType, Profile
from dljob.sim.inputs.shipped import load_shipped

NODE_SIZE = 8
OPTIONS = (1, 2, 4, 8)
GPU_TYPES = ("A100",)
IDLE_SHARE = 0.05
PENDING_SHARE = 0.10
SMALL = 20
"""So few jobs are decided about first, and not counted."""
COSTS = Costs(pod_initialization=80, process_initialization=15, checkpoint=6, pod_termination=70)


class Promise(NamedTuple):
    """How long a decision of this size may take."""

    jobs: int
    gpus: int
    limit_ms: float


PROMISES = (Promise(1000, 4000, 100.0), Promise(10_000, 10_000, 1000.0))
LIMITED_BY_OPTIONS = ("ones", "sia")
"""Policies that search for as long as their options allow."""


def build_snapshot(
    *,
    jobs: int,
    gpus: int,
    pending: int,
    seed: int,
    gpu_types: Sequence[str] = GPU_TYPES,
    unmeasured: float = 0.0,
) -> Snapshot:
    """
    Make up a busy cluster. Nothing is shared with the snapshot of another seed.

    Of several types of GPU each has an equal part of the nodes and of the running jobs.
    """
    rng = random.Random(f"decide/{seed}")
    profiles = _load_types(gpu_types)
    nodes = [
        Node.of(f"n{n:05}", size, gpu_types[n % len(gpu_types)])
        for n, size in enumerate(_sizes(gpus))
    ]
    placements: list[Placement] = []
    for part, kind in enumerate(gpu_types):
        group = Cluster(node for node in nodes if node.gpu_type == kind)
        running = len(range(part, jobs - pending, len(gpu_types)))
        shapes = _draw_shapes(rng, running, round(group.total * (1 - IDLE_SHARE)))
        placements += _pack(group, shapes, rng)
    states = [
        _make_state(
            rng, order, list(profiles), placements[order] if order < len(placements) else None
        )
        for order in range(jobs)
    ]
    for order in rng.sample(range(jobs), round(unmeasured * jobs)):
        states[order] = _forget(states[order])
    return Snapshot(
        now=10_000.0,
        cluster=Cluster(nodes),
        running=tuple(state for state in states if state.placement is not None),
        pending=tuple(state for state in states if state.placement is None),
        profiles=profiles,
        costs=COSTS,
        seed=seed,
    )


def _load_types(gpu_types: Sequence[str]) -> dict[JobType, Profile]:
    """The types of job that were measured on each of these types of GPU."""
    found = {
        kind: profile
        for kind, profile in load_shipped().items()
        if {shape.gpu_type for shape in profile.speeds}.issuperset(gpu_types)
    }
    if not found:
        raise click.UsageError(f"no job was measured on all of --gpu-types {','.join(gpu_types)}")
    return found


def _sizes(gpus: int) -> list[int]:
    return [NODE_SIZE] * (gpus // NODE_SIZE) + ([gpus % NODE_SIZE] if gpus % NODE_SIZE else [])


def _draw_shapes(rng: random.Random, jobs: int, gpus: int) -> list[int]:
    """Give every job one GPU, then raise random ones until ``gpus`` are in use."""
    if jobs > gpus:
        raise click.UsageError(f"{jobs} running jobs need more than {gpus} GPUs; give more --gpus")
    shapes = [1] * jobs
    free = gpus - jobs
    growing = list(range(jobs))
    while growing and free > 0:
        place = rng.randrange(len(growing))
        job = growing[place]
        more = shapes[job]
        if shapes[job] == OPTIONS[-1] or more > free:
            growing[place] = growing[-1]
            growing.pop()
            continue
        shapes[job] += more
        free -= more
    return shapes


def _pack(cluster: Cluster, shapes: Sequence[int], rng: random.Random) -> list[Placement]:
    """Place jobs on nodes drawn at random, the largest first; each on one node if one has room."""
    free = {node.name: list(node.usable) for node in cluster.nodes}
    names = list(free)
    rng.shuffle(names)
    placements: dict[int, Placement] = {}
    by_room: dict[int, list[NodeName]] = {size: [] for size in range(NODE_SIZE + 1)}
    for name in names:
        by_room[len(free[name])].append(name)
    for job in sorted(range(len(shapes)), key=lambda job: -shapes[job]):
        parts: dict[NodeName, list[int]] = {}
        missing = shapes[job]
        while missing:
            room = _best_room(by_room, missing)
            name = by_room[room].pop()
            taken, free[name] = free[name][:missing], free[name][missing:]
            by_room[len(free[name])].append(name)
            parts[name] = taken
            missing -= len(taken)
        placements[job] = Placement.of(parts, cluster.nodes[0].gpu_type)
    return [placements[job] for job in range(len(shapes))]


def _best_room(by_room: Mapping[int, list[NodeName]], missing: int) -> int:
    fits = [room for room, names in by_room.items() if names and room >= missing]
    return min(fits) if fits else max(room for room, names in by_room.items() if names)


def _make_state(
    rng: random.Random, order: int, kinds: list[JobType], placement: Placement | None
) -> JobState:
    total = rng.uniform(1e3, 1e6)
    job = Job(
        id=JobId(f"job-{order}"),
        gpus=GpuDemand(options=OPTIONS, requested=rng.choice(OPTIONS)),
        training=Training(iterations=round(total)),
        type=rng.choice(kinds),
        checkpoint=Checkpoint(shared=True),
    )
    return JobState(
        job=job,
        order=order,
        placement=placement,
        iterations_total=round(total),
        iterations_done=total * rng.random() if placement is not None else 0.0,
        observed_at=10_000.0,
        started_at=None if placement is None else 0.0,
    )


def _forget(state: JobState) -> JobState:
    """Make a job of a type of its own, of which no speed is known; it has had its GPUs for an hour."""
    job = replace(state.job, type=JobType.of_one_job(state.id))
    gpus = state.placement.gpus if state.placement is not None else 0
    return replace(state, job=job, service=3600.0 * gpus)


def measure(
    *,
    jobs: int,
    gpus: int,
    policy: str,
    arrivals: int | None,
    runs: int,
    gpu_types: Sequence[str] = GPU_TYPES,
    unmeasured: float = 0.0,
) -> dict[str, Any]:
    """Time ``runs`` decisions on as many snapshots."""
    pending = round(jobs * PENDING_SHARE) if arrivals is None else arrivals
    chosen = policies.make(policy)
    small = build_snapshot(
        jobs=SMALL, gpus=NODE_SIZE * SMALL, pending=1, seed=0, gpu_types=gpu_types
    )
    cycle.schedule(small, chosen)
    times: list[float] = []
    processor_times: list[float] = []
    considered: list[int] = []
    steps: Counter[str] = Counter()
    for seed in range(runs):
        snapshot = build_snapshot(
            jobs=jobs,
            gpus=gpus,
            pending=pending,
            seed=seed,
            gpu_types=gpu_types,
            unmeasured=unmeasured,
        )
        gc.collect()
        began, worked = time.perf_counter(), time.process_time()
        plan = cycle.schedule(snapshot, chosen)
        processor_times.append((time.process_time() - worked) * 1000)
        times.append((time.perf_counter() - began) * 1000)
        considered.append(plan.considered)
        steps += _count_steps(plan)
    return {
        "policy": policy,
        "jobs": jobs,
        "gpus": gpus,
        "gpu_types": ",".join(gpu_types),
        "pending": pending,
        "unmeasured": unmeasured,
        "considered": min(considered),
        "runs": runs,
        "steps_per_plan": {kind: round(count / runs, 1) for kind, count in sorted(steps.items())},
        "processor_ms": summarize(processor_times),
        "decision_ms": summarize(times),
    }


def _count_steps(plan: Plan) -> Counter[str]:
    if not plan.steps:
        raise click.ClickException("the plan is empty, so there is nothing to measure")
    return Counter(type(step).__name__ for step in plan.steps)


def measure_all(runs: int) -> Iterator[dict[str, Any]]:
    """Hold every policy against the promise."""
    for policy in policies.NAMES:
        for jobs, gpus, limit_ms in PROMISES:
            say(f"measures {policy} with {jobs} jobs")
            row = measure(jobs=jobs, gpus=gpus, policy=policy, arrivals=None, runs=runs)
            keeps = row["processor_ms"]["p50"] <= limit_ms
            limit = None if policy in LIMITED_BY_OPTIONS else limit_ms
            yield {**row, "limit_ms": limit, "keeps_limit": None if limit is None else keeps}


def print_all(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a line for each policy, and on what it was measured."""
    cells: dict[str, list[str]] = {}
    for row in rows:
        taken = row["processor_ms"]
        cells.setdefault(f"`{row['policy']}`", []).extend(
            f"{taken[which]:.0f} ms" + ("" if row["keeps_limit"] is not False else " (too long)")
            for which in ("p50", "max")
        )
    titles = [
        f"{which}, {each.jobs:,} jobs x {each.gpus:,} GPUs"
        for each in PROMISES
        for which in ("median", "worst")
    ]
    print_markdown(["policy", *titles], [[name, *line] for name, line in cells.items()])
    measured = f"processor time of {rows[0]['runs']} decisions, each about jobs of its own"
    print_result({"measured": measured, **describe_machine()}, "table")


@click.command(help=__doc__)
@click.option("--jobs", default="1000", show_default=True, help="How many; several with commas.")
@click.option("--gpus", default="4000", show_default=True, help="How many; one or as many as jobs.")
@click.option("--gpu-types", default=",".join(GPU_TYPES), show_default=True, help="With commas.")
@click.option("--policy", "names", multiple=True, default=("foresight",), show_default=True)
@click.option("--all-policies", is_flag=True, help="Every policy, at the sizes of the promise.")
@click.option("--arrivals", type=click.IntRange(min=1), help="Pending jobs; default: 10 %.")
@click.option("--unmeasured", type=click.FloatRange(0.0, 1.0), default=0.0, help="Share of jobs.")
@click.option("--runs", type=click.IntRange(min=1), default=7, show_default=True)
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the medians into this file.")
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(  # noqa: PLR0913 - an argument for each option
    *,
    jobs: str,
    gpus: str,
    gpu_types: str,
    names: tuple[str, ...],
    all_policies: bool,
    arrivals: int | None,
    unmeasured: float,
    runs: int,
    plot: Path | None,
    form: str,
) -> None:
    """Measure every policy at every size."""
    if all_policies:
        promised = list(measure_all(runs))
        if form == "json":
            print_result([*promised, describe_machine()], form)
        else:
            print_all(promised)
        return
    sizes = _parse_sizes("--jobs", jobs)
    widths = _parse_sizes("--gpus", gpus)
    if len(widths) == 1:
        widths *= len(sizes)
    if len(widths) != len(sizes):
        raise click.UsageError("--gpus wants one number, or as many as --jobs")
    rows: list[dict[str, Any]] = []
    for name in names:
        found = [
            measure(
                jobs=n,
                gpus=m,
                policy=name,
                arrivals=arrivals,
                runs=runs,
                gpu_types=gpu_types.split(","),
                unmeasured=unmeasured,
            )
            for n, m in zip(sizes, widths, strict=True)
        ]
        if len(found) > 1:
            medians = [row["processor_ms"]["p50"] for row in found]
            found = [{**row, "exponent": fit_exponent(sizes, medians)} for row in found]
        rows += [{**row, "machine": describe_machine()} for row in found]
    if plot is not None:
        lines: dict[str, list[tuple[int, float]]] = {}
        for row in rows:
            lines.setdefault(row["policy"], []).append((row["jobs"], row["processor_ms"]["p50"]))
        title = "One decision, from snapshot to checked plan (median)"
        draw_rows(plot, title, lines, across="jobs", up="milliseconds of processor time")
    print_result(rows if len(rows) > 1 else rows[0], form)


def _parse_sizes(option: str, text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise click.UsageError(f"{option} wants positive numbers, with commas between: {text!r}")
    return sizes


if __name__ == "__main__":
    run(main)
