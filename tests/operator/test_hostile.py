"""
Hostile SideCars on a real control plane harm only their own jobs.

All kinds of a batch run next to an honest job on one node at once. The operator goes on, honest jobs
come and end, and at the end every GPU of the node is available again.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dljob.operator.nodes.nodes import PARDONS
from tests.hostile.lies import KINDS
from tests.operator.kubelets import HOSTILE
from tests.operator.stages import LEADS, Stage, lasting_stage, staged
from tests.servers.controlplane import ControlPlane

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

LONG = 10**6
AT_ONCE = 6
"""As on one machine: together both tests play all kinds."""
RULES = {
    "rules.lostSeconds": 120,
    "rules.obeySeconds": 120,
    "rules.retrySeconds": 1,
    "lease.leaseSeconds": 300,
    "lease.giveUpSeconds": 290,
}
"""Long enough for honest jobs and for renewals of the Lease while all programs start on a busy machine."""
PATIENCE_S = 300.0
"""All programs of a batch start at once on few cores."""
NAMES = sorted(KINDS)
# Half of the kinds run here, and the others on one machine; `make test-long` runs all.
HERE = [name for at, name in enumerate(NAMES) if at // AT_ONCE % 2 == 1]
ELSEWHERE = [name for name in NAMES if name not in HERE]
FEW = ["highest-epoch", "highest-generation", "holds-the-gpus-of-others"]
BATCHES = [
    pytest.param(HERE, marks=[pytest.mark.slow], id="here"),
    pytest.param(ELSEWHERE, marks=[pytest.mark.slow, pytest.mark.long], id="elsewhere"),
]
GPUS = max(len(HERE), len(ELSEWHERE)) + 2
"""One for each hostile job, the honest job and the visiting job."""


@pytest.fixture(scope="module")
def stage(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with lasting_stage(control_plane, tmp_path_factory, {"gpu-a": GPUS}) as stage:
        stage.patience = PATIENCE_S
        stage.start_operator(settings=RULES)
        yield stage


def submit(
    stage: Stage, name: str, *, gpus: int = 1, iterations: int = LONG, kind: str = ""
) -> None:
    document = stage.make_job(name, iterations=iterations)
    document["spec"] |= {"gpus": {"options": [gpus]}, "backoffLimit": 0 if kind else 3}
    if kind:
        # Honest jobs have the usual times, so that a slow machine is no problem.
        document["spec"]["checkpoint"] |= {"timeoutSeconds": 3, "graceSeconds": 1}
        document["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 3
    container = document["spec"]["template"]["spec"]["containers"][0]
    container["env"] = [*container.get("env", ()), {"name": HOSTILE, "value": kind}]
    stage.api.post(stage.path(), document)


def troubled(stage: Stage, name: str) -> dict[str, Any]:
    found = stage.status(name).get("conditions", ())
    return next((each for each in found if each["type"] == "Troubled"), {})


def is_unharmed(stage: Stage, name: str) -> None:
    status = stage.status(name)
    assert status.get("restarts", 0) == 0, status
    assert status.get("failures", 0) == 0, status
    assert troubled(stage, name).get("status") != "True", status


def reinstate(stage: Stage, word: str) -> None:
    """Return the GPUs that hostile jobs reported as broken."""
    pardons = json.dumps({str(number): word for number in range(GPUS)})
    annotations = {"annotations": {PARDONS: pardons}}
    stage.api.merge("/api/v1/nodes/gpu-a", {"metadata": annotations})


def is_exposed(stage: Stage, kind: str) -> bool:
    return "SideCarUntrusted" in dict(stage.events(kind))


def wait_until_it_lies(stage: Stage, kind: str) -> None:
    """Wait until it is exposed, or has at least a pod."""
    if KINDS[kind].is_exposed:
        stage.wait(lambda: is_exposed(stage, kind))
        stage.wait_for_phase(kind, "Failed")
    else:
        stage.wait(lambda: stage.pods_of(kind) or stage.phase(kind) == "Failed")


@pytest.mark.story
def test_liars_are_exposed_and_an_honest_job_goes_on(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
):
    with staged(control_plane, namespace, tmp_path, {"gpu-a": len(FEW) + 1}) as stage:
        stage.start_operator(settings={"rules.retrySeconds": 1})
        # Few iterations, because progress is written for each hundredth of them.
        submit(stage, "honest", iterations=10_000)
        stage.wait_for_phase("honest", "Running")
        for kind in FEW:
            submit(stage, kind, kind=kind)
        for kind in FEW:
            stage.wait(partial(is_exposed, stage, kind))
        before = stage.status("honest")["progress"]["iteration"]
        stage.wait(lambda: stage.status("honest")["progress"]["iteration"] > before)
        is_unharmed(stage, "honest")


@pytest.mark.parametrize("kinds", BATCHES)
@pytest.mark.timeout(2700)
def test_hostile_sidecars_harm_no_other_job(stage: Stage, kinds: list[str]):
    beside = f"beside-{kinds[0]}"
    submit(stage, beside)
    stage.wait_for_phase(beside, "Running")
    for kind in kinds:
        submit(stage, kind, kind=kind)
    for kind in kinds:
        wait_until_it_lies(stage, kind)
    before = stage.status(beside)["progress"]["iteration"]
    # A job that comes meanwhile completes.
    submit(stage, f"visits-{kinds[0]}", iterations=50)
    stage.wait_for_phase(f"visits-{kinds[0]}", "Completed")
    is_unharmed(stage, f"visits-{kinds[0]}")
    stage.wait(lambda: stage.status(beside)["progress"]["iteration"] > before)
    is_unharmed(stage, beside)
    for name in (*kinds, beside):
        stage.api.delete(stage.path(name))
    for name in (*kinds, beside):
        stage.wait(partial(stage.is_gone, name))
    reinstate(stage, kinds[0])
    submit(stage, f"all-{kinds[0]}", gpus=GPUS, iterations=50)
    stage.wait_for_phase(f"all-{kinds[0]}", "Completed")
    is_unharmed(stage, f"all-{kinds[0]}")
    for name in ("visits", "all"):
        stage.api.delete(stage.path(f"{name}-{kinds[0]}"))
    [operator] = stage.operators
    words = operator.log.read_text()
    assert operator.is_running, operator.last_words()
    assert words.count(LEADS) == 1, operator.last_words()
    assert "a cycle failed" not in words, words
