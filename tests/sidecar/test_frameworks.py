"""
The examples train with real PyTorch and TensorFlow, on several processes or devices.

`make test-frameworks` installs both, for the CPU, and runs these tests.
"""

from __future__ import annotations

import os
import re
import sys
from itertools import pairwise

import pytest

from dljob_wire.messages import Phase, Saving
from tests.sidecar.archives import build
from tests.sidecar.drivers import run_program
from tests.sidecar.ordinary import EXAMPLES, INSTALLED, wait_for

STEP = re.compile(r"^step (\d+) loss=([\d.]+)$", re.MULTILINE)
ITERATIONS = {"pytorch": 400, "tensorflow": 1000}
"""Both take some ten seconds."""
BETWEEN = 60
"""The number of iterations on each number of GPUs before it changes."""
TOLERANCE = 0.05
"""Sums in another order differ slightly, and training amplifies that."""
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "1"}


def make_command(name, folder):
    python = INSTALLED / name / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{name} is not installed; `make test-frameworks` does it")
    script = str(EXAMPLES / name / "train.py")
    return [str(python), script, f"--iterations={ITERATIONS[name]}", f"--checkpoints={folder}"]


def read_steps(text):
    return [(int(step), float(loss)) for step, loss in STEP.findall(text)]


def train_undisturbed(name, folder):
    done = run_program(
        make_command(name, folder),
        env={**os.environ, **QUIET, "CUDA_VISIBLE_DEVICES": "0"},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(read_steps(done.stdout))


OPTIONS = {
    "pytorch": {"framework": "pytorch", "processes": "perGpu", "preload": ["torch"]},
    "tensorflow": {"framework": "tensorflow", "processes": "perNode", "preload": ["tensorflow"]},
}


@pytest.fixture
def sidecar_of(start, tmp_path, token):
    """Start the SideCar that users get, around an example."""
    archive = tmp_path / "dljob-sidecar.pyz"
    assert build(archive).returncode == 0
    folder = tmp_path / token
    saving = {"signal": "SIGUSR1", "confirm": "file", "path": str(folder)}
    progress = r"step (?P<iteration>\d+) loss=(?P<loss>[\d.]+)"
    options = {"progress.log": progress, "pollSeconds": 0.5, "checkpoint": saving}
    return lambda name: start(
        command=make_command(name, folder),
        options={**OPTIONS[name], **options},
        python=(sys.executable, "-I", "-S"),
        program=(str(archive),),
        environment=QUIET,
    )


def train_on(sidecar, generation, gpus, processes):
    """Move the training, and let it do more iterations."""
    reached = sidecar.state().progress.iteration
    sidecar.run(generation, *gpus, processes=processes)
    running = wait_for(
        sidecar,
        lambda s: s.phase is Phase.RUNNING and s.held_generation == generation,
        f"generation {generation}",
    )
    assert len(running.processes) == processes
    assert running.change is not None
    assert generation == 1 or running.change.saving is Saving.CONFIRMED
    wait_for(sidecar, lambda s: s.progress.iteration >= reached + BETWEEN, "iterations")


@pytest.mark.processes
@pytest.mark.frameworks
@pytest.mark.timeout(2700)
@pytest.mark.parametrize("name", ["pytorch", "tensorflow"])
def test_training_continues_from_one_to_two_and_back(sidecar_of, tmp_path, name):
    expected = train_undisturbed(name, tmp_path / "undisturbed")
    sidecar = sidecar_of(name)
    # The first start is a warm one; the others are, if there was time to import it all again.
    wait_for(sidecar, lambda s: s.warmth.ready >= 1, "a spare interpreter")
    for generation, gpus in enumerate((["0"], ["0", "1"], ["1"]), start=1):
        train_on(sidecar, generation, gpus, len(gpus) if name == "pytorch" else 1)
    sidecar.wait_phase(Phase.EXITED)

    log = sidecar.read_log()
    seen = read_steps(log)
    assert {step for step, _ in seen} == set(range(1, ITERATIONS[name] + 1))
    # The curve is that of one GPU, although the number of GPUs changed.
    assert max(abs(loss - expected[step]) for step, loss in seen) < TOLERANCE
    # The work after a checkpoint is done again, at most once a start.
    assert sum(later <= earlier for (earlier, _), (later, _) in pairwise(seen)) <= 2
    if name == "tensorflow":
        assert re.findall(r"^(\d) copies", log, re.MULTILINE) == ["1", "2", "1"]
