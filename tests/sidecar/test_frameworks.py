"""
The examples train with the real PyTorch and TensorFlow, on any number of processes or devices.

Run by `make test-frameworks`, which installs both for the processor alone.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import pairwise

import pytest

from dljob_wire.messages import Phase, Saving
from tests.sidecar.archives import build
from tests.sidecar.ordinary import EXAMPLES, INSTALLED, wait_for
from tests.sidecar.sidecars import SideCar

STEP = re.compile(r"^step (\d+) loss=([\d.]+)$", re.MULTILINE)
ITERATIONS = {"pytorch": 400, "tensorflow": 1000}
"""Both take some ten seconds."""
BETWEEN = 60
"""The number of iterations on each number of GPUs before it changes."""
TOLERANCE = 0.05
"""Sums in another order differ in their last digits, and training makes more of that."""
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
    done = subprocess.run(
        make_command(name, folder),
        env={**os.environ, **QUIET, "CUDA_VISIBLE_DEVICES": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(read_steps(done.stdout))


OPTIONS = {
    "pytorch": {"framework": "pytorch", "processes": "perGpu", "preload": ["torch"]},
    "tensorflow": {"framework": "tensorflow", "processes": "perNode", "preload": ["tensorflow"]},
}


@pytest.fixture
def sidecar_of(tmp_path, token):
    """Start the SideCar that users get, around an example."""
    archive = tmp_path / "dljob-sidecar.pyz"
    assert build(archive).returncode == 0
    started = []

    def begin(name):
        folder = tmp_path / token
        saving = {
            "checkpoint.signal": "SIGUSR1",
            "checkpoint.confirm": "file",
            "checkpoint.path": str(folder),
        }
        progress = r"step (?P<iteration>\d+) loss=(?P<loss>[\d.]+)"
        started.append(
            SideCar(
                tmp_path,
                token,
                *make_command(name, folder),
                options={**OPTIONS[name], **saving, "progress.log": progress, "pollSeconds": 0.5},
                python=(sys.executable, "-I", "-S"),
                program=(str(archive),),
                environment=QUIET,
            )
        )
        return started[-1]

    yield begin
    for sidecar in started:
        sidecar.close()


def train_on(sidecar, generation, gpus, processes):
    """Bring the training there, and let it go on for a while."""
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
def test_training_goes_on_from_one_to_two_and_back(sidecar_of, tmp_path, name):
    expected = train_undisturbed(name, tmp_path / "undisturbed")
    sidecar = sidecar_of(name)
    sidecar.wait_ready()
    # The first start is a warm one; the others are, if there was time to import it all again.
    wait_for(sidecar, lambda s: s.warmth.ready >= 1, "a spare interpreter")
    for generation, gpus in enumerate((["0"], ["0", "1"], ["1"]), start=1):
        train_on(sidecar, generation, gpus, len(gpus) if name == "pytorch" else 1)
    sidecar.wait_for(lambda s: s.phase is Phase.EXITED)

    log = sidecar.told()
    seen = read_steps(log)
    assert {step for step, _ in seen} == set(range(1, ITERATIONS[name] + 1))
    # The curve is that of one GPU, although the number of GPUs changed.
    assert max(abs(loss - expected[step]) for step, loss in seen) < TOLERANCE
    # The work after a checkpoint is done again, at most once a start.
    assert sum(later <= earlier for (earlier, _), (later, _) in pairwise(seen)) <= 2
    if name == "tensorflow":
        assert re.findall(r"^(\d) copies", log, re.MULTILINE) == ["1", "2", "1"]
