"""A file system that does not answer holds up nothing but what is looked for on it."""

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

SAVING = {"checkpoint.signal": "SIGUSR1", "checkpoint.confirm": "file"}


@pytest.fixture
def begin(start, tmp_path, token):
    """Start a SideCar that trains, with all that it looks at in a folder that may hang."""
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
        sidecar.wait_ready()
        sidecar.run(1)
        sidecar.wait_for(lambda state: state.phase is Phase.RUNNING)
        wait_until(lambda: "ready" in (folder / "log").read_text(), what="the training")
        return sidecar, folder, sign

    yield begin_training
    sign.unlink(missing_ok=True)


def names(state):
    return {problem.name for problem in state.problems}


@pytest.mark.processes
def test_the_state_is_told_while_log_and_progress_cannot_be_read(begin, token, tmp_path):
    progress = tmp_path / token / "progress"
    sidecar, _, sign = begin({"progress.file": str(progress)})
    sign.touch()
    state = sidecar.wait_for(lambda s: {"LogUnreadable", "ProgressFileUnreadable"} <= names(s))
    assert state.phase is Phase.RUNNING
    # Everything else goes on, a change among it.
    sidecar.run(2)
    sidecar.wait_for(lambda state: state.phase is Phase.RUNNING and state.held_generation == 2)
    sign.unlink()
    sidecar.wait_for(lambda state: not state.problems)
    progress.write_text('{"iteration": 7}\n')
    sidecar.wait_for(lambda state: state.progress.iteration == 7)


@pytest.mark.processes
def test_a_stop_is_not_held_up_by_the_checkpoints_path(begin, token, tmp_path):
    path = tmp_path / token / "checkpoints"
    # Long after the path is said not to answer, so that a slow machine hears of that before the stop.
    sidecar, folder, sign = begin(
        {**SAVING, "checkpoint.path": str(path), "checkpoint.timeoutSeconds": 25}
    )
    sign.touch()
    sidecar.stop(2)
    told = sidecar.wait_for(lambda s: "CheckpointPathDoesNotAnswer" in names(s))
    assert told.phase is Phase.CHECKPOINTING
    stopped = sidecar.wait_for(lambda state: state.phase is Phase.STOPPED)
    assert stopped.change.saving is Saving.TIMED_OUT
    sign.unlink()
    sidecar.run(3)
    sidecar.wait_for(lambda state: state.phase is Phase.RUNNING)
    wait_until(lambda: (folder / "log").read_text().count("ready") == 2, what="the training")
    sidecar.stop(4)
    saved = sidecar.wait_for(lambda state: state.phase is Phase.STOPPED)
    assert saved.change.saving is Saving.CONFIRMED
    assert not saved.problems


@pytest.mark.processes
def test_a_path_with_too_much_in_it_is_named(begin, token, tmp_path):
    path = tmp_path / token / "checkpoints"
    for number in range(checkpoint_files.MOST_FILES + 1):
        os.close(os.open(path / str(number), os.O_CREAT | os.O_WRONLY))
    # To look at all these files takes seconds on a busy machine.
    sidecar, _, _ = begin({**SAVING, "checkpoint.path": str(path)})
    sidecar.stop(2)
    sidecar.wait_for(lambda s: "CheckpointPathTooLarge" in names(s))


# --- the file thread ----------------------------------------------------------------------------


@lived
async def test_a_file_thread_that_hangs_holds_up_nobody_for_long():
    file_thread = FileThread("test")
    file_thread.patience_seconds = 0.2
    gate, heard = threading.Event(), asyncio.get_running_loop().create_future()
    assert file_thread.send(
        partial(gate.wait, LIMIT_SECONDS), lambda _, took: heard.set_result(took)
    )
    # Once it is waited for, and then no more.
    assert not any(file_thread.run(lambda: None, limit_seconds=0.3) for _ in range(1000))
    is_lost = [file_thread.is_lost]
    assert not file_thread.send(lambda: None, lambda *_: None)
    gate.set()
    assert await heard > file_thread.patience_seconds
    while not file_thread.run(lambda: None, limit_seconds=LIMIT_SECONDS):
        await asyncio.sleep(0.01)
    assert [*is_lost, file_thread.is_lost] == [True, False]
    file_thread.close()


def test_a_look_that_fails_is_the_end_of_nothing(caplog):
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


# --- what is news -------------------------------------------------------------------------


def look(path):
    return take_snapshot(str(path))


def find_news(path, before):
    """Return what is new and no log and not unfinished."""
    return [name for name in look(path).news_after(before) if not is_noise(name, ())]


def test_a_change_that_shows_neither_in_size_nor_in_time_is_news(tmp_path):
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
    # So is one that was written before, and is renamed over it.
    made = tmp_path / "made"
    made.write_text("new")
    os.utime(made, ns=(1, 1))
    before = look(path)
    made.rename(latest)
    assert find_news(path, before)
    # That another name of an old checkpoint goes is none.
    (path / "other").hardlink_to(latest)
    before = look(path)
    latest.unlink()
    assert not find_news(path, before)


def test_what_waits_to_be_renamed_is_no_news_before_it_is(tmp_path):
    before = look(tmp_path)
    for name in ("ckpt.tmp", "tmp-step-5", "x.orbax-checkpoint-tmp-12", "ckpt.pt.part", "ckpt~"):
        (tmp_path / name).write_text("whole, and not yet renamed")
    (tmp_path / ".tmp").mkdir()
    (tmp_path / ".tmp" / "weights").write_text("whole")
    assert not find_news(tmp_path, before)
    (tmp_path / "ckpt.tmp").rename(tmp_path / "template.pt")
    assert find_news(tmp_path, before)
