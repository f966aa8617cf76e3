"""
Random histories on one machine: jobs whose checkpoints work, jobs without any, and jobs with broken ones.

Each has real SideCars and a real controller that wants to reshape them. What was lost is read from what
the trainings wrote themselves: a start that goes on behind the end of the one before has lost the rest.
"""

import random
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.local.ups import going

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(300)]

SAVER = Path(__file__).with_name("saver.py")
KEPT = ("none", "undeclared", "torn", "elsewhere")
"""Whose GPUs nothing may change: no checkpoint of theirs is ever confirmed."""


def job(name: str, manner: str, root: Path, *, iterations: int, **gpus: int) -> dict[str, Any]:
    folder = root / name / "checkpoints"
    folder.mkdir(parents=True)
    how = "none" if manner == "undeclared" else manner
    words = [how, folder, root / f"{name}.journal", iterations]
    checkpoint = {
        "signal": "SIGUSR1",
        "confirm": "file",
        "path": str(folder),
        "complete": "rename",
        # Only what never confirms may time out: on a busy machine a good one takes seconds as well.
        "timeoutSeconds": 60 if manner == "good" else 2,
        "shared": True,
    }
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": name},
        "spec": {
            "gpus": {"options": [1, 2, 4], **gpus},
            "training": {"iterations": iterations},
            "processes": "perNode",
            "progress": {"log": r"step (?P<iteration>\d+)"},
            **({} if manner == "undeclared" else {"checkpoint": checkpoint}),
            "template": {
                "spec": {
                    "containers": [
                        {
                            "name": "trainer",
                            "command": [sys.executable, "-S", str(SAVER), *map(str, words)],
                        }
                    ]
                }
            },
        },
    }


def read(root: Path, name: str) -> list[str]:
    path = root / f"{name}.journal"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def lost(lines: list[str]) -> list[int]:
    """How many iterations each start did again, the first left out."""
    losses, last = [], 0
    for line in lines:
        what, _, number = line.partition(" ")
        if what == "begins" and last:
            losses.append(last - int(number))
        last = int(number) if what == "at" else last
    return losses


def has_come_so_far(root: Path, name: str, lines: int) -> bool:
    return len(read(root, name)) > lines


@pytest.mark.parametrize("seed", [1, 2])
def test_no_iteration_is_lost_that_no_law_demanded(root, seed):
    chance = random.Random(seed)
    manners = ["good", "good", *chance.sample(KEPT, 2)]
    chance.shuffle(manners)
    with going(root / "state", "--virtual-gpus", 4, "--policy", "max-min") as up:
        names = []
        for number, manner in enumerate(manners):
            name = f"{manner}-{number}"
            iterations = chance.randrange(400, 800)
            assert up.submit(job(name, manner, root, iterations=iterations)).status == 0
            names.append(name)
            if number < 2:
                # The next one comes while this trains.
                up.until(partial(has_come_so_far, root, name, chance.randrange(5, 60)))
        for name in names:
            up.until_phase(name, "Completed")
        starts = {name: lost(read(root, name)) for name in names}
        assert all(loss == 0 for losses in starts.values() for loss in losses), starts
        for name in names:
            if not name.startswith("good"):
                assert starts[name] == [], f"{name} was stopped: {up('history', name).stdout}"
        assert any(starts[name] for name in names if name.startswith("good")), "nothing changed"
