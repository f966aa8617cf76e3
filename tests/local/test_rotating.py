"""Logs that are turned over: bounded, whole, and still written by who has them open."""

import asyncio
import fcntl
import logging
import os
from pathlib import Path

import pytest

from dllocal.folders import older_parts
from dllocal.pods import rotating
from dllocal.pods.logtimes import LogTimes
from dllocal.pods.rotating import (
    LogLimits,
    Rotation,
    begin,
    turn_over,
)
from tests.local.ups import going, replay

SMALL = LogLimits(largest_bytes=4096, kept_parts=2)
QUICK = LogLimits(largest_bytes=4096, kept_parts=2, look_seconds=0.001)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "n0.log"


def names(path: Path) -> list[str]:
    return sorted(each.name for each in path.parent.iterdir())


def test_a_log_is_left_alone_as_long_as_it_is_not_too_long(path):
    path.write_bytes(b"x" * 4096)
    assert not turn_over(path, SMALL)
    assert names(path) == ["n0.log"]


def test_who_writes_goes_on_at_the_new_beginning(path):
    with path.open("ab", buffering=0) as writer:
        writer.write(b"a" * 5000 + b"\n")
        assert turn_over(path, SMALL)
        writer.write(b"new\n")
    assert path.read_bytes() == b"new\n"
    assert older_parts(path)[-1].read_bytes() == b"a" * 5000 + b"\n"


def test_of_more_parts_than_are_kept_the_oldest_is_forgotten(path):
    for letter in (b"a", b"b", b"c", b"d"):
        with path.open("ab") as writer:
            writer.write(letter * 5000)
        assert turn_over(path, SMALL)
    assert names(path) == ["n0.log", "n0.log.1", "n0.log.2"]
    assert [part.read_bytes()[:1] for part in older_parts(path)] == [b"c", b"d"]


def test_it_is_put_off_while_somebody_reads_on(path):
    path.write_bytes(b"x" * 5000)
    with path.open("rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        assert not turn_over(path, SMALL)
        assert (names(path), path.stat().st_size) == (["n0.log"], 5000)
    assert turn_over(path, SMALL)


def test_where_no_parts_are_kept_it_is_just_cut(path):
    path.write_bytes(b"x" * 5000)
    assert turn_over(path, LogLimits(largest_bytes=4096, kept_parts=0))
    assert names(path) == ["n0.log"]
    assert path.stat().st_size == 0


def test_of_a_log_that_is_longer_than_a_disk_only_the_end_is_copied(path):
    path.touch()
    os.truncate(path, 1 << 40)
    with path.open("ab") as writer:
        writer.write(b"the end\n")
    assert turn_over(path, SMALL)
    (part,) = older_parts(path)
    assert part.stat().st_size == 4096 + rotating.MOST_OVER
    with part.open("rb") as reader:
        reader.seek(-8, os.SEEK_END)
        assert reader.read() == b"the end\n"
    assert path.stat().st_size == 0


def test_of_a_log_that_grows_while_it_is_copied_little_is_copied_at_last(path):
    path.write_bytes(b"x" * 5000)
    turn = begin(path, SMALL)
    assert turn is not None
    os.truncate(path, 1 << 40)
    assert turn.finish()
    (part,) = older_parts(path)
    assert part.stat().st_size == 5000 + rotating.MOST_LATE
    assert path.stat().st_size == 0


def test_parts_are_ordered_by_their_numbers_and_nothing_else_is_one(path):
    for name in ("1", "2", "10", "unfinished", "gz"):
        path.with_name(f"n0.log.{name}").touch()
    path.with_name("n00.log.1").touch()
    assert [part.suffix for part in older_parts(path)] == [".10", ".2", ".1"]


def test_what_was_left_unfinished_is_written_over(path):
    path.with_name("n0.log.unfinished").write_bytes(b"half")
    path.write_bytes(b"x" * 5000)
    assert turn_over(path, SMALL)
    assert names(path) == ["n0.log", "n0.log.1"]


def test_what_cannot_be_turned_over_is_told_once_and_keeps_what_it_has(path, caplog, monkeypatch):
    path.write_bytes(b"x" * 5000)

    def fail(*_):
        raise OSError(28, "No space left on device")

    looks: list[None] = []

    def logs():
        looks.append(None)
        return [path, path.with_name("gone.log")]

    async def rotate() -> None:
        task = asyncio.create_task(Rotation(QUICK, logs, LogTimes()).run())
        # However many there were already; when another look begins, the one before is over.
        wanted = len(looks) + 4
        async with asyncio.timeout(60):
            while len(looks) < wanted:
                await asyncio.sleep(0.005)
        task.cancel()

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(os, "sendfile", fail)
        asyncio.run(rotate())
    assert [record.getMessage() for record in caplog.records] == [
        f"{path} is too long, and cannot be rotated: No space left on device"
    ]
    assert names(path) == ["n0.log"]
    asyncio.run(rotate())
    assert names(path) == ["n0.log", "n0.log.1"]


@pytest.mark.parametrize("wrong", [{"largest_bytes": 10}, {"look_seconds": 0.0}])
def test_limits_that_would_turn_logs_over_all_the_time_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LogLimits(**wrong)


@pytest.mark.processes
def test_a_training_is_followed_over_its_parts(root, monkeypatch):
    """The real SideCar reads on, and so does whoever follows the log."""
    monkeypatch.setenv("DLJOB_LOGS_LARGEST_BYTES", "4096")
    monkeypatch.setenv("DLJOB_LOGS_LOOK_SECONDS", "0.05")
    with going(root / "state", "--virtual-gpus", 1) as up:
        assert up.submit(replay("long", root, iterations=3000, faster=400.0)).status == 0
        with up.live("logs", "long", "-f") as live:
            up.until_phase("long", "Completed")
            followed = live.rest().stdout.splitlines()
        steps = [int(line.removeprefix("step ")) for line in followed]
        # Each time that it was turned over, a line may have come in the instant of the cut.
        assert steps == sorted(set(steps))
        assert len(steps) >= 2990
        assert (steps[0], steps[-1]) == (1, 3000)
        folder = root / "state" / "jobs" / "long"
        assert sorted(path.suffix for path in folder.glob("*.log*")) == [".1", ".2", ".3", ".log"]
        # The SideCar has read on; it looks a few times a second.
        assert up.backend.get_job("long")["status"]["progress"]["iteration"] > 2500
        kept = up("logs", "long").stdout.splitlines()
        assert 0 < len(kept) < 3000
        assert followed[-len(kept) :] == kept
        assert up("logs", "long", "--tail", "900").stdout.splitlines() == followed[-900:]
        assert up.end() == 0
