"""Folders of jobs that are over: gone at once, removed apart, and told of where that fails."""

import threading
from pathlib import Path

from dllocal.pods.removing import PREFIX, Remover

LONGEST_S = 60.0


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
    """One after the other is removed: a file, which is no folder, is told of after all before it."""
    heard.is_held.clear()
    (base / f"{PREFIX}last").write_text("no folder")
    remover.sweep([base])
    assert heard.is_held.wait(LONGEST_S)


def test_a_folder_is_gone_at_once_while_its_contents_are_still_removed(tmp_path):
    heard = Heard()
    remover = Remover(heard)
    unremovable = tmp_path / f"{PREFIX}odd"
    unremovable.write_text("is no folder")
    remover.sweep([tmp_path / "missing", tmp_path])
    assert heard.is_held.wait(LONGEST_S)
    assert heard.told == [
        f"{unremovable} cannot be removed ({unremovable}: Not a directory); remove it by hand"
    ]

    # Whatever the thread does, a namesake begins with nothing.
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


def test_the_next_controller_removes_what_is_left(tmp_path):
    heard = Heard()
    heard.may_go_on.set()
    left = make(tmp_path / f"{PREFIX}0123")
    kept = make(tmp_path / "job")
    remover = Remover(heard)
    remover.sweep([tmp_path])
    wait_until_removed(remover, tmp_path, heard)
    assert (left.exists(), kept.exists()) == (False, True)


def test_what_a_link_leads_to_stays(tmp_path):
    heard = Heard()
    heard.may_go_on.set()
    precious = make(tmp_path / "precious")
    (tmp_path / "state").mkdir()
    for name in ("job", "other"):
        (tmp_path / "state" / name).symlink_to(precious)
    (make(tmp_path / "state" / "third") / "link").symlink_to(precious)
    remover = Remover(heard)
    for name in ("job", "third", "missing"):
        remover.remove(name, tmp_path / "state" / name)
    wait_until_removed(remover, tmp_path / "state", heard)
    assert (precious / "step-1" / "model.pt").exists()
    assert {path.name for path in (tmp_path / "state").iterdir()} == {"other", f"{PREFIX}last"}
    assert len(heard.told) == 1
