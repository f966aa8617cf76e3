"""The command, and a folder with a small trace to run it in."""

import shutil
import tempfile
from pathlib import Path

import pytest

from dljob.control.deciding import futures
from dljob.local.api.jobs.expected_turns import ExpectedTurns
from tests.ctl.playing import Played
from tests.ctl.running import FIVE, Command
from tests.local.stages import staged


@pytest.fixture
def dljob(capsys):
    return Command(capsys)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the test runs, with the trace ``five.csv`` in it."""
    (tmp_path / "five.csv").write_text(FIVE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def root():
    """A state folder. Sockets need short paths, which those of pytest are not."""
    folder = Path(tempfile.mkdtemp(prefix="dljob-test-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def played(dljob, root, tmp_path, monkeypatch):
    """Four GPUs on one node behind a played ``dljob up``; the command runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DLJOB_STATE", raising=False)
    # Else a machine that stalls leaves it unknown when a job that waits starts.
    monkeypatch.setattr(futures, "LONGEST_S", 240.0)
    monkeypatch.setattr(ExpectedTurns.renew, "__defaults__", (240.0,))
    with staged(root, n1=4) as up:
        yield Played(dljob, up, tmp_path)
