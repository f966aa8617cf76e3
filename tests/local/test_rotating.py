"""Log rotation: logs are bounded, whole, and still written by processes that have them open."""

import asyncio
import errno
import fcntl
import logging
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dljob.client.local.following import read_lines
from dljob.control.situation.ports import PodKey
from dljob.control.situation.status import Booking
from dljob.core.model import JobId, NodeName
from dljob.local.folders import Folders, older_parts
from dljob.local.pods import rotating
from dljob.local.pods.logtimes import Begin, LogTimes
from dljob.local.pods.rotating import JobLogs, LogLimits, LogRotator, begin, rotate
from tests.local.ups import going, replay

SMALL = LogLimits(largest_bytes=4096, kept_parts=2)
QUICK = LogLimits(largest_bytes=4096, kept_parts=2, look_seconds=0.001)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "n0.log"


def names(path: Path) -> list[str]:
    return sorted(each.name for each in path.parent.iterdir())


def test_a_log_is_not_rotated_while_it_is_short_or_a_reader_has_it(path):
    path.write_bytes(b"x" * 4096)
    assert not rotate(path, SMALL)
    path.write_bytes(b"x" * 5000)
    with path.open("rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        assert not rotate(path, SMALL)
        assert (names(path), path.stat().st_size) == (["n0.log"], 5000)
    assert rotate(path, SMALL)


def test_a_writer_continues_at_the_new_beginning(path):
    with path.open("ab", buffering=0) as writer:
        writer.write(b"a" * 5000 + b"\n")
        assert rotate(path, SMALL)
        writer.write(b"new\n")
    assert path.read_bytes() == b"new\n"
    assert older_parts(path)[-1].read_bytes() == b"a" * 5000 + b"\n"


def test_of_more_parts_than_are_kept_the_oldest_is_forgotten(path):
    # A start that ended in the middle has left this.
    path.with_name("n0.log.unfinished").write_bytes(b"half")
    for letter in (b"a", b"b", b"c", b"d"):
        with path.open("ab") as writer:
            writer.write(letter * 5000)
        assert rotate(path, SMALL)
    assert names(path) == ["n0.log", "n0.log.1", "n0.log.2", "n0.log.deleted"]
    assert [part.read_bytes()[:1] for part in older_parts(path)] == [b"c", b"d"]


def test_output_begins_with_the_amount_that_is_deleted(path):
    def read(lines=None):
        return b"".join(line.text for line in read_lines({"n0": path}, lines))

    for letter, deleted in ((b"a", 0), (b"b", 0), (b"c", 5000), (b"d", 10_000)):
        path.write_bytes(letter * 4999 + b"\n")
        assert rotate(path, SMALL)
        note = b"dljob: the first %d bytes of this output are deleted;" % deleted
        assert read().startswith(note if deleted else b"a" * 4999)
    assert read(1) == b"d" * 4999 + b"\n"


def test_where_no_parts_are_kept_it_is_just_cut(path):
    path.write_bytes(b"x" * 5000)
    assert rotate(path, LogLimits(largest_bytes=4096, kept_parts=0))
    assert names(path) == ["n0.log", "n0.log.deleted"]
    assert path.stat().st_size == 0


def test_of_a_log_that_is_longer_than_a_disk_only_the_end_is_copied(path):
    path.touch()
    os.truncate(path, 1 << 40)
    with path.open("ab") as writer:
        writer.write(b"the end\n")
    assert rotate(path, SMALL)
    (part,) = older_parts(path)
    assert part.stat().st_size == 4096 + rotating.MOST_OVER
    with part.open("rb") as reader:
        reader.seek(-8, os.SEEK_END)
        assert reader.read() == b"the end\n"
    assert path.stat().st_size == 0


def test_lines_written_during_rotation_are_kept(path):
    path.write_bytes(b"x" * 5000)
    turn = begin(path, SMALL)
    assert turn is not None
    with path.open("ab") as writer:
        writer.write(b" end\n")
    assert turn.finish()
    (part,) = older_parts(path)
    assert part.read_bytes() == b"x" * 5000 + b" end\n"
    # Of a log that grows faster than it is copied, little is copied at last.
    path.write_bytes(b"x" * 5000)
    turn = begin(path, SMALL)
    assert turn is not None
    os.truncate(path, 1 << 40)
    assert turn.finish()
    assert older_parts(path)[-1].stat().st_size == 5000 + rotating.MOST_LATE
    assert path.stat().st_size == 0


def test_parts_are_ordered_by_their_numbers_and_nothing_else_is_one(path):
    for name in ("1", "2", "10", "unfinished", "gz"):
        path.with_name(f"n0.log.{name}").touch()
    path.with_name("n00.log.1").touch()
    assert [part.suffix for part in older_parts(path)] == [".10", ".2", ".1"]


def rotate_again(logs, is_enough):
    async def story() -> None:
        task = asyncio.create_task(LogRotator(QUICK, logs, times=LogTimes()).run())
        async with asyncio.timeout(240):
            while not is_enough():
                await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(story())


def test_a_log_that_cannot_be_rotated_or_listed_is_reported_once_and_tried_again(
    path, caplog, monkeypatch
):
    path.write_bytes(b"x" * 5000)
    looks: list[None] = []

    def logs():
        looks.append(None)
        if len(looks) <= 2:
            raise OSError(errno.EMFILE, "Too many open files")
        return [path, path.with_name("gone.log")]

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(os, "sendfile", fail)
        rotate_again(logs, lambda: len(looks) >= 6)
    said = [record.getMessage() for record in caplog.records]
    assert said[1:] == [f"{path} is too long, and cannot be rotated: No space left on device"]
    assert "Too many open files" in said[0] + caplog.text
    assert names(path) == ["n0.log"]
    rotate_again(logs, lambda: names(path) == ["n0.log", "n0.log.1"])


def test_a_copy_that_is_cancelled_leaves_nothing(path, monkeypatch):
    path.write_bytes(b"x" * 5000)
    copies, may_go_on, turns = threading.Event(), threading.Event(), []

    def begin_slowly(*args):
        turns.append(begin(*args))
        copies.set()
        assert may_go_on.wait(240)
        return turns[0]

    async def rotate() -> None:
        rotation = LogRotator(QUICK, lambda: [path], times=LogTimes())
        task = asyncio.create_task(rotation.run())
        assert await asyncio.to_thread(copies.wait, 240)
        task.cancel()
        # It gets the cancellation while the thread still copies.
        await asyncio.sleep(0)
        assert names(path) == ["n0.log", "n0.log.unfinished"]
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    monkeypatch.setattr(rotating, "begin", begin_slowly)
    asyncio.run(rotate())
    assert names(path) == ["n0.log"]
    assert path.stat().st_size == 5000


def test_the_logs_of_a_job_without_pods_are_looked_for_once(tmp_path, monkeypatch):
    folders, job, node = Folders(tmp_path), JobId("a"), NodeName("n0")
    looks, look = [], folders.training_logs

    def note_look(name):
        looks.append(name)
        return look(name)

    monkeypatch.setattr(folders, "training_logs", note_look)
    folders.job(job).mkdir(parents=True)
    log = folders.training_log(PodKey(job, node))
    log.write_bytes(b"x" * 5000)
    entries: Any = {}

    def put(*pods, order=1, booked=0):
        status = SimpleNamespace(pods=pods, booked=booked)
        entries[job] = SimpleNamespace(order=order, status=status)

    logs = JobLogs(folders, lambda: entries, limits=SMALL)
    put(Booking(node, 1), booked=1)
    assert [path.name for path in logs()] == ["n0.log", "sidecar.log"]
    put(booked=1)
    # As long as it is too long, and once more.
    assert ([*logs()], [*logs()]) == ([log], [log])
    log.write_bytes(b"x")
    assert [*logs(), *logs(), *logs()] == []
    assert len(looks) == 3
    # Another job of its name, or the same with a pod since, may have written more.
    put(booked=1, order=2)
    assert [*logs(), *logs()] == []
    put(booked=2, order=2)
    assert [*logs(), *logs()] == []
    assert len(looks) == 5


def test_the_length_of_a_log_is_noted_by_the_clock_of_the_server(path):
    path.write_bytes(b"x" * 10)
    os.utime(path, (2000.0, 2000.0))
    times = LogTimes(lambda: 1000.0)

    async def look() -> None:
        task = asyncio.create_task(LogRotator(QUICK, lambda: [path], times=times).run())
        async with asyncio.timeout(240):
            while times.find(path, 1000.0) is None:
                await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(look())
    assert times.find(path, 1000.0) == Begin(0, 10)


@pytest.mark.processes
def test_a_training_is_followed_over_its_parts(root, monkeypatch):
    monkeypatch.setenv("DLJOB_LOGS_LARGEST_BYTES", "4096")
    monkeypatch.setenv("DLJOB_LOGS_LOOK_SECONDS", "0.05")
    # It trains once its log is followed: where the follower comes late, the first parts are gone. And so slowly
    # that what is kept is written in seconds, for which a follower or the controller may stand still.
    job, followed_now = replay("long", root, iterations=3000, faster=100.0), root / "followed"
    trainer = job["spec"]["template"]["spec"]["containers"][0]
    wait = f'echo ready; until [ -e {followed_now} ]; do sleep 0.05; done; exec "$@"'
    trainer["command"] = ["sh", "-c", wait, "sh", *trainer["command"]]
    with going(root / "state", "--virtual-gpus", 1) as up:
        assert up.submit(job).status == 0
        up.until_phase("long", "Running")
        with up.live("logs", "long", "-f") as live:
            assert live.line() == "ready\n"
            followed_now.touch()
            up.until_phase("long", "Completed")
            followed = live.rest().stdout.splitlines()
        steps = [int(line.removeprefix("step ")) for line in followed]
        # Each time that it was turned over, a line may have come in the instant of the cut.
        assert steps == sorted(set(steps))
        assert len(steps) >= 2990
        assert (steps[0], steps[-1]) == (1, 3000)
        folder = root / "state" / "jobs" / "long"
        suffixes = sorted(path.suffix for path in folder.glob("*.log*"))
        assert suffixes == [".1", ".2", ".3", ".deleted", ".log"]
        # The SideCar has read on; it looks a few times a second.
        assert up.backend.get_job("long")["status"]["progress"]["iteration"] > 2500
        note, *kept = up("logs", "long").stdout.splitlines()
        assert note.startswith("dljob: the first ")
        assert 0 < len(kept) < 3000
        assert followed[-len(kept) :] == kept
        assert up("logs", "long", "--tail", "900").stdout.splitlines() == followed[-900:]
        assert up.end() == 0
