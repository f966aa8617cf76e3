"""A real training with workers and servers under ``coach``: mini-epochs, then the choice that its epochs speak for."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.local.ups import going

pytestmark = pytest.mark.processes

EXAMPLE = Path(__file__).parents[2] / "examples" / "roles"


def roles_job(**training: int) -> dict[str, Any]:
    """The example, which is fastest with one worker and two servers: 4 GPUs."""
    document: dict[str, Any] = yaml.safe_load((EXAMPLE / "job.yaml").read_text(encoding="utf-8"))
    document["spec"]["training"] |= training
    del document["spec"]["warmStart"]
    [container] = document["spec"]["template"]["spec"]["containers"]
    steps = training["epochs"] * training["iterationsPerEpoch"]
    command = [sys.executable, str(EXAMPLE / "train.py"), f"--iterations={steps}"]
    container["command"] = [*command, *container["command"][3:]]
    return document


@pytest.mark.story
def test_a_job_has_mini_epochs_and_then_its_best_workers_and_servers(root):
    with going(root / "state", "--virtual-gpus", 6, "--policy", "coach:mini_seconds=6") as up:
        up.backend.create_jobs([roles_job(epochs=8, iterationsPerEpoch=100)])
        job = up.until_phase("roles", "Completed")
        history = up.backend.list_history("roles", 100)
        assert up.end() == 0
    changes = [(each["new"]["gpus"], each["cause"]) for each in history if "cause" in each]
    # One worker with one and two servers, two workers with one and two: f(w, s) is fitted to these.
    assert changes[:4] == [(3, "ItsTurn"), (4, "Exploring"), (5, "Exploring"), (6, "Exploring")]
    assert changes[4] == (4, "FasterWithFewer")
    assert job["status"]["progress"]["iteration"] == 800
