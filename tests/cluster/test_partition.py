"""Trainings on real nodes go on while the operator cannot reach the pods."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dljob.operator.podspecs.building import SIDECAR_PORT
from tests.cluster.jobs import as_text, replay
from tests.cluster.looking import View
from tests.servers.api import Json
from tests.sidecar.drivers import find_processes

pytestmark = pytest.mark.nodes

JOBS = [f"p{number}" for number in range(1, 5)]
IN_A_CONTAINER = "\0dljob.operator\0--config=/etc/"
"""Part of the command of an installed operator."""
STEPS = 100
"""Each training advances so far while the operator suspects itself."""


@contextmanager
def cut(address: str = "") -> Iterator[None]:
    """Drop packets from operators to all SideCars, or to one address."""
    rule = ["OUTPUT", "--protocol", "tcp", "--dport", str(SIDECAR_PORT), "--jump", "DROP"]
    rule += ["--destination", address] if address else []
    rooms = [f"--target={pid}" for pid in find_processes(IN_A_CONTAINER)]
    assert rooms
    try:
        for room in rooms:
            subprocess.run(["nsenter", room, "--net", "iptables", "--append", *rule], check=True)
        yield
    finally:
        for room in rooms:
            # The rules of an operator that has ended are gone.
            subprocess.run(["nsenter", room, "--net", "iptables", "--delete", *rule], check=False)


def aside(view: View, job: str) -> tuple[str, str]:
    conditions = view.job(job)["status"].get("conditions", ())
    found: Json = next((each for each in conditions if each["type"] == "SetAside"), {})
    return found.get("status", ""), found.get("reason", "")


def wait_aside(view: View, wanted: tuple[str, str]) -> None:
    view.wait(lambda: all(aside(view, job) == wanted for job in JOBS), what=f"{wanted} of all jobs")


def find_last_step(view: View, pod: str) -> int:
    """The last step of a training in its own output, which needs no operator."""
    lines = view.kubectl("logs", pod, "-c", "trainer", "--tail=20").splitlines()
    steps = [int(line.split()[1]) for line in lines if line.startswith("step ")]
    return max(steps, default=0)


def wait_steps(view: View, pod: str) -> None:
    goal = find_last_step(view, pod) + STEPS
    view.wait(lambda: find_last_step(view, pod) >= goal, what=f"step {goal} in {pod}")


def test_no_training_ends_while_the_operator_reaches_no_sidecar(view: View, saved: Path):
    view.cluster.give_gpus(node1=2, node2=2)
    manifests = [replay(job, [1], saved) for job in JOBS]
    view.kubectl("apply", "-f", "-", stdin=as_text(*manifests))
    for job in JOBS:
        view.wait_progress(job)
    before = {job: view.pods(job) for job in JOBS}
    with cut():
        wait_aside(view, ("True", "SideCarsSilent"))
        for [pod] in before.values():
            wait_steps(view, pod.name)
        assert {job: view.pods(job) for job in JOBS} == before
    wait_aside(view, ("False", "Sound"))
    for job in JOBS:
        view.wait_progress(job)
    assert {job: view.pods(job) for job in JOBS} == before

    [victim] = before[JOBS[0]]
    [address] = [
        pod["status"]["podIP"]
        for pod in view.find("pods")
        if pod["metadata"]["name"] == victim.name
    ]
    with cut(address):
        assert "has not answered" in view.wait_event(JOBS[0], "PodRemoved")
        view.wait(
            lambda: victim not in view.pods(JOBS[0]), what=f"the end of the container of {victim}"
        )
    view.wait_progress(JOBS[0])
    assert {job: view.pods(job) for job in JOBS[1:]} == {job: before[job] for job in JOBS[1:]}
