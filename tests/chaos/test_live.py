"""Short runs of the kills in live changes; the long ones are ``make chaos``."""

import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.live import disturb
from tests.chaos.live_controllers import survive
from tests.running.parts import PARTS
from tests.sidecar.drivers import ROOT, run_program

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1800)]


@pytest.fixture
def root() -> Iterator[Path]:
    """A short path, as sockets need it."""
    with tempfile.TemporaryDirectory(prefix="dljob-live-") as folder:
        yield Path(folder)


def test_job_trains_on_after_kills_in_its_live_changes(root):
    tally = disturb(root, kills=8, seed=1, seconds=900.0)
    assert tally.kills.total() == 8
    assert tally.ways.total() == 8


def test_job_trains_on_while_controllers_die(root):
    deaths, status = survive(root, random.Random(1), kills=2, seconds=900.0)
    assert deaths.total() == 2
    assert status["restarts"] == 0


PROGRAMS = sorted(
    {
        step.command[2]
        for part in PARTS.values()
        for lanes in part.rounds
        for lane in lanes
        for step in lane
        if step.command[1:2] == ("-m",) and step.command[2].startswith("tests.")
    }
)


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_of_the_deep_parts_can_be_imported(program):
    module = (
        program if (ROOT / f"{program.replace('.', '/')}.py").exists() else f"{program}.__main__"
    )
    told = run_program([sys.executable, "-c", f"import {module}"], cwd=ROOT)
    assert told.returncode == 0, told.stderr
