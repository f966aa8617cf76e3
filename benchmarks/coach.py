"""
Coach's experiment with its two schedulers: three jobs at once under kube-scheduler alone and with the scheduler plugin.

Configuration 11 of the thesis, its Table 3 and its t test (Lövenvald, 2021, sections 5 and 6), on a real control plane:
each job is a job handler that runs mini-epochs, fits its function, and chooses workers and servers for each epoch
(``_coaching``). The trainings are real and small: they learn digits, in a process for each worker and server. A sample
and a gradient take a set time each, because two cores cannot show what three nodes of 32 do.

``roomy`` has room for all pods, as the thesis's cluster; ``scarce`` for those of one job, the condition that section 7
names; ``tight`` for one job and the fewest pods of another. A run in which all jobs wait and nothing moves is a deadlock; it is ended, and its jobs have no completion time.
An epoch straggles if it had fewer pods than its job requested: the abstract's second finding.
"""

import random
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

import click
from _coaching import Epoch, Handler, Task, forking
from _measuring import describe_machine, print_result
from _progress import run, say
from scipy.stats import ttest_ind

from addons.gangs.tests.troupes import HERE, SCHEDULER, Plugin, plugged
from tests.servers.binaries import find_all
from tests.servers.controlplane import PROGRAMS, ControlPlane
from tests.servers.namespaces import make_namespace, remove_namespace
from tests.servers.nodes import add_nodes, is_untouchable, make_node, remove_nodes

JOBS = 3
SCHEDULERS = {"default": "default-scheduler", "gang": SCHEDULER}
CLUSTERS: Mapping[str, Sequence[int]] = {
    "roomy": (8, 8, 8),
    "tight": (3, 3, 2),
    "scarce": (2, 2, 1),
}
"""The slots of each node; a pod takes one."""
STILL_S = 5.0
"""With nothing moving for so long after the last patience has run out, a run is a deadlock."""
LOOK_S = 0.1


class Outcome(NamedTuple):
    """A run of three jobs."""

    seconds: tuple[float, ...]
    """From the begin of the run to the end of each job, the first to end first; empty for a deadlock."""
    epochs: tuple[Epoch, ...]


@click.command(help=__doc__)
@click.option("--repetitions", type=click.IntRange(2, 100), default=2, show_default=True)
@click.option(
    "--cluster", "chosen", type=click.Choice(list(CLUSTERS)), multiple=True, help="[default: all]"
)
@click.option("--steps", type=click.IntRange(2), default=20, show_default=True, help="Of an epoch.")
@click.option("--sample-seconds", type=float, default=0.00125, show_default=True)
@click.option("--gradient-seconds", type=float, default=0.01, show_default=True)
@click.option("--target", type=float, default=0.18, show_default=True, help="The loss to reach.")
@click.option(
    "--patience",
    type=float,
    default=6.0,
    show_default=True,
    help="Seconds until an epoch begins with some pods.",
)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
def main(
    *,
    repetitions: int,
    chosen: tuple[str, ...],
    steps: int,
    sample_seconds: float,
    gradient_seconds: float,
    target: float,
    patience: float,
    output: str,
) -> None:
    task = Task(steps, sample_seconds, gradient_seconds, target, patience)
    say("starts a control plane and the scheduler plugin …")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="coach-")))
        plane = stack.enter_context(ControlPlane(folder / "plane", programs=find_all(*PROGRAMS)))
        plugin = stack.enter_context(plugged(plane, folder / "plugin"))
        rows: list[dict[str, Any]] = []
        for cluster in chosen or tuple(CLUSTERS):
            outcomes = _repeat(plugin, cluster, task, folder=folder, repetitions=repetitions)
            rows += _sum_up(cluster, outcomes)
    print_result([*rows, {"steps": steps, "target": target, **describe_machine()}], output)


def _repeat(
    plugin: Plugin, cluster: str, task: Task, *, folder: Path, repetitions: int
) -> dict[str, list[Outcome]]:
    """Run both schedulers in turn, so that a slow hour of the machine meets both."""
    outcomes: dict[str, list[Outcome]] = {name: [] for name in SCHEDULERS}
    for number in range(repetitions):
        for name in SCHEDULERS if number % 2 == 0 else reversed(SCHEDULERS):
            with tempfile.TemporaryDirectory(dir=folder) as saved:
                outcome = _play(plugin, cluster, name, task=task, saved=Path(saved), seed=number)
            outcomes[name].append(outcome)
            told = " ".join(f"{each:.1f}" for each in outcome.seconds) or "deadlock"
            say(f"{cluster}, {name}, {number + 1} of {repetitions}: {told}")
    return outcomes


def _play(
    plugin: Plugin, cluster: str, name: str, *, task: Task, saved: Path, seed: int
) -> Outcome:
    """Run three jobs on nodes of their own."""
    plane = plugin.plane
    with plane.api() as api, ExitStack() as stack:
        namespace = make_namespace(api)
        stack.callback(remove_namespace, api, namespace)
        selector = {HERE: namespace}
        made = [
            make_node(f"{namespace}-{number}", labels=selector, capacity={"cpu": str(slots)})
            for number, slots in enumerate(CLUSTERS[cluster])
        ]
        nodes = add_nodes(api, made)
        stack.callback(remove_nodes, api, nodes)
        while any(is_untouchable(api.get(f"/api/v1/nodes/{node}")) for node in nodes):
            time.sleep(LOOK_S)
        stops = threading.Event()
        handlers = [
            Handler(
                name=f"job-{number}",
                api=stack.enter_context(plane.api()),
                namespace=namespace,
                scheduler=SCHEDULERS[name],
                selector=selector,
                slots=sum(CLUSTERS[cluster]),
                task=task,
                folder=saved / f"job-{number}",
                stops=stops,
                forker=stack.enter_context(forking()),
            )
            for number in range(JOBS)
        ]
        began = time.monotonic()
        _run_all(handlers, stops, task, seed=seed)
        epochs = tuple(epoch for each in handlers for epoch in each.epochs)
        ends = sorted(each.done_at - began for each in handlers if each.done_at is not None)
        return Outcome(tuple(ends) if len(ends) == JOBS else (), epochs)


def _run_all(handlers: Sequence[Handler], stops: threading.Event, task: Task, *, seed: int) -> None:
    """Run all handlers until each is done, or nothing moves any more."""
    threads = [threading.Thread(target=each.run, daemon=True) for each in handlers]
    # They ask at one time, so that any may be the first.
    for thread in random.Random(seed).sample(threads, len(threads)):
        thread.start()
    while any(thread.is_alive() for thread in threads):
        left = [each for each in handlers if each.done_at is None]
        moved_at = max(each.moved_at for each in handlers)
        is_still = time.monotonic() - moved_at > task.patience_s + STILL_S
        if any(each.error for each in left) or (is_still and all(each.waits for each in left)):
            stops.set()
        time.sleep(LOOK_S)
    for each in handlers:
        if each.error is not None:
            raise each.error


def _sum_up(cluster: str, outcomes: Mapping[str, Sequence[Outcome]]) -> Iterator[dict[str, Any]]:
    jobs = {
        name: [seconds for each in runs for seconds in each.seconds]
        for name, runs in outcomes.items()
    }
    for name, runs in outcomes.items():
        row: dict[str, Any] = {"cluster": cluster, "scheduler": name, "runs": len(runs)}
        row["deadlocks"] = sum(not each.seconds for each in runs)
        done = [each.seconds for each in runs if each.seconds]
        if done:
            row["job_mean_s"] = round(fmean(jobs[name]), 2)
            row["job_stdev_s"] = round(stdev(jobs[name]), 2)
            row["first_mean_s"] = round(fmean(each[0] for each in done), 2)
            row["last_mean_s"] = round(fmean(each[-1] for each in done), 2)
        yield row | _describe_epochs([epoch for each in runs for epoch in each.epochs])
    # The thesis takes the jobs for independent; those of one run share an hour of the machine.
    means = [[fmean(each.seconds) for each in runs if each.seconds] for runs in outcomes.values()]
    if all(len(each) > 1 for each in means):
        of_jobs, of_runs = (float(ttest_ind(*each).pvalue) for each in (jobs.values(), means))
        yield {
            "cluster": cluster,
            "t_test_p": round(of_jobs, 4),
            "t_test_of_runs_p": round(of_runs, 4),
        }


def _describe_epochs(epochs: Sequence[Epoch]) -> dict[str, Any]:
    trained = [each for each in epochs if not each.is_mini]
    if not trained:
        return {"epochs": 0}
    usual = median(each.seconds for each in trained)
    short = [each.seconds for each in trained if each.straggles]
    told: dict[str, Any] = {
        "epochs": len(trained),
        "straggling_epochs": len(short),
        "straggling_mini_epochs": sum(each.is_mini and each.straggles for each in epochs),
        "epoch_median_s": round(usual, 2),
        "epoch_slowest_s": round(max(each.seconds for each in trained), 2),
        "epoch_waits_mean_s": round(fmean(each.waited for each in trained), 2),
    }
    return told | ({"straggler_median_s": round(median(short), 2)} if short else {})


if __name__ == "__main__":
    run(main)
