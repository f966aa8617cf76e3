"""Obstacles to copies of checkpoints between memory and disk."""

from __future__ import annotations

import asyncio
import shutil
import threading
from functools import partial

import pytest

from dljob_sidecar.checkpoints import checkpoint_files
from dljob_sidecar.checkpoints.checkpoint_files import Mark, Snapshot, take_snapshot
from dljob_sidecar.checkpoints.copying import MAKING, REPLACED, CannotCopy, _replace, copy
from dljob_sidecar.checkpoints.memory.cache import MemoryCache
from dljob_sidecar.checkpoints.memory.writing_out import Writer
from dljob_sidecar.observing.file_threads import FileThread
from dljob_wire.checkpoints import MARKER, Checkpoint, Complete
from tests.sidecar.clients import live_through

LIMIT_S = 240.0
BYTES = 4 << 20


class Place:
    """A folder on disk, one in memory, and checkpoints in them."""

    def __init__(self, folder):
        self.disk, self.here = folder / "disk", folder / "memory"
        self.disk.mkdir()
        self.saving = Checkpoint(
            path=str(self.disk),
            files="step-*",
            complete=Complete.MARKER,
            timeout_seconds=LIMIT_S,
            memory_mebibytes=1 << 10,
            memory_path=str(self.here),
        )
        self.memory = MemoryCache(self.saving, lambda: -1)

    def prepare(self):
        return self.memory.prepare(is_alone=True, wanted=lambda: True)

    def save(self, folder, name, *, size=1):
        unit = folder / name
        unit.mkdir()
        (unit / "model.bin").write_bytes(bytes(size))
        (unit / MARKER).write_text("whole")

    def files_of(self, name) -> dict[str, Mark]:
        files = take_snapshot(str(self.here)).files
        return {each: mark for each, mark in files.items() if each.startswith(f"{name}/")}


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


@pytest.fixture
def few(monkeypatch):
    """Lower the largest number of files."""
    monkeypatch.setattr(checkpoint_files, "MOST_FILES", 50)

    def litter(folder):
        folder.mkdir()
        for number in range(50):
            (folder / f"{number}.txt").touch()

    return litter


def test_too_many_files_on_disk_disable_memory(place, few):
    place.save(place.disk, "step-1")
    few(place.disk / "many")
    prepared = place.prepare()
    # The training resumes from the disk.
    assert not prepared.is_in_memory
    assert "holds more than 50 files" in prepared.fault


def test_too_many_files_in_memory_copy_nothing(place, few):
    place.prepare()
    for number in (1, 2):
        place.save(place.here, f"step-{number}")
        assert place.memory.write_out_newest((), lambda: True).unit == f"step-{number}"
    files = place.files_of("step-2")
    few(place.here / "step-2" / "many")
    few(place.here / "many")
    written = place.memory.write_out("step-2", files, lambda: True)
    assert "holds more than 50 files" in written.fault
    assert place.memory.write_out_newest((), lambda: True).fault == written.fault
    assert {path.name for path in place.disk.iterdir()} == {"step-1", "step-2"}
    assert len([*(place.disk / "step-2").iterdir()]) == 2


def test_unlistable_folder_gives_no_torn_copy(place, monkeypatch):
    place.prepare()
    shards = place.here / "step-1" / "shards"
    shards.mkdir(parents=True)
    (shards / "0.bin").write_bytes(b"x")
    (shards.parent / MARKER).write_text("whole")
    whole = checkpoint_files.list_folder

    def without_shards(path):
        if path.rstrip("/").endswith("shards"):
            raise OSError(24, "Too many open files")
        return whole(path)

    with monkeypatch.context() as fault:
        fault.setattr(checkpoint_files, "list_folder", without_shards)
        written = place.memory.write_out_newest((), lambda: True)
    assert "Too many open files" in written.fault
    assert not (place.disk / "step-1").exists()
    assert place.memory.write_out_newest((), lambda: True).unit == "step-1"
    assert (place.disk / "step-1" / "shards" / "0.bin").exists()


def test_cancelled_copy_gets_no_name(place):
    place.save(place.disk.parent, "step-1")
    source = take_snapshot(str(place.disk.parent))
    questions: list[None] = []

    def goes_on():
        questions.append(None)
        return len(questions) <= 2  # Its two files; then it is synced.

    with pytest.raises(CannotCopy, match="a newer one is"):
        copy(source, "step-1", root=str(place.disk), goes_on=goes_on, is_synced=True)
    assert not [*place.disk.iterdir()]


def test_too_deep_checkpoint_is_not_copied(place):
    place.save(place.here.parent, "step-1")
    known = take_snapshot(str(place.here.parent))
    (mark, *_) = known.files.values()
    deep = Snapshot(known.root, {f"step-1/{'d/' * 1500}model.bin": mark}, is_whole=True)
    with pytest.raises(CannotCopy, match="its folders are too deep"):
        copy(deep, "step-1", root=str(place.disk), goes_on=lambda: True, is_synced=True)
    assert not [*place.disk.iterdir()]


def test_missing_replacement_keeps_the_old_checkpoint(place):
    place.save(place.disk, "step-1")
    with pytest.raises(FileNotFoundError):
        _replace(f"{place.disk}/step-1{MAKING}", f"{place.disk}/step-1")
    assert [path.name for path in place.disk.iterdir()] == ["step-1"]
    assert (place.disk / "step-1" / MARKER).exists()


def test_late_look_before_a_start_changes_nothing(place):
    """The start did not wait for the look, and may have written new files."""
    place.prepare()
    for number in (1, 2):
        place.save(place.here, f"step-{number}")
        assert place.memory.write_out_newest((), lambda: True).unit == f"step-{number}"
    shutil.rmtree(place.here / "step-1")
    (place.here / "metrics.csv").touch()
    (place.disk / "metrics.csv").write_text("step,loss")
    cut_off = [f"step-3{REPLACED}", f"step-4{MAKING}"]
    for name in cut_off:
        place.save(place.disk, name)
    place.memory.prepare(is_alone=True, wanted=lambda: False)
    found = {path.name for path in place.disk.iterdir()}
    assert found == {"metrics.csv", "step-1", "step-2", *cut_off}
    assert (place.disk / "metrics.csv").read_text() == "step,loss"
    place.prepare()
    # A look in time restores an interrupted replacement.
    assert (place.disk / "step-3").exists()


async def answer_at_the_end(place, *, is_thread_busy):
    """End all processes while a checkpoint is copied to disk; return the fault and the problems."""
    ledger_thread, gate = FileThread("ledger"), threading.Event()
    problems = []
    writer = Writer(
        place.memory,
        ledger_thread,
        patience_seconds=LIMIT_S,
        on_problem=lambda name, message: problems.append((name, message)),
    )
    heard = asyncio.get_running_loop().create_future()
    try:
        prepared = asyncio.get_running_loop().create_future()
        ledger_thread.send(place.prepare, lambda found, _: prepared.set_result(found))
        assert (await prepared).is_in_memory
        place.save(place.here, "step-1", size=BYTES)
        writer.begin(lambda: ())
        if is_thread_busy:
            assert ledger_thread.send(partial(gate.wait, LIMIT_S), lambda *_: None)
        writer.secure("step-1", place.files_of("step-1"), heard.set_result)
        assert writer.write_the_rest()
        gate.set()
        fault = await asyncio.wait_for(heard, LIMIT_S)
        async with asyncio.timeout(LIMIT_S):
            while writer.write_the_rest():
                await asyncio.sleep(0.01)
    finally:
        gate.set()
        writer.stop()
        ledger_thread.close()
    return fault, problems


@pytest.mark.parametrize("is_thread_busy", [False, True])
def test_answer_is_written_once_if_processes_end(place, is_thread_busy):
    fault, problems = live_through(answer_at_the_end(place, is_thread_busy=is_thread_busy))
    assert (fault, problems) == ("", [])
    assert (place.disk / "step-1" / "model.bin").stat().st_size == BYTES
