"""Checkpoints in memory count when they are on the disk, and the memory is never gone on from when it is torn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dljob_wire.messages import Phase
from tests.sidecar.drivers import wait_until
from tests.sidecar.reshapes import Job
from tests.sidecar.savers import SHAPES

pytestmark = pytest.mark.processes

MEMORY = Path("/dev/shm")  # noqa: S108 - it is the file system in memory
NAMED = [shape for shape in SHAPES if shape != "several"]
"""All but the shape that only time completes."""


@pytest.fixture
def memory(token):
    return MEMORY / f"dljob-test-{token}"


@pytest.fixture
def job(tmp_path, token, memory):
    jobs = []

    def begin(shape, *, mebibytes=64, **said):
        fields = {"checkpoint.memory": f"{mebibytes}Mi", "checkpoint.memoryPath": str(memory)}
        said = {"gap": 0.05, "complete": shape, "writes": "-", "more": json.dumps(fields), **said}
        jobs.append(Job(tmp_path, token, shape, **said))
        return jobs[-1]

    yield begin
    for one in jobs:
        one.sidecar.close()


@pytest.mark.parametrize(
    "shape", [pytest.param("marker", marks=pytest.mark.story), *sorted({*NAMED} - {"marker"})]
)
def test_a_checkpoint_in_memory_is_confirmed_when_it_is_on_the_disk(job, memory, shape):
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


def test_a_training_that_ends_by_itself_leaves_all_of_it_on_the_disk_and_no_memory(job, memory):
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


def test_what_a_killed_sidecar_left_in_memory_is_not_gone_on_from(job, memory):
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


def test_memory_that_is_too_small_is_named_with_both_sizes_and_the_next_start_writes_to_the_disk(
    job, memory
):
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
