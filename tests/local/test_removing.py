"""Folders of forgotten jobs: renamed at once, removed in a thread, and reported if that fails."""

import asyncio
import os
import resource
import shutil
import threading
import time
from pathlib import Path

from dljob.local.files.tree_removal import MOST_LEVELS, remove_tree
from dljob.local.folders import IN_MEMORY, Folders
from dljob.local.pods import removing
from dljob.local.pods.launching import LaunchCommands
from dljob.local.pods.processes import Pods
from dljob.local.pods.removing import PREFIX, Remover
from dljob.local.pods.watching import PodWatch
from dljob.local.state_folder import make_folders

LONGEST_S = 240.0
MARK = "0123456789abcdef"


class Heard:
    """Takes what could not be removed, and holds the thread until it may go on."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.is_held = threading.Event()
        self.may_go_on = threading.Event()

    def __call__(self, _job: str, message: str) -> None:
        self.told.append(message)
        self.is_held.set()
        self.may_go_on.wait(LONGEST_S)


def make(folder: Path) -> Path:
    (folder / "step-1").mkdir(parents=True)
    (folder / "step-1" / "model.pt").write_text("x")
    return folder


def left_in(folder: Path) -> list[Path]:
    return [*folder.glob(f"{PREFIX}*")]


def wait_until_removed(remover: Remover, base: Path, heard: Heard) -> None:
    """
    The remover works in order: its message about a file, which is no folder, follows all removals
    before.
    """
    heard.is_held.clear()
    (base / f"{PREFIX}last").write_text("no folder")
    remover.sweep([base])
    assert heard.is_held.wait(LONGEST_S)


def test_a_folder_is_gone_at_once_while_its_contents_are_still_removed(tmp_path):
    heard = Heard()
    remover = Remover(heard, mark=MARK)
    unremovable = tmp_path / f"{PREFIX}odd"
    unremovable.write_text("is no folder")
    remover.sweep([tmp_path / "missing", tmp_path])
    assert heard.is_held.wait(LONGEST_S)
    assert heard.told == [
        f"{unremovable} cannot be removed ({unremovable}: Not a directory); remove it by hand"
    ]

    # While the thread still removes the old folder, a namesake begins with an empty one.
    folder = make(tmp_path / "job")
    remover.remove("job", folder)
    assert not folder.exists()
    folder.mkdir()
    unremovable.unlink()
    (waiting,) = left_in(tmp_path)
    assert (waiting / "step-1" / "model.pt").exists()
    heard.may_go_on.set()
    wait_until_removed(remover, tmp_path, heard)
    assert (folder.exists(), waiting.exists()) == (True, False)


def test_a_folder_that_vanishes_keeps_no_other_from_being_removed(tmp_path, monkeypatch):
    heard = Heard()
    heard.may_go_on.set()
    left = [make(tmp_path / f"{PREFIX}{number}") for number in range(3)]
    look = Path.lstat

    def look_late(path: Path) -> os.stat_result:
        if path == left[0]:
            shutil.rmtree(path, ignore_errors=True)
        return look(path)

    monkeypatch.setattr(Path, "glob", lambda *_: iter(left))
    monkeypatch.setattr(Path, "lstat", look_late)
    remover = Remover(heard, mark=MARK)
    remover.sweep([tmp_path])
    monkeypatch.undo()
    end = time.monotonic() + LONGEST_S
    while any(folder.exists() for folder in left):
        assert time.monotonic() < end, "not all are removed"
        time.sleep(0.01)


def test_target_of_a_link_stays(tmp_path):
    heard = Heard()
    heard.may_go_on.set()
    precious = make(tmp_path / "precious")
    (tmp_path / "state").mkdir()
    for name in ("job", "other"):
        (tmp_path / "state" / name).symlink_to(precious)
    (make(tmp_path / "state" / "third") / "link").symlink_to(precious)
    remover = Remover(heard, mark=MARK)
    for name in ("job", "third", "missing"):
        remover.remove(name, tmp_path / "state" / name)
    wait_until_removed(remover, tmp_path / "state", heard)
    assert (precious / "step-1" / "model.pt").exists()
    assert {path.name for path in (tmp_path / "state").iterdir()} == {"other", f"{PREFIX}last"}
    assert len(heard.told) == 1


def make_deep(folder: Path, levels: int, *, link_to: Path) -> None:
    """Make folders within each other, with a file and a link in some of them."""
    folder.mkdir()
    file = os.open(folder, os.O_RDONLY)
    for level in range(levels):
        os.mkdir("deeper", dir_fd=file)
        if level % 100 == 0:
            os.symlink(link_to, "link", dir_fd=file)
            os.close(os.open("model.pt", os.O_WRONLY | os.O_CREAT, dir_fd=file))
        inner = os.open("deeper", os.O_RDONLY, dir_fd=file)
        os.close(file)
        file = inner
    os.close(file)


def open_files() -> list[int]:
    return [int(path.name) for path in Path("/proc/self/fd").iterdir()]


def test_no_depth_of_a_folder_stops_its_removal_or_that_of_the_next(tmp_path):
    heard = Heard()
    heard.may_go_on.set()
    precious, folder = make(tmp_path / "precious"), tmp_path / "state" / "job"
    folder.parent.mkdir()
    # Deeper than Python's stack, and its path is longer than the kernel takes.
    make_deep(folder, 1100, link_to=precious)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = open_files()
    remover = Remover(heard, mark=MARK)
    # The thread and the test need some descriptors as well.
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before) + MOST_LEVELS + 20, hard))
    try:
        remover.remove("job", folder)
        remover.remove("next", make(tmp_path / "state" / "next"))
        wait_until_removed(remover, tmp_path / "state", heard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [path.name for path in (tmp_path / "state").iterdir()] == [f"{PREFIX}last"]
    assert (precious / "step-1" / "model.pt").exists()
    assert len(heard.told) == 1
    assert len(open_files()) == len(before)


def test_unremovable_file_blocks_no_other(tmp_path, monkeypatch):
    unlink, folder = os.unlink, make(tmp_path / "job")
    (folder / "stays").write_text("x")

    def refuse(name, *, dir_fd):
        if name == "stays":
            raise PermissionError(1, "Operation not permitted", name)
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refuse)
    error = remove_tree(folder)
    assert (type(error), error and error.filename) == (PermissionError, "stays")
    assert [path.name for path in folder.iterdir()] == ["stays"]


def test_any_error_is_reported_and_does_not_end_the_thread(tmp_path, monkeypatch):
    heard = Heard()
    heard.may_go_on.set()
    odd, folder, calls = make(tmp_path / f"{PREFIX}odd"), make(tmp_path / "job"), []

    def fail_once(path):
        calls.append(path)
        if len(calls) == 1:
            raise ValueError("no such thing")
        return remove_tree(path)

    monkeypatch.setattr(removing, "remove_tree", fail_once)
    remover = Remover(heard, mark=MARK)
    remover.sweep([tmp_path])
    assert heard.is_held.wait(LONGEST_S)
    told = f"{odd} cannot be removed (ValueError: no such thing); remove it by hand"
    assert heard.told == [told]
    remover.remove("job", folder)
    (waiting,) = set(left_in(tmp_path)) - {odd}
    wait_until_removed(remover, tmp_path, heard)
    assert not waiting.exists()


def test_next_start_finishes_a_removal(tmp_path):
    folders, other = Folders(tmp_path / "state"), Folders(tmp_path / "other")
    make_folders(folders)
    left = make(folders.root / "jobs" / f"{PREFIX}0123")
    own = make(IN_MEMORY / f"{PREFIX}{folders.mark()}-0123")
    of_other = make(IN_MEMORY / f"{PREFIX}{other.mark()}-0123")

    async def start() -> None:
        watch = PodWatch(lambda: None)
        Pods(folders, LaunchCommands(folders, virtual_gpus=True), watch=watch)
        until = time.monotonic() + LONGEST_S
        while own.exists() or left.exists():
            assert time.monotonic() < until, "it is still there"
            await asyncio.sleep(0.01)
        watch.close()

    try:
        asyncio.run(start())
        assert of_other.exists()
    finally:
        shutil.rmtree(of_other)
        shutil.rmtree(own, ignore_errors=True)
