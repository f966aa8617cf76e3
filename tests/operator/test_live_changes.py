"""
A job on two nodes changes live on a real control plane: pods come and go with their ranks.

The ranks of :mod:`tests.operator.live_members` form no group without each of them, so a rank that is missing stops all.
"""

import logging
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path

import pytest

from tests.operator.live_members import make_job
from tests.operator.stages import Stage, staged
from tests.servers.api import Json

pytestmark = [pytest.mark.cluster, pytest.mark.processes]
log = logging.getLogger(__name__)

NODES = {"gpu-a": 2, "gpu-b": 2}
KILLS, STEPS = 50, 50
QUICK = {"policy": "max-min", "rules.retrySeconds": 0.2, "rules.longestRetrySeconds": 0.4}


@pytest.fixture
def stage(control_plane, namespace: str, tmp_path: Path) -> Iterator[Stage]:
    with staged(control_plane, namespace, tmp_path, NODES) as stage:
        stage.start_operator(settings=QUICK)
        yield stage


def submit(stage: Stage, name: str, changes: Mapping[str, Json] | None = None) -> None:
    """
    Submit a job, and wait until it trains on all GPUs and a trial has shown that it changes live.

    It has no checkpoint; ``changes`` are added to its metadata and its spec.
    """
    document = make_job(name, stage.folder / name, options=(2, 4))
    for part, changed in (changes or {}).items():
        document[part] = {**document[part], **changed}
    stage.api.post(stage.path(), document)
    stage.wait(lambda: stage.condition(name, "Live").get("status") == "True")


def read(stage: Stage, name: str) -> list[list[str]]:
    return [line.split() for line in (stage.folder / name / "journal").read_text().splitlines()]


def steps_of(stage: Stage, name: str) -> list[tuple[int, int]]:
    """Return each step with the number of its ranks."""
    lines = read(stage, name)
    return [(int(line[1]), int(line[3])) for line in lines if line[0] == "step"]


def trains_on(stage: Stage, name: str, gpus: int) -> bool:
    """Return True if the job takes steps with this number of ranks."""
    is_running = stage.phase(name) == "Running"
    return is_running and bool(steps := steps_of(stage, name)) and steps[-1][1] == gpus


def test_job_on_two_nodes_shrinks_to_one_and_grows_again(stage: Stage):
    submit(stage, "lives")
    first = {pod["metadata"]["name"] for pod in stage.pods_of("lives")}
    stage.submit("comes", iterations=150, gpus={"options": [2]})
    stage.wait(lambda: trains_on(stage, "lives", 2))
    stage.wait_for_phase("comes", "Completed")
    stage.wait(lambda: trains_on(stage, "lives", 4))
    status, steps = stage.status("lives"), steps_of(stage, "lives")
    assert [status[what] for what in ("reshapes", "restarts", "failures")] == [2, 0, 0], status
    assert status["live"]["changes"] == 2, status
    assert [step for step, _ in steps] == [*range(1, len(steps) + 1)]
    assert [ranks for ranks, _ in groupby(steps, lambda step: step[1])] == [4, 2, 4]
    # One pod stays, and another one comes in the place of the one that has left.
    last = {pod["metadata"]["name"] for pod in stage.pods_of("lives")}
    assert (len(first), len(last), len(first & last)) == (2, 2, 1)
    made = [each.get("how") for each in status["history"] if each["kind"] == "reshape"]
    assert made == ["live", "live"]


def kill_rank(stage: Stage, name: str, chance: random.Random) -> None:
    ranks = [pid for pod in pods_of(stage, name) for pid in stage.kubelets.trainings(pod)]
    if ranks:
        os.kill(chance.choice(sorted(ranks)), signal.SIGKILL)


def kill_sidecar(stage: Stage, name: str, chance: random.Random) -> None:
    pids = stage.kubelets.pids()
    if pods := pods_of(stage, name):
        os.kill(pids[chance.choice(pods)], signal.SIGKILL)


def kill_operator(stage: Stage, name: str, chance: random.Random) -> None:
    stage.operators[-1].kill()
    stage.let_lease_end()
    stage.start_operator(settings=QUICK)


def pods_of(stage: Stage, name: str) -> list[str]:
    return sorted(pod for pod in stage.kubelets.pids() if pod.startswith(f"{name}-"))


def die_in_a_change(stage: Stage, name: str, chance: random.Random) -> str:
    """Kill something at a drawn moment of a job's changes from four GPUs to two and back; return what and how it ended."""
    rival, kill = f"comes-{name}", chance.choice((kill_rank, kill_sidecar, kill_operator))
    submit(stage, name)
    stage.submit(rival, iterations=60, gpus={"options": [2]})
    # A shrink begins when the pod of the other job is ready, and a growth when that job has ended.
    time.sleep(chance.uniform(0.0, 6.0))
    kill(stage, name, chance)
    before = len(steps_of(stage, name))
    stage.wait_for_phase(rival, "Completed")
    # Ranks that wait for a killed one take no step.
    stage.wait(lambda: len(steps_of(stage, name)) > before + STEPS and trains_on(stage, name, 4))
    lines = read(stage, name)
    assert not [line for line in lines if line[0] == "TWICE"], name
    begun = Counter((line[1], int(line[5])) for line in lines if line[0] == "began")
    # All ranks of a start begin together; fewer of them join others.
    restarts = sum(count == world for (_, world), count in begun.items()) - 1
    assert restarts <= (kill is not kill_operator), (name, begun, stage.status(name))
    stage.api.delete(stage.path(name))
    stage.wait(lambda: stage.is_gone(name) and not pods_of(stage, name))
    outcome = f"{kill.__name__}: {'restarted once' if restarts else 'live'}"
    log.info("%s: %s", name, outcome)
    return outcome


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_deaths_at_drawn_moments_of_live_changes(stage: Stage):
    chance = random.Random(43)
    outcomes = Counter(die_in_a_change(stage, f"lives{number}", chance) for number in range(KILLS))
    log.info("%s", outcomes)
    assert outcomes.total() == KILLS
