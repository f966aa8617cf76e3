"""Before a start torn checkpoints are set aside, and torn confirmed ones are remembered."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from functools import partial

import pytest

from dljob_sidecar.checkpoints.checkpoint_files import LEDGER, SET_ASIDE, take_snapshot
from dljob_sidecar.checkpoints.ledger import read_ledger, write_ledger
from dljob_sidecar.checkpoints.vetting import (
    MOST_FRUITLESS,
    MOST_SET_ASIDE,
    note_confirmed,
    vet,
)
from dljob_wire.checkpoints import Checkpoint, Complete
from tests.sidecar.savers import BYTES, SHAPES, Saver

PATTERNS = {"several": "step-*", "rename": "step-*", "marker": "step-*"}
COMPLETE = {"rename": Complete.RENAME, "marker": Complete.MARKER}


class Folder:
    """Checkpoints of one shape."""

    def __init__(self, path, shape):
        self.path = path
        self.saver = Saver(SHAPES[shape], str(path), gap=0.0)
        complete = COMPLETE.get(shape, Complete.AUTO)
        self.saving = Checkpoint(
            path=str(path), files=PATTERNS.get(shape, ""), complete=complete, vet=True
        )

    def save(self, *steps):
        for step in steps:
            self.saver.save(step)

    def unit(self, step):
        return self.path / self.saver.shape.unit.format(step)

    def last_file(self, step):
        *_, (path, _) = self.saver.paths(step)
        return self.path / path

    def confirm(self, step):
        name = self.unit(step).name
        files = {
            each: mark
            for each, mark in take_snapshot(str(self.path)).files.items()
            if each.startswith(name)
        }
        write_ledger(
            self.saving, note_confirmed(read_ledger(self.saving), name, files=files, world=1)
        )

    def vet(self):
        return vet(self.saving, leads=True)

    def set_aside(self):
        folder = self.path / SET_ASIDE
        return sorted(each.name for each in folder.iterdir()) if folder.exists() else []


@pytest.fixture
def folder(tmp_path):
    return lambda shape: Folder(tmp_path, shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_whole_checkpoint_is_resumed_and_empty_file_is_torn(folder, shape):
    world = folder(shape)
    world.save(9, 10)
    verdict = world.vet()
    assert (verdict.resume, verdict.unreadable) == (str(world.unit(10)), "")
    assert world.saver.find() == 10
    world.last_file(10).write_bytes(b"")
    assert world.vet().resume == str(world.unit(9))


@pytest.mark.parametrize("shape", ["huggingface", "dcp", "several", "marker"])
def test_incomplete_checkpoint_is_set_aside(folder, shape):
    world = folder(shape)
    world.save(9, 10)
    world.last_file(10).unlink()
    verdict = world.vet()
    assert verdict.resume == str(world.unit(9))
    assert (world.saver.find(), world.set_aside()) == (9, [world.unit(10).name])
    assert world.unit(10).name in verdict.unreadable
    assert verdict.ledger.is_trusted
    # The next start reports nothing, and an empty folder is no checkpoint.
    assert not world.vet().unreadable
    world.unit(11).mkdir()
    assert world.vet().resume == str(world.unit(9))
    assert world.saver.find() == 9


def test_without_permission_nothing_is_moved(folder):
    world = folder("several")
    world.save(9, 10)
    world.last_file(10).unlink()
    before = take_snapshot(str(world.path)).files
    for _ in range(MOST_FRUITLESS + 1):
        verdict = vet(replace(world.saving, vet=False), leads=True)
        assert verdict.resume == str(world.unit(9))
        name, good = world.unit(10).name, world.unit(9).name
        assert verdict.unreadable.startswith(f"{name} cannot be used: ")
        assert verdict.unreadable.endswith(f"; the latest whole one is {good}")
        assert take_snapshot(str(world.path)).files == before
        # The training read the torn one, so the whole one is not to blame.
        write_ledger(world.saving, replace(verdict.ledger, fruitless=verdict.ledger.fruitless + 1))
    assert read_ledger(world.saving).is_trusted


def test_passing_read_error_is_no_evidence(folder, monkeypatch):
    world = folder("several")
    world.save(9, 10)

    def fail(*_):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(os, "pread", fail)
    assert world.vet().resume == str(world.unit(10))
    assert world.set_aside() == []


def test_nothing_is_moved_once_training_may_run(folder):
    """Reading is slow, and a start may not have waited for the answer."""
    world = folder("several")
    world.save(9, 10)
    world.last_file(10).write_bytes(b"")
    for answers in ([True, False], [False]):
        vet(world.saving, leads=True, wanted=partial(answers.pop, 0))
        assert (answers, world.set_aside()) == ([], [])


def test_only_checkpoint_is_set_aside_if_incomplete(tmp_path):
    for shape, found, aside in (("huggingface", None, 1), ("several", 5, 0)):
        (tmp_path / shape).mkdir()
        world = Folder(tmp_path / shape, shape)
        world.save(5)
        world.confirm(5)
        world.last_file(5).unlink()
        assert "none before it" in world.vet().unreadable
        assert (world.saver.find(), len(world.set_aside())) == (found, aside)


def test_foreign_checkpoints_are_left_alone(folder):
    world = folder("huggingface")
    for step in (20, 30):
        (world.path / f"checkpoint-{step}").mkdir()
        (world.path / f"checkpoint-{step}" / "model.pt").write_bytes(b"weights")
    world.vet()
    assert world.set_aside() == []
    # The same holds next to real checkpoints of that framework.
    world.save(10, 11)
    world.last_file(11).unlink()
    assert world.vet().resume == str(world.unit(10))
    assert world.set_aside() == [world.unit(11).name]


@pytest.mark.parametrize("shape", ["huggingface", "several", "lightning"])
def test_torn_confirmed_checkpoint_costs_trust(folder, shape):
    world = folder(shape)
    world.save(9)
    world.confirm(9)
    assert world.vet().ledger.is_trusted
    world.save(10)
    world.confirm(10)
    last = world.last_file(10)
    last.write_bytes(last.read_bytes()[:100])
    verdict = world.vet()
    assert verdict.resume == str(world.unit(9))
    assert world.unit(10).name in verdict.distrust
    # The next look remembers the distrust.
    later = world.vet()
    assert (later.unreadable, later.distrust) == ("", verdict.distrust)
    # With another sign the job is trusted again.
    complete = Complete.MARKER if shape == "lightning" else Complete.RENAME
    assert not vet(replace(world.saving, files="step-*", complete=complete), leads=True).distrust


def test_files_after_the_confirmation_are_expected_next(folder):
    world = folder("several")
    world.save(9)
    last = world.last_file(9)
    content = last.read_bytes()
    last.unlink()
    world.confirm(9)
    last.write_bytes(content)
    assert set(world.vet().ledger.shape.names) == {"/model.bin", "/optimizer.bin"}


def test_checkpoint_that_fails_starts_is_blamed(folder):
    world = folder("huggingface")
    world.save(10)
    for _ in range(MOST_FRUITLESS + 1):
        assert world.vet().resume == str(world.unit(10))
        ledger = read_ledger(world.saving)
        write_ledger(world.saving, replace(ledger, fruitless=ledger.fruitless + 1))
    world.save(9)
    verdict = world.vet()
    assert verdict.resume == str(world.unit(9))
    assert "starts from it failed" in verdict.unreadable
    assert verdict.distrust
    assert verdict.ledger.fruitless == 0


def test_set_aside_checkpoints_are_bounded(folder):
    world = folder("huggingface")
    world.save(1)
    for step in range(2, 6):
        world.save(step)
        world.last_file(step).unlink()
        world.vet()
    assert len(world.set_aside()) == MOST_SET_ASIDE


def test_follower_knows_the_shape_of_a_checkpoint(folder):
    """Such a container has no ledger of its own."""
    world = folder("several")
    world.save(9, 10)
    world.confirm(10)
    known = read_ledger(world.saving).shape
    assert known is not None
    # Before the container of the first process has looked, and after it.
    assert vet(world.saving, leads=False).ledger.shape == known
    world.vet()
    assert vet(world.saving, leads=False).ledger.shape == known
    before = (world.path / LEDGER).read_bytes()
    world.last_file(10).write_bytes(b"")
    assert vet(world.saving, leads=False).resume == str(world.unit(9))
    assert (world.path / LEDGER).read_bytes() == before


@pytest.mark.parametrize("is_first", [True, False])
def test_torn_checkpoint_costs_trust_in_any_container(folder, is_first):
    world = folder("several")
    world.save(9)
    world.confirm(9)
    world.vet()
    world.save(10)
    world.confirm(10)
    world.last_file(10).write_bytes(b"")
    verdicts = [vet(world.saving, leads=leads) for leads in (is_first, not is_first)]
    assert [world.unit(10).name in verdict.distrust for verdict in verdicts] == [True, True]
    assert not read_ledger(world.saving).is_trusted
    # The torn one was set aside once.
    assert world.set_aside() == [world.unit(10).name]


def test_smaller_confirmed_checkpoint_is_kept(folder):
    world = folder("several")
    world.save(9, 10)
    last = world.last_file(10)
    last.write_bytes(last.read_bytes()[: BYTES // 2])
    world.confirm(10)
    for leads in (False, True, False):
        assert vet(world.saving, leads=leads).resume == str(world.unit(10))
    assert world.set_aside() == []


def test_unreadable_ledger_is_ignored(folder):
    world = folder("several")
    world.save(10)
    for text in ("", "[]", "{", '{"signs": 3}', "\0" * 10):
        (world.path / LEDGER).write_text(text)
        assert world.vet().resume == str(world.unit(10)), text


def test_undeclared_files_are_never_moved(folder, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "empty.bin").touch()
    (tmp_path / "latest.bin").touch()
    for complete in Complete:
        vet(Checkpoint(path=str(tmp_path), complete=complete, vet=True), leads=True)
    assert (tmp_path / "data" / "empty.bin").exists()
    assert (tmp_path / "latest.bin").exists()
