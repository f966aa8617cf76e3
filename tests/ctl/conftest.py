"""The command, and a folder with a small trace to run it in."""

import pytest

from tests.ctl.running import FIVE, Command


@pytest.fixture
def dljob(capsys):
    return Command(capsys)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the test runs, with the trace ``five.csv`` in it."""
    (tmp_path / "five.csv").write_text(FIVE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path
