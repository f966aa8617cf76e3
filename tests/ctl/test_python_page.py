"""Every example of docs/python.md and the notebook, against a real ``dljob up``."""

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ctl.pages import ROOT, blocks_of, cells_of, run, run_in_kernel
from tests.local.ups import going

PAGE = ROOT / "docs" / "python.md"
NOTEBOOK = ROOT / "examples" / "notebook.ipynb"

pytestmark = pytest.mark.processes


@pytest.fixture
def machine(root, monkeypatch):
    """Four virtual GPUs, which ``connect()`` finds, and a ``python`` that is this one."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("DLJOB_STATE", str(root / "state"))
    monkeypatch.delenv("DLJOB_PLATFORM", raising=False)
    monkeypatch.setenv(
        "PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    )
    with going(root / "state", "--virtual-gpus", 4) as up:
        yield up
        assert up.backend.list_jobs().items == []


def test_every_example_of_the_page_runs(machine, capsys):
    names: dict[str, Any] = {}
    names["__name__"] = "__main__"
    run(blocks_of(PAGE), names, PAGE)
    told = capsys.readouterr().out
    assert "metadata.name" in told
    assert "there is no such job" in told
    assert names["running"].phase == "Running"
    assert names["mine"].score.unfinished == 0
    fifo, foresight = (each.score.avg_jct_s for each in names["outcomes"])
    assert foresight < fifo
    assert names["phases"] == ["Completed", "Completed"]
    written = {each.suffix: each.read_bytes() for each in Path(names["folder"]).iterdir()}
    assert b"Content-Security-Policy" in written[".html"]
    assert written[".pftrace"]
    shutil.rmtree(names["folder"])


def test_the_notebook_runs_in_a_thread_with_an_event_loop(machine, capsys):
    names: dict[str, Any] = {}
    asyncio.run(run_in_kernel(cells_of(NOTEBOOK), names, NOTEBOOK))
    assert names["ended"].phase == "Completed"
    assert names["mine"].score.unfinished == 0
