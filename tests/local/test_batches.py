"""
An elastic batch that ``ones`` doubles at a boundary, with real processes that stay.

:mod:`tests.local.test_paper_policies` has the same by a restart.
"""

import sys
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from dljob.cli.verbs.watching import describe
from tests.local.ups import going

pytestmark = pytest.mark.processes

TRAINER = Path(__file__).with_name("elastic_trainer.py")
ITERATIONS, SAMPLES = 1500, 800
"""Of eight samples each: fifteen times all samples."""


def elastic(folder: Path) -> dict[str, Any]:
    command = [sys.executable, str(TRAINER), str(ITERATIONS), str(folder)]
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": "elastic"},
        "spec": {
            "gpus": {"options": [1, 2], "requested": 1},
            "training": {"iterations": ITERATIONS, "iterationsPerEpoch": 100, "batchSize": 8},
            "batch": {"elastic": True, "max": 16},
            "processes": "perGpu",
            "progress": {"log": r"iteration (?P<iteration>\d+)"},
            "template": {"spec": {"containers": [{"name": "trainer", "command": command}]}},
        },
    }


@pytest.mark.story
def test_batch_doubles_live_and_takes_each_sample_once(root):
    folder = root / "samples"
    folder.mkdir()
    with going(root / "state", "--virtual-gpus", 2, "--policy", "ones") as up:
        up.backend.create_jobs([elastic(folder)])
        up.until(lambda: up.backend.get_job("elastic")["status"]["allocation"].get("batchSize"))
        up.until_phase("elastic", "Running")
        job, why = up.backend.get_job("elastic"), up.backend.explain("elastic")["message"]
        (folder / "end").touch()
        done = up.until_phase("elastic", "Completed")
        history = up.backend.list_history("elastic", 100)
        assert up.end() == 0
    assert why.startswith("trains on 2 GPUs on ")
    assert " with batches of 16 instead of 8" in why
    told = {"job": job, "why": why, "assumptions": [], "log": [], "events": []}
    assert "\n  batch size:  16 instead of 8\n" in describe.show(told)
    status = done["status"]
    assert [status[what] for what in ("reshapes", "restarts", "failures")] == [1, 0, 0]
    assert status["live"]["changes"] == 1
    [grown] = [each for each in history if each["kind"] == "reshape"]
    assert (grown["old"]["gpus"], grown["new"]["gpus"]) == (1, 2)
    assert " with batches of 16 instead of 8: " in grown["message"]
    (folder / "end").unlink()
    files = [file.read_text().splitlines() for file in folder.iterdir()]
    parts = sorted((int(line[0]), line[1:]) for file in files for line in map(str.split, file))
    places = [(step, place[0], place[1]) for step, place in parts]
    # Both ranks get the new size and the factor for it at the same step.
    sizes = [size for size, _ in groupby(places, lambda each: each[1:])]
    assert sizes == [("8", "1.0"), ("16", "2.0")]
    samples: dict[int, list[str]] = {step: [] for step, _ in parts}
    for step, place in parts:
        samples[step] += place[2:]
    assert [*samples] == [*range(1, len(samples) + 1)]
    # The last one may be half a batch.
    assert all(len(samples[step]) == int(size) for step, size, _ in places if step < len(samples))
    # Half of the steps from there on, and each sample once in each epoch.
    assert len(samples) < ITERATIONS
    taken = Counter(sample for part in samples.values() for sample in part)
    assert len(taken) == SAMPLES
    assert set(taken.values()) == {8 * ITERATIONS // SAMPLES}
