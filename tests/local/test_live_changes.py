"""A job without a checkpoint gets fewer and more GPUs while its processes stay, on one machine with real processes."""

import logging
import re
import sys
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.local.ups import Up, going

pytestmark = pytest.mark.processes
log = logging.getLogger(__name__)

TRAINER = Path(__file__).with_name("live_trainer.py")
STEPS, MANY_STEPS = 2500, 1_000_000
CHANGES = 100
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


def read_ranks(root: Path, name: str) -> list[int]:
    """Return the number of ranks in each step, of which none was done twice or left out, and none has lost the sum."""
    [file] = (root / "state" / "jobs" / name).glob("*.log")
    lines = [tuple(map(int, each)) for each in LINE.findall(file.read_text())]
    assert [step for step, _, _ in lines] == [*range(1, len(lines) + 1)]
    assert all(total == step * (step + 1) // 2 for step, _, total in lines)
    return [ranks for _, ranks, _ in lines]


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
        ranks = read_ranks(root, "lives")
        history = up.backend.list_history("lives", 100)
        shown = up("history", "lives").stdout
        assert up.end() == 0
    status = job["status"]
    assert [status[what] for what in ("reshapes", "restarts", "failures")] == [2, 0, 0]
    assert status["live"]["changes"] == 2
    assert len(ranks) == STEPS
    assert [world for world, _ in groupby(ranks)] == [4, 2, 4]
    assert [each.get("how") for each in history if each["kind"] == "reshape"] == ["live", "live"]
    assert shown.count("ms live") == 2


@pytest.mark.timeout(1200)
def test_job_without_a_checkpoint_goes_through_a_hundred_changes(root):
    with going(root / "state", "--virtual-gpus", 4, "--policy", "max-min") as up:
        up.backend.create_jobs([unsaved("lives", [1, 2, 3, 4], MANY_STEPS)])
        up.until(lambda: changes_live(up, "lives"))
        job, rivals = up.backend.get_job("lives"), 0
        while job["status"]["live"].get("changes", 0) < CHANGES:
            # They come while the job still grows or after that, so that some changes are withdrawn.
            rival, rivals = f"comes-{rivals}", rivals + 1
            up.backend.create_jobs([unsaved(rival, [1 + rivals % 3], 10 + 20 * (rivals % 2))])
            up.until_phase(rival, "Completed")
            job = up.backend.get_job("lives")
            assert job["status"]["restarts"] == job["status"]["failures"] == 0, rival
        ranks = read_ranks(root, "lives")
        pauses = [
            each["costSeconds"]
            for each in up.backend.list_history("lives", 1000)
            if each.get("how") == "live" and "costSeconds" in each
        ]
        how = {each.get("how") for each in up.backend.list_history("lives", 1000)}
        assert up.end() == 0
    log.info(
        "%d changes by %d jobs over %d steps; pauses in ms: median %.2f, longest %.2f",
        job["status"]["live"]["changes"],
        rivals,
        len(ranks),
        1000 * median(pauses),
        1000 * max(pauses),
    )
    assert "restarted" not in how
    assert {1, 2, 3, 4} == set(ranks)
