"""The files in a pod's folder, damaged in every way: the damage affects that pod alone."""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dljob.control.situation.clocks import Stamp
from dljob.control.situation.ports import PodPhase
from dljob.local.folders import Folders
from dljob.local.pods.pod_folders import BookedPod, PodFolder, find_sidecars
from dljob.local.pods.pod_states import PodTimes
from dljob_wire.codec import encode_left
from dljob_wire.messages import Phase as SideCarPhase
from dljob_wire.messages import State
from tests.chaos.processes import parent
from tests.local.test_pods import BOOKING, KEY, live_through, place


def write(text: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(text)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": Path.touch,
    "garbage": write(b"\xff\x00\xfe"),
    "words": write(b"not a number at all\n"),
    "infinite": write(b"inf inf inf\n"),
    "long": write(b"9" * 100_000),
    "negative": write(b"-1 12\n"),
    "folder": Path.mkdir,
    "fifo": os.mkfifo,
    "link": lambda path: path.symlink_to("/nothing/there"),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "removed": lambda _: None,
}
"""What a user puts in the place of a pod's file."""


@pytest.mark.processes
@pytest.mark.parametrize("name", ["launched", "pid", "alive"])
def test_a_damaged_file_of_a_pod_that_lives_is_survived_and_the_pod_lives_on(tmp_path, name):
    async def story() -> None:
        with place(tmp_path, PodTimes()) as there:
            there.pods.launch(there.entry, BOOKING)
            await there.until(PodPhase.UP)
            folder = there.folders.pod(KEY, BOOKING.serial)
            pid = PodFolder(folder).process()
            assert pid is not None
            kept = (folder / name).rename(folder / "kept")
            # As a new controller, which knows nothing of the process but what is written and what lives.
            children, there.pods._processes._children = there.pods._processes._children, {}
            for what, damage in DAMAGES.items():
                damage(folder / name)
                seen = there.look()
                if (name, what) == ("launched", "removed"):
                    # That it was launched is not known: asked for again, no second one is started.
                    there.pods.launch(there.entry, BOOKING)
                    seen = there.look()
                assert seen.phase in (PodPhase.UP, PodPhase.PENDING, PodPhase.LOST), what
                assert Path(f"/proc/{pid}").exists(), what
                if (folder / name).is_dir():
                    (folder / name).rmdir()
                else:
                    (folder / name).unlink(missing_ok=True)
            kept.rename(folder / name)
            found = find_sidecars(there.folders.pod_socket(KEY, BOOKING.serial))
            # All others are what the first one has started.
            # One that has ended since has no parent.
            assert [each for each in found if parent(each) not in (0, *found)] == [pid]
            there.pods._processes._children = children
            assert there.look().phase is PodPhase.UP

    live_through(story)


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_that_a_sidecar_left_behind_says_nothing(tmp_path, name):
    pod = BookedPod(Folders(tmp_path), KEY.job, BOOKING)
    pod.socket.parent.mkdir(parents=True)
    file = pod.socket.with_name(f"{pod.socket.name}.left")
    state = State("x", 9, SideCarPhase.EXITED, released=True, held_generation=5)
    file.write_bytes(encode_left(state))
    assert pod.left() == state.left_behind()
    file.unlink()
    DAMAGES[name](file)
    assert pod.left() is None


def test_unreadable_pod_hides_no_other(tmp_path):
    async def story() -> None:
        with place(tmp_path, PodTimes()) as there:
            folder = there.folders.pod(KEY, BOOKING.serial)
            folder.parent.mkdir(parents=True)
            folder.write_text("no folder")
            assert there.look().phase in (PodPhase.PENDING, PodPhase.LOST)
            folder.unlink()
        await asyncio.sleep(0)

    live_through(story)


def test_how_long_a_start_takes_is_counted_by_no_clock_that_can_be_set(tmp_path, monkeypatch):
    folder = PodFolder(tmp_path / "pod")
    folder.make()
    folder.note_launch(0.0)
    assert folder.seconds_to_start() == 0.0
    folder.note_launch(1000.0)
    real = time.time
    for step in (-3600.0, 3600.0):
        monkeypatch.setattr(time, "time", lambda step=step: real() + step)
        assert 900.0 < folder.seconds_to_start() <= 1000.0
        assert 900.0 < folder.seconds_to_end(1000.0) <= 1000.0
    # After another boot of the machine it is over.
    monkeypatch.setattr(Stamp, "now", classmethod(lambda cls: cls("another", 1.0)))
    assert folder.seconds_to_start() == 0.0
