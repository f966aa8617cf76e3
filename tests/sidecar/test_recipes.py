"""The recipes of docs/training.md that no example has; `make test-frameworks` runs those of frameworks."""

from __future__ import annotations

import re
import sys

import pytest

from dljob_wire.messages import Phase
from tests.sidecar.drivers import ROOT
from tests.sidecar.ordinary import INSTALLED, has_passed, wait_for

STEPS_AN_EPOCH, EPOCHS = 13, 40
KERAS = f"""
import time
import keras
import numpy
from dljob import training

batch_size, epochs = 32, {EPOCHS}
x_train = numpy.random.default_rng(0).random((32 * {STEPS_AN_EPOCH} - 8, 8), dtype=numpy.float32)
y_train = x_train.sum(axis=1)


def make_model():
    model = keras.Sequential([keras.Input(shape=(8,)), keras.layers.Dense(1)])
    model.compile(loss="mse", optimizer="adam")
    return model


class Pace(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(0.02)


"""
"""The program around the lines: a model, data, and steps that leave time for changes."""


def read_recipe(heading: str) -> str:
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {heading}\n.*?```python\n(.*?)```", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.processes
@pytest.mark.frameworks
@pytest.mark.timeout(900)
def test_keras_takes_each_step_once(start, tmp_path, token):
    python = INSTALLED / "tensorflow" / "bin" / "python"
    if not python.exists():
        pytest.skip("tensorflow is not installed; `make test-frameworks` does it")
    program, folder = tmp_path / "train.py", tmp_path / "ckpt"
    lines = read_recipe("Keras").replace("callbacks=[", "verbose=0, callbacks=[Pace(), ")
    program.write_text(f'{KERAS}{lines}\nprint("ended at", int(model.optimizer.iterations))\n')
    folder.mkdir()
    sidecar = start(
        command=(str(python), "-u", str(program), token),
        options={
            "framework": "tensorflow",
            "processes": "perNode",
            "checkpoint.signal": "SIGUSR1",
            "checkpoint.confirm": "file",
            "checkpoint.complete": "keras",
            "checkpoint.path": str(folder),
            "progressSocket": str(tmp_path / "progress"),
            "pollSeconds": 0.2,
        },
        path=(str(ROOT / "operator"),),
        environment={"DLJOB_CHECKPOINT_DIR": str(folder), "OMP_NUM_THREADS": "1"},
    )
    for generation, gpus in enumerate((["0"], ["0", "1"], ["1"]), start=1):
        reached = sidecar.state().progress.iteration
        sidecar.run(generation, *gpus)
        # Not at the end of an epoch, where a start has nothing to begin again.
        wait_for(sidecar, has_passed(reached + STEPS_AN_EPOCH + 3, generation), "some steps")
    sidecar.wait_for(lambda s: s.phase is Phase.EXITED)
    assert f"ended at {STEPS_AN_EPOCH * EPOCHS}\n" in sidecar.read_log()


OWN_STEPS = 400
OWN = f"""
import json, os, signal, sys, time
from dljob import training

path = training.folder("out") / "state.json"
step, total = json.loads(path.read_text()) if path.exists() else (0, 0)
print("begins at", step, flush=True)


def save():
    path.with_suffix(".tmp").write_text(json.dumps([step, total]))
    os.replace(path.with_suffix(".tmp"), path)


BEFORE
while step < {OWN_STEPS}:
    step += 1
    total += step
    print("step", step, flush=True)
    time.sleep(0.01)
    AFTER_A_STEP
print("ended at", step, total)
"""


@pytest.mark.processes
def test_sigterm_loop_ends_like_an_uninterrupted_run(start, tmp_path, token):
    first, *others = read_recipe("Without new lines: SIGTERM").splitlines()
    lines = OWN.replace("BEFORE", first).replace("AFTER_A_STEP", "\n    ".join(others))
    program, folder = tmp_path / "train.py", tmp_path / "ckpt"
    program.write_text(lines)
    folder.mkdir()
    sidecar = start(
        command=(sys.executable, "-u", str(program), token),
        options={
            "checkpoint.signal": "SIGTERM",
            "checkpoint.confirm": "exit",
            "checkpoint.path": str(folder),
            "progress.log": r"step (?P<iteration>\d+)",
            "pollSeconds": 0.2,
        },
        path=(str(ROOT / "operator"),),
        environment={"DLJOB_CHECKPOINT_DIR": str(folder)},
    )
    for generation, gpu in enumerate(("0", "1", "2"), start=1):
        reached = sidecar.state().progress.iteration
        sidecar.run(generation, gpu)
        wait_for(sidecar, has_passed(reached + 30, generation), "some steps")
    sidecar.wait_for(lambda s: s.phase is Phase.EXITED)
    log = sidecar.read_log()
    # An uninterrupted run takes each step once.
    assert f"ended at {OWN_STEPS} {sum(range(OWN_STEPS + 1))}\n" in log
    begun = [int(step) for step in re.findall(r"^begins at (\d+)$", log, re.MULTILINE)]
    assert 0 == begun[0] < begun[1] < begun[2]
    assert re.findall(r"^step (\d+)$", log, re.MULTILINE) == [*map(str, range(1, OWN_STEPS + 1))]
