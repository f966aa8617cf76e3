"""Under a real SideCar all ranks save at one step, also behind a shell, and by SIGTERM as well."""

from __future__ import annotations

import shlex
import sys
from functools import partial

import pytest

from dljob_sidecar.warm import offering
from dljob_wire.messages import Phase, Saving
from tests.sidecar.drivers import ROOT
from tests.sidecar.ordinary import wait_for
from tests.sidecar.sidecars import SideCar

MARKER = {
    "checkpoint.signal": "SIGUSR1",
    "checkpoint.confirm": "file",
    "checkpoint.files": "step-*",
}
EXIT = {"checkpoint.signal": "SIGTERM", "checkpoint.confirm": "exit"}
WIDTHS = (1, 3, 1)


@pytest.fixture
def train(tmp_path, token):
    """Start the training as users do: by python, or by a shell around it."""
    started = []

    def start(options, *words, through_shell):
        command = [sys.executable, "-m", "tests.sidecar.saving", token, *words]
        if through_shell:
            # The command after it keeps the shell from becoming the training.
            command = ["sh", "-c", f"{shlex.join(command)}; exit $?"]
        folder = tmp_path / "checkpoints"
        sidecar = SideCar(
            tmp_path,
            token,
            *command,
            options={
                **options,
                "processes": "perGpu",
                "checkpoint.path": str(folder),
                "checkpoint.complete": "marker",
                "progressSocket": str(tmp_path / "progress"),
            },
            path=(str(ROOT),),
        )
        started.append(sidecar)
        return sidecar, folder

    yield start
    for sidecar in started:
        sidecar.close()


def read_saves(folder, rank):
    path = folder / f"saves-{rank}.txt"
    return path.read_text().split() if path.exists() else []


def runs(generation, state):
    return state.phase is Phase.RUNNING and state.held_generation == generation


@pytest.mark.processes
@pytest.mark.parametrize(
    ("options", "words", "through_shell"),
    [pytest.param(MARKER, (), True, marks=pytest.mark.story), (EXIT, ("exit",), False)],
    ids=["marker, through a shell", "exit"],
)
def test_ranks_save_together_and_go_on_from_there(train, options, words, through_shell):
    sidecar, folder = train(options, *words, through_shell=through_shell)
    sidecar.wait_ready()
    saved = 0
    for generation, width in enumerate(WIDTHS, start=1):
        sidecar.run(generation, *map(str, range(width)), processes=width)
        running = wait_for(sidecar, partial(runs, generation), f"generation {generation}")
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


def test_the_folder_that_trainings_see_holds_nothing_else():
    assert [path.name for path in offering.MODULES.iterdir()] == ["dljob"]
