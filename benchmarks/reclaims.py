"""
How long Kueue waits for GPUs that it takes back from a job, and what that costs in writes.

A real control plane, a real Kueue, the operator, and real trainings below real SideCars on one node of four GPUs, of which
each of two teams owns two. A job of team a has all four. Again and again a Workload of team b asks for one or two of them
(drawn), is timed until Kueue admits it, which it does once the operator has proven the release, and goes; then the job has to
have all four again. At the end a job of team b is timed from its submission until it trains on its half.

The API server's audit log counts the writes of the operator and of Kueue. Before all that it counts those for the whole life of a
job, from its submission to its deletion, once in no queue and once with three layers.
"""

import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
from _measuring import describe_machine, print_result, summarize
from _progress import run, say

from tests.operator.queues import (
    A,
    B,
    admitted,
    has_gpus,
    make_teams,
    queues_of,
    submit,
    submit_other,
    workloads,
)
from tests.operator.stages import Stage, staged
from tests.servers.audits import read_events
from tests.servers.binaries import KUEUE, find_all
from tests.servers.controlplane import PROGRAMS, ControlPlane, Wishes
from tests.servers.namespaces import make_namespace
from tests.servers.queueing import KUEUE_API, Kueue

AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "Metadata", "verbs": ["create", "update", "patch", "delete"]},
        {"level": "None"},
    ],
}
PATIENCE_S = 300.0
LIFE = 1000
"""The iterations of a job whose whole life is counted."""


@click.command()
@click.option("--reclaims", default=10, show_default=True, help="How many.")
@click.option("--seed", default=0, show_default=True, help="Of the drawn numbers of GPUs.")
@click.option("-o", "--output", "form", type=click.Choice(["table", "json"]), default="table")
def main(*, reclaims: int, seed: int, form: str) -> None:
    """Measure reclaims of borrowed GPUs."""
    find_all(*PROGRAMS, KUEUE)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (
            ControlPlane(folder / "plane", Wishes(audit_policy=AUDIT)) as plane,
            Kueue(plane, folder / "kueue"),
            plane.api() as api,
        ):
            namespace = make_namespace(api)
            make_teams(api)
            with (
                queues_of(api, namespace),
                staged(plane, namespace, folder, {"gpu-a": 4}) as stage,
            ):
                measured = measure(stage, reclaims, random.Random(seed))
    print_result({**measured, **describe_machine()}, form)


def measure(stage: Stage, reclaims: int, chance: random.Random) -> dict[str, Any]:
    stage.patience = PATIENCE_S
    stage.start_operator(settings={"kueue.enabled": "true"})
    lives = {name: count_life(stage, name, team) for name, team in (("plain", ""), ("queued", A))}
    submit(stage, "wide", A)
    stage.wait(partial(has_gpus, stage, "wide", 4))
    before, waited = count_writes(stage), []
    for number in range(reclaims):
        waited.append(time_reclaim(stage, chance.choice((1, 2))))
        say(f"{number + 1} of {reclaims}: {waited[-1]:.2f} s")
    writes = count_writes(stage) - before
    submit(stage, "new", B, gpus={"options": [2]})
    half = time_until(lambda: has_gpus(stage, "new", 2), stage)
    status = stage.status("wide")
    return {
        "seconds_until_admitted": summarize(waited),
        "seconds_until_team_b_trains_on_its_half": round(half, 2),
        "lost_iterations": status["checkpoint"].get("lostIterations", 0),
        "failures": status.get("failures", 0),
        "writes_for_a_reclaim_and_the_return": {
            name: round(number / reclaims, 2) for name, number in sorted(writes.items())
        },
        **{f"writes_for_a_{name}_job": dict(sorted(lives[name].items())) for name in lives},
    }


def count_life(stage: Stage, name: str, team: str) -> Counter[str]:
    """Let a job run alone, and count the writes from its submission until nothing of it is left."""
    before = count_writes(stage)
    submit(stage, name, team, iterations=LIFE)
    stage.wait_for_phase(name, "Completed")
    stage.api.delete(stage.path(name))
    stage.wait(lambda: stage.is_gone(name) and not stage.pods() and not workloads(stage))
    return count_writes(stage) - before


def time_reclaim(stage: Stage, gpus: int) -> float:
    submit_other(stage, B, gpus)
    seconds = time_until(lambda: "other" in admitted(stage), stage)
    stage.api.delete(f"{KUEUE_API}/namespaces/{stage.namespace}/workloads/other")
    stage.wait(lambda: has_gpus(stage, "wide", 4))
    return seconds


def time_until(what: Callable[[], object], stage: Stage) -> float:
    began = time.monotonic()
    stage.wait(what)
    return time.monotonic() - began


def count_writes(stage: Stage) -> Counter[str]:
    """The accepted writes by program and kind."""
    found: Counter[str] = Counter()
    for event in read_events(stage.plane.audit_log):
        agent, reference = event.get("userAgent", ""), event.get("objectRef") or {}
        program = (
            "kueue"
            if agent.startswith("kueue")
            else "operator"
            if agent.startswith("dljob")
            else ""
        )
        if (
            program
            and event["responseStatus"]["code"] < 300
            and "dryRun" not in event["requestURI"]
        ):
            parts = (reference.get("resource"), reference.get("subresource"))
            found[f"{program}: {event['verb']} {'/'.join(filter(None, parts))}"] += 1
    return found


if __name__ == "__main__":
    run(main)
