"""Under a real SideCar all ranks save at the same step, also behind a shell and by SIGTERM."""

from __future__ import annotations

import shlex
import sys

import pytest

from dljob_sidecar import assembling
from dljob_wire.messages import Saving
from tests.sidecar.drivers import ROOT
from tests.sidecar.ordinary import wait_for

MARKER = {
    "checkpoint.signal": "SIGUSR1",
    "checkpoint.confirm": "file",
    "checkpoint.files": "step-*",
}
EXIT = {"checkpoint.signal": "SIGTERM", "checkpoint.confirm": "exit"}
WIDTHS = (1, 3, 1)


@pytest.fixture
def train(start, tmp_path, token):
    """Start the training by python, or by a shell around it."""

    def begin(options, *words, through_shell):
        command = [sys.executable, "-m", "tests.sidecar.saving", token, *words]
        if through_shell:
            # The command after it keeps the shell from becoming the training.
            command = ["sh", "-c", f"{shlex.join(command)}; exit $?"]
        folder = tmp_path / "checkpoints"
        fields = {
            "processes": "perGpu",
            "checkpoint.path": str(folder),
            "checkpoint.complete": "marker",
            "progressSocket": str(tmp_path / "progress"),
        }
        return start(command=command, options={**options, **fields}, path=(str(ROOT),)), folder

    return begin


def read_saves(folder, rank):
    path = folder / f"saves-{rank}.txt"
    return path.read_text().split() if path.exists() else []


@pytest.mark.processes
@pytest.mark.parametrize(
    ("options", "words", "through_shell"),
    [pytest.param(MARKER, (), True, marks=pytest.mark.story), (EXIT, ("exit",), False)],
    ids=["marker, through a shell", "exit"],
)
def test_ranks_save_together_and_continue(train, options, words, through_shell):
    sidecar, folder = train(options, *words, through_shell=through_shell)
    saved = 0
    for generation, width in enumerate(WIDTHS, start=1):
        running = sidecar.train(generation, *map(str, range(width)), processes=width)
        if generation > 1:
            assert running.change is not None
            assert running.change.saving is Saving.CONFIRMED
            former = range(WIDTHS[generation - 2])
            saves = {tuple(read_saves(folder, rank)[-1:]) for rank in former}
            assert len(saves) == 1, saves
            saved = int(saves.pop()[0])
        stepping = wait_for(sidecar, lambda s: s.progress.begun, "a step")
        assert stepping.progress.iteration > saved
    assert saved > 0


def test_offered_folder_contains_only_dljob():
    assert [path.name for path in assembling.MODULES.iterdir()] == ["dljob"]
