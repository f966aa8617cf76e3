"""Files that never rest cost no work, and no file of a checkpoint counts as one of them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from dljob_sidecar.checkpoints.checkpoint_files import LEDGER, Mark, take_snapshot
from dljob_sidecar.checkpoints.ledger import Ledger, read_ledger, write_ledger
from dljob_sidecar.checkpoints.recognizing.shapes import UNKNOWN_SECONDS, Shape
from dljob_sidecar.checkpoints.resting import Rewrites, find_resting, propose_files
from dljob_sidecar.checkpoints.vetting import vet
from dljob_wire.checkpoints import Checkpoint
from dljob_wire.messages import Phase, Run, Saving
from tests.sidecar.drivers import wait_until
from tests.sidecar.sidecars import SideCar

MODEL = Shape({"model-#.pt": 1}, 4, 0.0, 1)


class Folder:
    """A folder with a look after each change, on a fake clock."""

    def __init__(self, path: Path, clock: pytest.MonkeyPatch) -> None:
        self.path = path
        self.rewrites = Rewrites(MODEL)
        self._now, self._inode = 1000.0, 0
        clock.setattr(time, "monotonic", lambda: self._now)
        self.wait(0.0)

    def wait(self, seconds: float) -> None:
        self._now += seconds
        self.rewrites.see(take_snapshot(str(self.path)))

    def write(self, name: str, content: str, *, after: float = 0.5) -> None:
        path = self.path / name
        path.write_text(content)
        self._inode += 1
        # Otherwise the stamps of a fast test are equal.
        os.utime(path, ns=(self._inode * 10**9, self._inode * 10**9))
        self.wait(after)

    def rewrite(self, name: str, *, after: float = 0.5) -> None:
        for content in ("", "half", "the whole"):
            self.write(name, content, after=after)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    return Folder(tmp_path, monkeypatch)


def test_file_rewritten_without_rest_is_learnt(folder):
    for name in ("view-0.npy", "view-1.npy"):
        folder.rewrite(name)
    assert not folder.rewrites.names, "each was begun once"
    folder.rewrite("view-0.npy")
    assert folder.rewrites.names == {"view-#.npy"}


def test_constantly_replaced_file_is_learnt(folder):
    for count in range(3):
        part = folder.path / "part"
        part.write_text(str(count))
        part.rename(folder.path / "state.json")
        folder.wait(0.5)
    assert folder.rewrites.names == {"state.json"}


def test_late_checkpoint_file_is_not_learnt(folder):
    for step in (1, 2, 3):
        folder.write(f"model-{step}.pt", "whole")
        for rank in (0, 1):
            folder.rewrite(f"optimizer-{rank}.pt")
    assert not folder.rewrites.names


@pytest.mark.parametrize(
    ("after", "late"), [(0.5, UNKNOWN_SECONDS), (UNKNOWN_SECONDS, 0.0)], ids=["rests", "unseen"]
)
def test_resting_or_rarely_seen_file_is_not_learnt(folder, after, late):
    for _ in range(4):
        folder.rewrite("best.pt", after=after)
        for _ in range(4):
            folder.wait(late / 4.0)
    assert not folder.rewrites.names


def test_growing_or_renamed_file_is_not_learnt(folder):
    for count in range(1, 10):
        folder.write("all.bin", "x" * count)
        folder.write(f"shard-{count}.pt", "whole")
    assert not folder.rewrites.names


def test_torn_restless_file_costs_no_trust(tmp_path):
    (tmp_path / "model-1.pt").write_text("whole")
    (tmp_path / "view-0.npy").write_bytes(b"")
    saving = Checkpoint(path=str(tmp_path))
    for restless, is_trusted in ((frozenset[str](), False), (frozenset({"view-#.npy"}), True)):
        write_ledger(saving, Ledger(shape=MODEL, pending="", restless=restless))
        verdict = vet(saving, leads=True)
        assert verdict.ledger.is_trusted is is_trusted
        assert verdict.ledger.restless == read_ledger(saving).restless == restless


def test_clear_pattern_is_proposed():
    def written(**seconds):
        return {name: Mark(1, 1, at * 10**9, 1, 1) for name, at in seconds.items()}

    files = written(**{"ckpt-7.pt": 1, "ckpt-8.pt": 3, "view-0.npy": 4, "view-1.npy": 9})
    assert find_resting(files) == {"ckpt-#.pt": 6.0}
    assert propose_files(files, "view-1.npy").endswith("set checkpoint.files to 'ckpt-*.pt'")
    in_folders = written(**{"step-7/a": 1, "step-7/b": 2, "view-1.npy": 9})
    assert propose_files(in_folders, "view-1.npy").endswith("'step-*'")
    for others in ({"ckpt-7.pt": 9}, {"a.pt": 1, "b.pt": 1}, {"view-2/a": 1}):
        files = written(**{**others, "view-2/b": 9})
        assert propose_files(files, "view-2/b").endswith("a pattern for the checkpoints")


TRAINING = """
import itertools, os, signal, sys, threading, time
folder, go, names = sys.argv[2:]
asked = []
signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))

def view():
    for count in itertools.count():
        with open(f"{folder}/view-{eval(names)}.npy", "wb", buffering=0) as file:
            while not os.path.exists(go) or file.tell() < 50:
                file.write(b"x" * 10)
                time.sleep(0.05)

threading.Thread(target=view, daemon=True).start()
for step in itertools.count(1):
    time.sleep(0.01)
    print("step", step, flush=True)
    if asked:
        asked.clear()
        with open(f"{folder}/ckpt-{step}.pt", "wb", buffering=0) as file:
            for _ in range(4):
                file.write(b"x" * 1000)
                time.sleep(0.01)
"""


class Training:
    """A training with another file that grows in its trial, and never rests later."""

    def __init__(
        self, start: Callable[..., SideCar], folder: Path, token: str, *, names: str, seconds: float
    ) -> None:
        self.folder = folder / "checkpoints"
        self.folder.mkdir()
        command = (
            sys.executable,
            "-c",
            TRAINING,
            token,
            str(self.folder),
            str(folder / "go"),
            names,
        )
        options = {
            "checkpoint.signal": "SIGUSR1",
            "checkpoint.confirm": "file",
            "checkpoint.path": str(self.folder),
            "checkpoint.timeoutSeconds": seconds,
            "progress.log": r"step (?P<iteration>\d+)",
        }
        self.sidecar = start(command=command, options=options)
        self.sidecar.run(1)
        state = self.sidecar.wait_for(lambda state: state.progress.begun)
        assert isinstance(state.target, Run)
        self.sidecar.declare(replace(state.target, trial=1))
        self.sidecar.wait_for(
            lambda state: state.trial is not None and state.trial.saving is Saving.CONFIRMED
        )
        (folder / "go").touch()

    def stop(self):
        self.sidecar.stop(2)
        return self.sidecar.wait_phase(Phase.STOPPED)

    def sizes(self) -> list[int]:
        return [path.stat().st_size for path in self.folder.glob("ckpt-*")]


@pytest.fixture
def train(start, tmp_path, token):
    return partial(Training, start, tmp_path, token)


@pytest.mark.processes
def test_stop_is_confirmed_despite_restless_files(train):
    training = train(names="count % 3", seconds=60.0)
    ledger = training.folder / LEDGER
    wait_until(lambda: "view-#.npy" in ledger.read_text(), what="what never rests")
    stopped = training.stop()
    assert stopped.change.saving is Saving.CONFIRMED, training.sidecar.read_log()
    assert training.sizes() == [4000, 4000]


@pytest.mark.processes
def test_unknown_restless_file_is_named(train):
    training = train(names="count", seconds=20.0)
    stopped = training.stop()
    assert stopped.change.saving is Saving.TIMED_OUT
    [message] = [each.message for each in stopped.problems if each.name == "CheckpointIncomplete"]
    assert "set checkpoint.files to 'ckpt-*.pt'" in message
    assert "view-" in message
    assert training.sizes() == [4000, 4000, 4000]
