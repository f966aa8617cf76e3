"""Under the real ``dljob up`` a training that is done is not started again, also where its end takes time."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.local.histories import read
from tests.local.ups import Up, going

pytestmark = pytest.mark.processes

EVALUATOR = Path(__file__).with_name("evaluator.py")
TOTAL = 150
EVALUATION_S = 3.0


def job(name: str, root: Path, *, every: int = 1, **checkpoint: Any) -> dict[str, Any]:
    folder = root / name / "checkpoints"
    folder.mkdir(parents=True)
    words = [folder, root / f"{name}.journal", TOTAL, EVALUATION_S, every]
    saved = {"signal": "SIGUSR1", "confirm": "file", "path": str(folder), "complete": "rename"}
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": name},
        "spec": {
            "gpus": {"options": [1, 2, 4]},
            "training": {"iterations": TOTAL},
            "processes": "perNode",
            "progress": {"log": r"step (?P<iteration>\d+)"},
            "checkpoint": {**saved, "timeoutSeconds": 120, "shared": True, **checkpoint},
            "template": {
                "spec": {
                    "containers": [
                        {
                            "name": "trainer",
                            "command": [sys.executable, "-S", str(EVALUATOR), *map(str, words)],
                        }
                    ]
                }
            },
        },
    }


def until_it_evaluates(up: Up, root: Path, name: str) -> None:
    up.until(lambda: "evaluates" in read(root / f"{name}.journal"))


def assert_done_once(up: Up, root: Path, name: str) -> None:
    """It wrote ``done`` once, at the end, and nothing is said against it."""
    seen = up.until_phase(name, "Completed")
    lines = read(root / f"{name}.journal")
    assert lines.count("done") == lines.count("evaluates") == 1, lines
    assert lines[-1] == "done"
    status = seen["status"]
    assert (status.get("restarts", 0), status.get("failures", 0)) == (0, 0), status


@pytest.mark.story
def test_a_job_that_evaluates_while_another_wants_its_gpus_is_done_once(root):
    with going(root / "state", "--virtual-gpus", 4, "--policy", "max-min") as up:
        assert up.submit(job("first", root)).status == 0
        until_it_evaluates(up, root, "first")
        assert up.submit(job("second", root)).status == 0
        assert_done_once(up, root, "first")
        assert_done_once(up, root, "second")


@pytest.mark.parametrize("mechanism", ["in-place", "recreate"])
def test_a_job_that_evaluates_while_it_is_suspended_and_resumed_is_done_once(root, mechanism):
    with going(root / "state", "--virtual-gpus", 4, "--mechanism", mechanism) as up:
        assert up.submit(job("a", root)).status == 0
        until_it_evaluates(up, root, "a")
        assert up("suspend", "a").status == 0
        assert up("resume", "a").status == 0
        assert_done_once(up, root, "a")


def test_a_job_that_ends_while_it_is_suspended_is_completed(root):
    with going(root / "state", "--virtual-gpus", 4) as up:
        assert up.submit(job("a", root)).status == 0
        until_it_evaluates(up, root, "a")
        assert up("suspend", "a").status == 0
        assert_done_once(up, root, "a")


def test_a_job_that_reports_seldom_is_done_once_though_its_trial_was_due(root):
    with going(root / "state", "--virtual-gpus", 4) as up:
        assert up.submit(job("a", root, every=40)).status == 0
        assert_done_once(up, root, "a")
