"""Checkpoints of several files are confirmed when they are whole, and torn ones are never resumed."""

from __future__ import annotations

import contextlib
import os
import subprocess
from functools import partial

import pytest

from dljob_wire.messages import Phase, Saving
from tests.sidecar.savers import BYTES, SHAPES

pytestmark = pytest.mark.processes

GAP_SECONDS = 0.3
"""Between two files of a checkpoint: longer than two looks, as with large models."""


@pytest.fixture
def job(make_job):
    return partial(make_job, gap=GAP_SECONDS)


@pytest.mark.parametrize(
    "shape",
    [pytest.param("huggingface", marks=pytest.mark.story), *sorted({*SHAPES} - {"huggingface"})],
)
def test_confirmed_checkpoint_is_whole(job, shape):
    training = job(shape)
    for _ in range(3):
        training.reshape()
    assert training.tally.saved == {"confirmed": 2}, training.tell()
    resumes = training.resumes()
    assert resumes[0] < resumes[1] < resumes[2]
    assert not training.torn()


def test_unreadable_confirmed_checkpoint_costs_trust(job):
    training = job("several")
    training.reshape()
    training.reshape()
    training.sidecar.stop(training.generation + 1)
    stopped = training.sidecar.wait_phase(Phase.STOPPED)
    assert stopped.change.saving is Saving.CONFIRMED
    before, last = sorted(training.path.glob("step-*"), key=lambda unit: unit.stat().st_mtime_ns)
    (last / "optimizer.bin").write_bytes(b"")
    training.generation += 1
    training.change()
    assert training.resumes()[-1] == int(before.name.partition("-")[2])
    problems = training.problems()
    assert last.name in problems["CheckpointUnreadable"]
    assert last.name in problems["CheckpointsNotTrusted"]
    # From here on the checkpoints are not trusted, also by another SideCar.
    training.kill_sidecar()
    training.change()
    training.reshape()
    assert training.tally.saved["failed"] == 1
    assert "CheckpointsNotTrusted" in training.problems()


def test_checkpoint_cut_by_a_full_disk_is_not_confirmed(job, small_disk):
    # Long enough for a slow machine; the test waits for this limit only once.
    training = job("several", path=str(small_disk), seconds="20", gap=0.05)
    for _ in range(2):
        training.reshape()
    assert training.tally.saved == {"confirmed": 1}, training.tell()
    whole = training.resumes()[-1]
    fill(small_disk / "data")
    training.reshape()
    assert training.tally.saved == {"confirmed": 1, "timedOut": 1}, training.tell()
    assert training.read("failed")
    assert training.resumes()[-1] == whole
    assert not training.torn()
    # A torn checkpoint does not occupy the space of a new one.
    (small_disk / "data").unlink()
    training.reshape()
    assert training.tally.saved["confirmed"] == 2, training.tell()


@pytest.fixture
def small_disk(tmp_path):
    """Mount a disk of half a megabyte, which needs root."""
    folder = tmp_path / "small"
    folder.mkdir()
    how = ["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(folder)]
    if subprocess.run(how, check=False, capture_output=True, timeout=240).returncode:
        pytest.skip("a disk of its own takes root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=240)


def fill(path):
    """Fill the disk except for the beginning of a checkpoint."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    os.truncate(path, path.stat().st_size - BYTES * 3 // 2)
