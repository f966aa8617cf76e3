"""Checkpoints of several files are confirmed when they are whole, and nothing goes on from a torn one."""

from __future__ import annotations

import contextlib
import os
import subprocess

import pytest

from dljob_wire.messages import Phase, Saving
from tests.sidecar.reshapes import Job
from tests.sidecar.savers import BYTES, SHAPES

pytestmark = pytest.mark.processes

GAP_SECONDS = 0.3
"""Between two files of one checkpoint: more than two looks, as with large models on real disks."""


@pytest.fixture
def job(tmp_path, token):
    jobs = []

    def begin(shape, **said):
        jobs.append(Job(tmp_path, token, shape, gap=said.pop("gap", GAP_SECONDS), **said))
        return jobs[-1]

    yield begin
    for one in jobs:
        one.sidecar.close()


@pytest.mark.parametrize(
    "shape",
    [pytest.param("huggingface", marks=pytest.mark.story), *sorted({*SHAPES} - {"huggingface"})],
)
def test_what_is_confirmed_is_whole_beside_logs_and_an_open_event_file(job, shape):
    training = job(shape)
    for _ in range(3):
        training.reshape()
    assert training.tally.saved == {"confirmed": 2}, training.tell()
    resumes = training.resumes()
    assert resumes[0] < resumes[1] < resumes[2]
    assert not training.torn()


def test_a_confirmed_checkpoint_that_cannot_be_read_is_remembered_and_the_job_not_trusted(job):
    training = job("several")
    training.reshape()
    training.reshape()
    training.sidecar.stop(training.generation + 1)
    stopped = training.sidecar.wait_for(lambda state: state.phase is Phase.STOPPED)
    assert stopped.change.saving is Saving.CONFIRMED
    before, last = sorted(training.path.glob("step-*"), key=lambda unit: unit.stat().st_mtime_ns)
    (last / "optimizer.bin").write_bytes(b"")
    training.generation += 1
    training.change()
    assert training.resumes()[-1] == int(before.name.partition("-")[2])
    problems = training.problems()
    assert last.name in problems["CheckpointUnreadable"]
    assert last.name in problems["CheckpointsNotTrusted"]
    # From here on this job says that it saves itself, and is not believed; another SideCar knows it.
    training.kill_sidecar()
    training.change()
    training.reshape()
    assert training.tally.saved["failed"] == 1
    assert "CheckpointsNotTrusted" in training.problems()


def test_what_a_full_disk_has_cut_off_is_not_confirmed(job, small_disk):
    # Long enough for a slow machine to save, as this waits for the limit only once.
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
    # A torn checkpoint does not take the room of a new one where room is short.
    (small_disk / "data").unlink()
    training.reshape()
    assert training.tally.saved["confirmed"] == 2, training.tell()


@pytest.fixture
def small_disk(tmp_path):
    """Mount a real disk of half a megabyte, as only root may."""
    folder = tmp_path / "small"
    folder.mkdir()
    how = ["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(folder)]
    if subprocess.run(how, check=False, capture_output=True, timeout=240).returncode:
        pytest.skip("a disk of its own takes root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=240)


def fill(path):
    """Leave no room on the disk but for the beginning of a checkpoint."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    os.truncate(path, path.stat().st_size - BYTES * 3 // 2)
