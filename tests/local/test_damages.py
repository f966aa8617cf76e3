"""
The list of jobs on a faulty disk: after every damage, no decision is forgotten without a message.
"""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from dljob.control.situation.clocks import Stamp
from dljob.control.situation.ports import Fenced
from dljob.control.situation.status import Status
from dljob.control.situation.status_documents import write_status
from dljob.core.model import JobId
from dljob.local.folders import StateError
from dljob.local.jobs.registry import CANCELLED_KEEPING, Registry
from tests.local.stages import job_document

NAMES = [f"job-{number}" for number in range(6)]


def live(path: Path) -> Registry:
    """Have a list as a controller has it after some time, with two epochs and many transactions."""
    Registry.open(path).close()
    registry = Registry.open(path)
    for number, name in enumerate(NAMES):
        entry = registry.submit(job_document(name), 1000.0)
        registry.record({entry.job.id: replace(entry.status, iteration=number)})
    registry.cancel(JobId(NAMES[0]), keep_checkpoints=True)
    registry.submit(job_document("gone"), 1000.0)
    registry.forget(JobId("gone"))
    registry.cordon("n0", 7, "loud")
    return registry


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "removed": lambda _: None,
    "emptied": lambda _: b"",
    "halved": lambda data: data[: len(data) // 2],
    "garbled": lambda data: bytes([1]) * len(data),
}


def damage(path: Path, how: str) -> None:
    data = DAMAGES[how](path.read_bytes())
    path.unlink()
    if data is not None:
        path.write_bytes(data)


@pytest.mark.parametrize("how", DAMAGES)
def test_copy_takes_the_place_of_a_damaged_list(tmp_path, how, caplog):
    path = tmp_path / "jobs.db"
    with closing(live(path)) as registry:
        expected, epoch = dict(registry.entries), registry.epoch
    damage(path, how)
    with closing(Registry.open(path)) as again:
        assert dict(again.entries) == expected
        assert again.keeps_checkpoints(JobId(NAMES[0]))
        assert again.cordons() == {("n0", 7): "loud"}
        assert again.epoch > epoch
        again.submit(job_document("later"), 2000.0)
    # A start that ends before it has read the folders of the jobs leaves that to the next one.
    with closing(Registry.open(path)) as again:
        assert again.is_restored
        again.note_addition()
    with closing(Registry.open(path)) as again:
        assert not again.is_restored
    assert caplog.text.count("its copy of ") == 1
    assert not (tmp_path / "jobs.db.copy").stat().st_mode & 0o077


@pytest.mark.parametrize("how", DAMAGES)
def test_no_controller_begins_without_a_list_and_a_copy(tmp_path, how):
    path = tmp_path / "jobs.db"
    live(path).close()
    for damaged in ("jobs.db", "jobs.db.copy"):
        damage(tmp_path / damaged, "garbled" if damaged == "jobs.db" else how)
    with pytest.raises(StateError, match="put a copy of it back, or move both away") as refused:
        Registry.open(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("how", DAMAGES)
def test_rollback_journal_of_a_finished_change_does_not_matter(tmp_path, how):
    registry = live(tmp_path / "jobs.db")
    expected = dict(registry.entries)
    registry._file.db.close()
    damage(tmp_path / "jobs.db-journal", how)
    with closing(Registry.open(tmp_path / "jobs.db")) as again:
        assert dict(again.entries) == expected
        assert not again.is_restored


# --- files of version 4


def write_version_4(path: Path, *, revision: int, last: int) -> None:
    document, status = json.dumps(job_document("old")), json.dumps(write_status(Status()))
    job = {"order": 0, "document": document, "status": status, "spec_generation": 3, "origin": ""}
    of_list = {"epoch": 7, "reading": '["", 0.0, 0.0]', "hold team": "full", "n0/7": "loud"}
    values = {"old": {**job, "cancelled": CANCELLED_KEEPING}, "": of_list}
    cells = [(name, *cell) for name, each in values.items() for cell in each.items()]
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute('CREATE TABLE cells (name, "column", value, PRIMARY KEY (name, "column"))')
        db.executemany("INSERT INTO cells VALUES (?, ?, ?)", cells)
        db.execute("CREATE TABLE seal AS SELECT ? AS revision, 'x' AS seal", (revision,))
        db.execute("PRAGMA user_version = 4")
    lines = [f'checksum {{"revision": {number}}}' for number in (1, last)]
    path.with_name("jobs.db.journal").write_text("\n".join([*lines, "unfinis"]))
    path.with_name("reserve").write_bytes(bytes(100))
    path.with_name("reserved-inodes").mkdir()


@pytest.mark.parametrize("last", [4, 5])
def test_list_of_version_4_is_upgraded(tmp_path, last):
    path = tmp_path / "jobs.db"
    write_version_4(path, revision=4, last=last)
    with closing(Registry.open(path)) as registry:
        (entry,) = registry.entries.values()
        assert (entry.job.id, entry.spec_generation, entry.problem) == ("old", 3, "")
        assert registry.keeps_checkpoints(entry.job.id)
        assert registry.epoch == 8
        assert registry.cordons() == {("n0", 7): "loud"}
        assert registry.holds == {"team": "full"}
    left = sorted(each.name for each in tmp_path.iterdir())
    assert left == ["jobs.db", "jobs.db-journal", "jobs.db.copy"]


@pytest.mark.parametrize("lost", [False, True])
def test_list_of_version_4_that_lacks_changes_is_left_to_version_4(tmp_path, lost):
    path = tmp_path / "jobs.db"
    write_version_4(path, revision=4, last=6)
    if lost:
        path.unlink()
    for _ in range(2):
        with pytest.raises(StateError, match=r"start dljob 0\.1\.0 there once, which restores it"):
            Registry.open(path)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == ((0 if lost else 4),)


# --- other controllers, and the clock


def test_a_controller_whose_list_was_replaced_by_another_ends(tmp_path):
    path = tmp_path / "jobs.db"
    with closing(live(path)) as deposed:
        path.unlink()
        with closing(Registry.open(path)), pytest.raises(Fenced):
            deposed.submit(job_document("late"), 1000.0)


@pytest.mark.parametrize(("step", "told"), [(-3600.0, "back"), (3600.0, "forward")])
def test_recorded_times_follow_a_clock_that_was_set_between_two_controllers(
    tmp_path, step, told, monkeypatch, caplog
):
    path, now = tmp_path / "jobs.db", 1_000_000.0
    stamps = iter([Stamp("boot", 100.0), Stamp("boot", 150.0)])
    monkeypatch.setattr(Stamp, "now", classmethod(lambda cls: next(stamps)))
    with closing(Registry.open(path, clock=lambda: now)) as registry:
        registry.submit(job_document("job"), now)
    with closing(Registry.open(path, clock=lambda: now + 50.0 + step)) as registry:
        assert registry.entries[JobId("job")].status.submitted_at == now + step
    assert f"was set {told} by 3600 s" in caplog.text
