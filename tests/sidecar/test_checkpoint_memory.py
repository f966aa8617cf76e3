"""Checkpoints in memory count once they are on disk, and torn memory is never resumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dljob_wire.messages import Phase
from tests.sidecar.drivers import wait_until
from tests.sidecar.savers import SHAPES

pytestmark = pytest.mark.processes

MEMORY = Path("/dev/shm")  # noqa: S108 - it is the file system in memory
NAMED = [shape for shape in SHAPES if shape != "several"]
"""All shapes but the one that only time completes."""


@pytest.fixture
def memory(token):
    return MEMORY / f"dljob-test-{token}"


@pytest.fixture
def job(make_job, memory):
    def begin(shape, *, mebibytes=64, **options):
        fields = {"checkpoint.memory": f"{mebibytes}Mi", "checkpoint.memoryPath": str(memory)}
        given = {"gap": 0.05, "complete": shape, "writes": "-", "more": json.dumps(fields)}
        return make_job(shape, **given, **options)

    return begin


@pytest.mark.parametrize(
    "shape", [pytest.param("marker", marks=pytest.mark.story), *sorted({*NAMED} - {"marker"})]
)
def test_checkpoint_in_memory_is_confirmed_on_disk(job, memory, shape):
    training = job(shape)
    for _ in range(3):
        training.reshape()
    assert training.tally.saved == {"confirmed": 2}, training.tell()
    resumes = training.resumes()
    assert resumes[0] < resumes[1] < resumes[2]
    assert not training.torn()
    unit = SHAPES[shape].unit
    assert (memory / unit.format(resumes[2])).exists()
    for step in resumes[1:]:
        assert (training.path / unit.format(step)).exists()


def test_ended_training_leaves_all_on_disk(job, memory):
    training = job("huggingface", every=40)
    training.reshape()
    # The one before the second is whole, whenever the training is killed.
    begun = "checkpoint-*/trainer_state.json"
    wait_until(lambda: len(list(memory.glob(begun))) >= 2, what="two checkpoints")
    training.kill_training()
    training.sidecar.wait_for(lambda state: state.released and state.phase is Phase.FAILED)
    assert (training.path / "metrics.csv").stat().st_size > 0
    whole = list(training.path.glob("checkpoint-*/trainer_state.json"))
    assert whole
    training.sidecar.close()
    assert not memory.exists()


def test_memory_of_a_killed_sidecar_is_not_resumed(job, memory):
    training = job("marker")
    training.reshape()
    training.reshape()
    confirmed = training.resumes()[-1]
    left = memory / "step-999999"
    training.kill_sidecar()
    left.mkdir(parents=True, exist_ok=True)
    (left / ".dljob-complete").write_text("torn")
    training.change()
    assert training.resumes()[-1] == confirmed
    assert not left.exists()


def test_too_small_memory_falls_back_to_disk(job, memory):
    training = job("marker", mebibytes=1)
    training.reshape()
    filler = memory / "filler.bin"
    filler.write_bytes(bytes(2 << 20))
    wait_until(
        lambda: "CheckpointMemoryTooSmall" in training.problems(), what="the problem of its size"
    )
    message = training.problems()["CheckpointMemoryTooSmall"]
    assert "2 MiB" in message
    assert "1 MiB" in message
    training.reshape()
    wait_until((training.path / "metrics.csv").exists, what="a file on the disk")
    assert "CheckpointsNotInMemory" in training.problems()
    training.reshape()
    assert training.tally.saved["confirmed"] == 2
