"""
Plans of ``dljob submit --dry-run``, and how the submitted jobs then really started and ended.

Jobs that replay speeds come in bursts, drawn from a seed: three types, different lengths, numbers of GPUs and priorities. The
real command plans each job, and submits it at once. Then its start, GPUs and end are compared with the plan; the
latest bounds grow by the delay of the submission. A plan assumes that no further job comes, so the rows of undisturbed jobs
leave out those that were followed by another job before their end (for starts: before their start).

A machine is a ``dljob up`` with virtual GPUs, a cluster an operator on a real control plane with played kubelets. No plan
may change anything: on the cluster the audit log has all writes of the user, and on the machine the jobs, the
record and the state folder are compared before and after each plan.
"""

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import click
import yaml
from _measuring import describe_machine, print_result
from _progress import count, run, say, wait_until

from dljob.cli.verbs.watching.report import read_store
from dljob.client.jobviews import read_time
from dljob.local.folders import Folders
from tests.ctl.cluster.playing import home_of, make_user
from tests.ctl.running import Result, run_apart
from tests.local.ups import REPLAY, Up, going, replay
from tests.operator.stages import staged
from tests.servers.binaries import find_all
from tests.servers.controlplane import PROGRAMS, ControlPlane, Wishes
from tests.servers.namespaces import wait_for_account

Json = dict[str, Any]

NODES = {"gpu-a": 4, "gpu-b": 2}
NAMESPACE = "training"
TYPES = ("small", "middle", "large")
OPTIONS = ((1,), (2,), (4,), (1, 2), (2, 4), (1, 2, 4))
SPEEDS = {1: 20.0, 2: 36.0, 4: 64.0}
"""Iterations a second."""
SECONDS = (5.0, 60.0)
"""The length of a job on one GPU."""
BURST = 4
PAUSE_S = (10.0, 40.0)
"""Between two bursts."""
LIMIT_S = 900.0
AUDIT = {"omitStages": ["RequestReceived", "ResponseStarted"], "rules": [{"level": "Metadata"}]}
READING = ("get", "list", "watch")
COLUMNS = "gpu_type,model,global_batch_size,num_gpus,iterations_per_s"


@dataclass(frozen=True)
class World:
    """A live system with its user."""

    command: Callable[..., Result]
    status: Callable[[str], Json]
    folder: Path
    observe: Callable[[str], object]
    """What a plan for a job must leave as it is."""
    count_writes: Callable[[], int]
    """The writes of the user, which are the submissions in the end."""


@dataclass
class Plan:
    """A plan and the outcome."""

    effect: Json
    delay_s: float
    submitted_at: float
    has_its_gpus: bool
    status: Json = field(default_factory=dict)
    next_at: float = inf
    """When the next job was submitted."""

    def told(self, what: str, bound: str) -> float:
        return read_time(self.effect[what].get(bound)) or inf

    def came(self, what: str) -> float:
        return read_time(self.status[{"start": "startedAt", "end": "finishedAt"}[what]]) or inf


@contextmanager
def on_machine(folder: Path) -> Iterator[World]:
    root = folder / "state"
    with going(root, "--virtual-gpus", sum(NODES.values())) as up:
        yield World(
            up,
            lambda name: up.backend.get_job(name)["status"],
            folder,
            lambda name: _observe(up, name),
            lambda: len(up.backend.list_jobs().items),
        )
        up.end()


def _observe(up: Up, new: str) -> object:
    jobs = {each["metadata"]["name"]: each["spec"] for each in up.backend.list_jobs().items}
    record = read_store(str(Folders(up.root).store), 0.0)
    lines = [line for line in record.lines if getattr(line, "job", "") == new]
    return jobs, lines, list(up.root.rglob(f"*{new}*"))


@contextmanager
def on_cluster(folder: Path) -> Iterator[World]:
    say("starts a control plane")
    wishes, programs = Wishes(audit_policy=AUDIT), find_all(*PROGRAMS)
    with ControlPlane(folder / "plane", wishes, programs=programs) as plane, plane.api() as api:
        api.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        wait_for_account(api, NAMESPACE)
        with staged(plane, NAMESPACE, folder, NODES) as stage:
            stage.start_operator()
            kubeconfig = make_user(plane, NAMESPACE, "user", ())
            account = f"--serviceaccount={NAMESPACE}:user"
            admin = ("clusterrolebinding", "user", "--clusterrole=cluster-admin", account)
            plane.kubectl("create", *admin)
            given = {"KUBECONFIG": str(kubeconfig), "DLJOB_PLATFORM": "cluster", **home_of(stage)}
            yield World(
                lambda *words: run_apart(*words, cwd=folder, **given),
                stage.status,
                folder,
                lambda _: None,
                lambda: _count_writes(plane.audit_log),
            )


def _count_writes(log: Path) -> int:
    events = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    theirs = f"system:serviceaccount:{NAMESPACE}:user"
    return sum(
        each["verb"] not in READING and "dryRun=All" not in each["requestURI"]
        for each in events
        if each["user"]["username"] == theirs
    )


def draw_job(folder: Path, name: str, chance: random.Random) -> Json:
    table = folder / "speeds.csv"
    rows = [f"A100,{each},64,{gpus},{SPEEDS[gpus]}" for each in TYPES for gpus in SPEEDS]
    table.write_text("\n".join((COLUMNS, *rows)), encoding="utf-8")
    iterations, kind = round(chance.uniform(*SECONDS) * SPEEDS[1]), chance.choice(TYPES)
    document = replay(name, folder, iterations=iterations, faster=1.0)
    saved = document["spec"]["checkpoint"]["path"]
    options = [f"--speeds={table}", f"--model={kind}", "--batch=64", f"--iterations={iterations}"]
    [container] = document["spec"]["template"]["spec"]["containers"]
    container["image"] = "replay"
    container["command"] = [
        *(sys.executable, str(REPLAY), *options),
        *(f"--checkpoint={saved}/iteration", "--initialization=0.5"),
    ]
    document["spec"] |= {
        "gpus": {"options": list(chance.choice(OPTIONS))},
        "priority": 5 if chance.random() < 0.1 else 0,
        "training": {"iterations": iterations, "batchSize": 64},
        "profile": {"model": kind, "dataset": "drawn"},
    }
    return document


def submit(world: World, name: str, chance: random.Random) -> tuple[Plan, int]:
    """Plan a job, submit it, and wait for the decision; return the changes that the plan made too."""
    file = world.folder / "job.yaml"
    file.write_text(yaml.safe_dump(draw_job(world.folder, name, chance)), encoding="utf-8")
    before = world.observe(name), world.count_writes()
    effects = _checked(world.command("submit", file, "--dry-run", "-o", "json")).data
    planned_at = time.time()
    changes = int((world.observe(name), world.count_writes()) != before)
    _checked(world.command("submit", file))
    at = time.time()
    decided: list[Json] = []

    def is_decided() -> bool:
        status = world.status(name)
        if status.get("allocation", {}).get("nodes") or status.get("phase") == "Queued":
            decided.append(status)
        return bool(decided)

    wait_until(is_decided, f"{name} has GPUs or waits", every_s=0.05)
    [effect] = (each for each in effects if each["job"] == name)
    has_its_gpus = _count_gpus(decided[0].get("allocation")) == _count_gpus(effect.get("new"))
    return Plan(effect, at - planned_at, at, has_its_gpus), changes


def _count_gpus(placement: Json | None) -> dict[str, int]:
    return {each["name"]: len(each["gpuIds"]) for each in (placement or {}).get("nodes", ())}


def _checked(result: Result) -> Result:
    if result.status:
        raise click.ClickException(result.stderr)
    return result


def play(world: World, jobs: int, chance: random.Random) -> tuple[list[Plan], int]:
    """Submit all jobs, and wait until all have ended."""
    plans: dict[str, Plan] = {}
    changes, left = 0, 0
    for name in count([f"job-{number}" for number in range(jobs)]):
        if not left:
            time.sleep(chance.uniform(*PAUSE_S))
            left = chance.randint(1, BURST)
        plans[name], changed = submit(world, name, chance)
        for former in plans.values():
            if former is not plans[name]:
                former.next_at = min(former.next_at, plans[name].submitted_at)
        left, changes = left - 1, changes + changed

    def have_ended() -> bool:
        for name, plan in plans.items():
            plan.status = world.status(name)
        return all(plan.status["phase"] in ("Completed", "Failed") for plan in plans.values())

    wait_until(have_ended, "all jobs have ended", limit_s=LIMIT_S, every_s=1.0)
    return list(plans.values()), changes


def judge(plans: Sequence[Plan], what: str, *, undisturbed: bool) -> Json:
    """Compare planned starts or ends with the actual ones."""
    chosen = [plan for plan in plans if not undisturbed or plan.came(what) <= plan.next_at]
    known = [plan for plan in chosen if "expected" in plan.effect.get(what, {})]
    inside = [
        plan.told(what, "earliest") <= plan.came(what) <= plan.told(what, "latest") + plan.delay_s
        for plan in known
    ]
    errors = sorted(abs(plan.came(what) - plan.told(what, "expected")) for plan in known) or [inf]
    widths = [plan.told(what, "latest") - plan.told(what, "earliest") for plan in known] or [inf]
    return {
        "planned": f"{what}s, {'undisturbed' if undisturbed else 'all'}",
        "number": len(chosen),
        "unknown": len(chosen) - len(known),
        "inside_bounds": round(sum(inside) / max(1, len(inside)), 3),
        "median_error_s": round(median(errors), 1),
        "p90_error_s": round(errors[int(0.9 * (len(errors) - 1))], 1),
        "median_between_bounds_s": round(median(widths), 1),
    }


@click.command(help=__doc__)
@click.option("--on", type=click.Choice(["machine", "cluster"]), default="machine")
@click.option("--jobs", type=click.IntRange(1), default=8, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(*, on: str, jobs: int, seed: int, form: str) -> None:
    begin = on_machine if on == "machine" else on_cluster
    with tempfile.TemporaryDirectory(prefix="dljob-") as folder, begin(Path(folder)) as world:
        plans, changes = play(world, jobs, random.Random(seed))
        changes += abs(world.count_writes() - jobs)
    rows = [
        judge(plans, what, undisturbed=each) for what in ("start", "end") for each in (True, False)
    ]
    kept = sum(plan.has_its_gpus for plan in plans)
    total = {"on": on, "plans": jobs, "changes_by_plans": changes, "gpus_as_planned": kept / jobs}
    print_result([describe_machine(), total, *rows], form)


if __name__ == "__main__":
    run(main)
