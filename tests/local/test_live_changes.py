"""A job without a checkpoint gets fewer and more GPUs while its processes stay, on one machine with real processes."""

import re
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.local.ups import Up, going

pytestmark = pytest.mark.processes

TRAINER = Path(__file__).with_name("live_trainer.py")
STEPS = 2500
LINE = re.compile(r"step (\d+) of (\d) ranks, sum (\d+)")


def unsaved(name: str, options: list[int], steps: int) -> dict[str, Any]:
    command = [sys.executable, str(TRAINER), str(steps)]
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": name},
        "spec": {
            "gpus": {"options": options},
            "training": {"iterations": steps},
            "processes": "perGpu",
            "progress": {"log": r"step (?P<iteration>\d+)"},
            "template": {"spec": {"containers": [{"name": "trainer", "command": command}]}},
        },
    }


def changes_live(up: Up, name: str) -> bool:
    conditions = up.backend.get_job(name)["status"].get("conditions", [])
    return any(each["type"] == "Live" and each["status"] == "True" for each in conditions)


@pytest.mark.story
def test_processes_stay_while_a_job_without_a_checkpoint_shrinks_and_grows(root):
    with going(root / "state", "--virtual-gpus", 4, "--policy", "max-min") as up:
        up.backend.create_jobs([unsaved("lives", [1, 2, 3, 4], STEPS)])
        up.until(lambda: changes_live(up, "lives"))
        up.backend.create_jobs([unsaved("comes", [2], 200)])
        up.until_phase("comes", "Completed")
        job = up.until_phase("lives", "Completed")
        [log] = (root / "state" / "jobs" / "lives").glob("*.log")
        lines = [tuple(map(int, each)) for each in LINE.findall(log.read_text())]
        assert up.end() == 0
    status = job["status"]
    assert [status[what] for what in ("reshapes", "restarts", "failures")] == [2, 0, 0]
    assert status["live"]["changes"] == 2
    # No step is done twice, and no process has lost the sum.
    assert [step for step, _, _ in lines] == [*range(1, STEPS + 1)]
    assert all(total == step * (step + 1) // 2 for step, _, total in lines)
    assert [ranks for ranks, _ in groupby(lines, lambda line: line[1])] == [4, 2, 4]
