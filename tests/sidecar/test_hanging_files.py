"""A hanging file system delays only the reads from it."""

from __future__ import annotations

import asyncio
import os
import threading
from functools import partial

import pytest

from dljob_sidecar.checkpoints import checkpoint_files
from dljob_sidecar.checkpoints.checkpoint_files import take_snapshot
from dljob_sidecar.checkpoints.recognizing.signs import is_noise
from dljob_sidecar.observing.file_threads import FileThread
from dljob_wire.messages import Phase, Saving
from tests.sidecar.clients import live_through, lived
from tests.sidecar.drivers import HERE, LIMIT_SECONDS, wait_until
from tests.sidecar.sidecars import problem_names

SAVING = {"checkpoint.signal": "SIGUSR1", "checkpoint.confirm": "file"}


@pytest.fixture
def begin(start, tmp_path, token):
    """Start a SideCar that trains, with all of its files in a folder that may hang."""
    folder = tmp_path / token
    folder.mkdir()
    (folder / "checkpoints").mkdir()
    sign = tmp_path / f"{token}.hang"

    def begin_training(options):
        sidecar = start(
            f"save={folder / 'checkpoints' / 'latest'}",
            program=(str(HERE / "hanging.py"), str(folder)),
            options={"logFile": str(folder / "log"), "pollSeconds": 0.2, **options},
        )
        sidecar.train(1)
        wait_until(lambda: "ready" in (folder / "log").read_text(), what="the training")
        return sidecar, folder, sign

    yield begin_training
    sign.unlink(missing_ok=True)


@pytest.mark.processes
def test_state_answers_while_files_hang(begin, token, tmp_path):
    progress = tmp_path / token / "progress"
    sidecar, _, sign = begin({"progress.file": str(progress)})
    sign.touch()
    state = sidecar.wait_for(
        lambda s: {"LogUnreadable", "ProgressFileUnreadable"} <= problem_names(s)
    )
    assert state.phase is Phase.RUNNING
    # A change is still possible.
    sidecar.run(2)
    sidecar.wait_running(2)
    sign.unlink()
    sidecar.wait_for(lambda state: not state.problems)
    progress.write_text('{"iteration": 7}\n')
    sidecar.wait_for(lambda state: state.progress.iteration == 7)


@pytest.mark.processes
def test_stop_times_out_if_the_checkpoint_path_hangs(begin, token, tmp_path):
    path = tmp_path / token / "checkpoints"
    # Long enough that the problem is reported before the timeout.
    sidecar, folder, sign = begin(
        {**SAVING, "checkpoint.path": str(path), "checkpoint.timeoutSeconds": 25}
    )
    sign.touch()
    sidecar.stop(2)
    waiting = sidecar.wait_for(lambda s: "CheckpointPathDoesNotAnswer" in problem_names(s))
    assert waiting.phase is Phase.CHECKPOINTING
    stopped = sidecar.wait_phase(Phase.STOPPED)
    assert stopped.change.saving is Saving.TIMED_OUT
    sign.unlink()
    sidecar.train(3)
    wait_until(lambda: (folder / "log").read_text().count("ready") == 2, what="the training")
    sidecar.stop(4)
    saved = sidecar.wait_phase(Phase.STOPPED)
    assert saved.change.saving is Saving.CONFIRMED
    assert not saved.problems


@pytest.mark.processes
def test_checkpoint_path_with_too_many_files_is_reported(begin, token, tmp_path):
    path = tmp_path / token / "checkpoints"
    for number in range(checkpoint_files.MOST_FILES + 1):
        os.close(os.open(path / str(number), os.O_CREAT | os.O_WRONLY))
    sidecar, _, _ = begin({**SAVING, "checkpoint.path": str(path)})
    sidecar.stop(2)
    sidecar.wait_for(lambda s: "CheckpointPathTooLarge" in problem_names(s))


@lived
async def test_hanging_file_thread_delays_no_caller():
    file_thread = FileThread("test")
    file_thread.patience_seconds = 0.2
    gate, heard = threading.Event(), asyncio.get_running_loop().create_future()
    assert file_thread.send(
        partial(gate.wait, LIMIT_SECONDS), lambda _, took: heard.set_result(took)
    )
    # Only the first call waits.
    assert not any(file_thread.run(lambda: None, limit_seconds=0.3) for _ in range(1000))
    is_lost = [file_thread.is_lost]
    assert not file_thread.send(lambda: None, lambda *_: None)
    gate.set()
    assert await heard > file_thread.patience_seconds
    while not file_thread.run(lambda: None, limit_seconds=LIMIT_SECONDS):
        await asyncio.sleep(0.01)
    assert [*is_lost, file_thread.is_lost] == [True, False]
    file_thread.close()


def test_failing_look_does_not_end_the_thread(caplog):
    async def story():
        file_thread = FileThread("test")

        def fail():
            raise ValueError("as no look should")

        assert file_thread.send(fail, lambda *_: None)
        found = asyncio.get_running_loop().create_future()
        while not file_thread.send(lambda: 7, lambda what, _: found.set_result(what)):
            await asyncio.sleep(0.01)
        assert await asyncio.wait_for(found, LIMIT_SECONDS) == 7
        file_thread.close()

    live_through(story())
    assert "as no look should" in caplog.text


def look(path):
    return take_snapshot(str(path))


def find_news(path, before):
    """Return the new files that are neither logs nor temporary."""
    return [name for name in look(path).news_after(before) if not is_noise(name, ())]


def test_change_without_new_size_or_time_is_found(tmp_path):
    (tmp_path / "real").mkdir()
    path, latest = tmp_path / "path", tmp_path / "real" / "latest"
    # A path that is a link is followed.
    path.symlink_to("real")
    latest.write_text("old")
    os.utime(latest, ns=(1, 1))
    before = look(path)
    latest.write_text("new")
    os.utime(latest, ns=(1, 1))
    assert find_news(path, before)
    # An older file that is renamed over it is new as well.
    made = tmp_path / "made"
    made.write_text("new")
    os.utime(made, ns=(1, 1))
    before = look(path)
    made.rename(latest)
    assert find_news(path, before)
    # Removing another name of an old checkpoint is no change.
    (path / "other").hardlink_to(latest)
    before = look(path)
    latest.unlink()
    assert not find_news(path, before)


def test_temporary_file_counts_after_its_rename(tmp_path):
    before = look(tmp_path)
    for name in ("ckpt.tmp", "tmp-step-5", "x.orbax-checkpoint-tmp-12", "ckpt.pt.part", "ckpt~"):
        (tmp_path / name).write_text("whole, and not yet renamed")
    (tmp_path / ".tmp").mkdir()
    (tmp_path / ".tmp" / "weights").write_text("whole")
    assert not find_news(tmp_path, before)
    (tmp_path / "ckpt.tmp").rename(tmp_path / "template.pt")
    assert find_news(tmp_path, before)
