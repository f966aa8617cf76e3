"""The examples train for real, and end with the same result if reshaped and killed."""

from __future__ import annotations

import os
import random
import re
import runpy
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from dljob_wire.messages import Peer, Phase, Run
from tests.servers.ports import choose_ports
from tests.sidecar.containers import find_child, find_sidecar
from tests.sidecar.drivers import ROOT, wait_until

pytestmark = pytest.mark.processes

EXAMPLES = ROOT / "examples"
STEP = re.compile(r"^step (\d+) loss=([\d.]+)$", re.MULTILINE)
ITERATIONS = 4000
HELD_BACK = """
import pathlib, runpy, sys, time
import numpy

released, sys.argv = pathlib.Path(sys.argv[1]), sys.argv[2:]
draw = numpy.random.default_rng

def draw_later(seed):
    if not released.exists():
        time.sleep(0.005)
    return draw(seed)

numpy.random.default_rng = draw_later
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Slows the training to 5 ms a step until a file releases it, so that a fast machine leaves time."""


def read_steps(log):
    return [(int(step), float(loss)) for step, loss in STEP.findall(log)]


def digits(folder, iterations=ITERATIONS):
    script = str(EXAMPLES / "digits" / "train.py")
    return [sys.executable, script, f"--iterations={iterations}", f"--checkpoints={folder}"]


def train_undisturbed(folder, iterations=ITERATIONS, processes=1):
    [port] = choose_ports(1)
    where = {"WORLD_SIZE": str(processes), "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            digits(folder / str(processes), iterations),
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **where, "RANK": str(rank)},
        )
        for rank in range(processes)
    ]
    printed = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * processes
    return printed[0]


def test_digits_loss_is_the_same_on_one_and_four_processes(tmp_path):
    one, four = (read_steps(train_undisturbed(tmp_path, 200, n)) for n in (1, 4))
    assert [step for step, _ in one] == list(range(1, 201))
    np.testing.assert_allclose(four, one, rtol=0, atol=1e-6)


class Disturbed:
    """A training of digits in a SideCar, and its disturbances."""

    def __init__(self, start, folder, chance):
        self.chance = chance
        self.folder = folder
        self.log = folder.with_suffix(".log")
        self.released = folder.with_suffix(".released")
        script = folder.with_suffix(".py")
        script.write_text(HELD_BACK)
        python, *training = digits(folder)
        command = (python, str(script), str(self.released), *training)
        options = {
            "framework": "pytorch",
            "processes": "perGpu",
            "preload": ["numpy"],
            "checkpoint.signal": "SIGUSR1",
            "checkpoint.confirm": "file",
            "checkpoint.complete": "rename",
            "checkpoint.path": str(folder),
            "progress.log": r"step (?P<iteration>\d+)",
            "logFile": str(self.log),
        }
        self.start = lambda: start(command=command, options=options)
        self.sidecar = self.start()
        self.sidecar.wait_ready()
        self.generation = 0

    def train(self):
        """Wait for some more steps."""
        wanted = len(self.steps()) + self.chance.randint(20, 60)
        wait_until(lambda: len(self.steps()) >= wanted or self.is_over(), what="steps")
        assert not self.is_over(), "the training is over before all has happened to it"

    def is_over(self):
        return self.sidecar.state().phase is Phase.EXITED

    def steps(self):
        # Rank 0 alone prints steps; where it has peers, its lines begin with its rank.
        text = self.log.read_text() if self.log.exists() else ""
        return read_steps(text.replace("rank 0 | ", ""))

    def reshape(self):
        """Declare another number of processes, and wait until they run."""
        self.generation += 1
        processes = self.chance.choice([1, 2, 4])
        target = Run(
            epoch=1,
            generation=self.generation,
            incarnation=self.sidecar.incarnation,
            gpus=tuple(str(gpu) for gpu in range(processes)),
            rank_offset=0,
            world_size=processes,
            peers=(Peer("127.0.0.1", processes),),
            rendezvous_port=choose_ports(1)[0],
        )
        assert self.sidecar.declare(target).status == 200
        self.sidecar.wait_for(lambda state: state.held_generation == self.generation)

    def kill_a_process(self):
        process = self.chance.choice(self.sidecar.state().processes)
        agent = find_sidecar(self.sidecar.process.pid)
        os.kill(find_child(agent, process.pid), signal.SIGKILL)
        self.sidecar.wait_for(lambda state: state.phase is Phase.FAILED)
        self.reshape()

    def kill_the_sidecar(self):
        self.sidecar.kill()
        self.sidecar = self.start()
        self.sidecar.wait_ready()
        self.reshape()


def test_disturbed_digits_reach_the_same_result(start, token, tmp_path):
    training = Disturbed(start, tmp_path / token, random.Random(4))
    fates = [training.reshape] * 5 + [training.kill_a_process] * 2 + [training.kill_the_sidecar]
    training.chance.shuffle(fates)
    training.reshape()
    for fate in fates:
        training.train()
        fate()
    training.released.touch()
    training.sidecar.wait_for(lambda state: state.phase is Phase.EXITED)

    seen = training.steps()
    expected = read_steps(train_undisturbed(tmp_path))
    assert len(expected) == ITERATIONS
    assert {step for step, _ in seen} == set(range(1, ITERATIONS + 1))
    same = [expected[step - 1] for step, _ in seen]
    np.testing.assert_allclose(seen, same, rtol=0, atol=1e-6)
    # Starts resumed from checkpoints instead of the beginning.
    assert len(seen) < 2 * ITERATIONS


def test_replay_resumes_on_another_number_of_gpus(drive, token, tmp_path):
    folder = tmp_path / token
    folder.mkdir()
    command = [
        sys.executable,
        str(EXAMPLES / "replay" / "train.py"),
        f"--speeds={ROOT / 'profiles' / 'elasticflow' / 'throughput.csv'}",
        "--iterations=100000",
        "--faster=20",
        f"--checkpoint={folder / 'iteration'}",
    ]
    saving = {"signal": "SIGUSR1", "confirm": "file", "complete": "rename", "path": str(folder)}
    driver = drive(command=command, checkpoint=saving, progress_log=r"step (?P<iteration>\d+)")
    for attempt, gpus in enumerate((1, 4), start=1):
        driver.start(attempt, gpus=gpus)
        driver.wait_for("Started", attempt=attempt)
        driver.wait_for_fact(
            lambda facts, least=60 * attempt: facts["progress"]["iteration"] >= least, "60 steps"
        )
        driver.call("checkpoint")
        driver.wait_for("CheckpointDone", attempt=attempt)
        driver.stop_all(attempt)
    assert int((folder / "iteration").read_text()) > 60


def test_replay_uses_measured_speeds():
    find_speed = runpy.run_path(str(EXAMPLES / "replay" / "train.py"))["find_speed"]
    table = ROOT / "profiles" / "elasticflow" / "throughput.csv"
    options = SimpleNamespace(speeds=table, gpu_type="A100", model="resnet50", batch=256)
    for gpus, speed in ((1, 1.84337), (3, 3.44862), (4, 6.19081)):
        assert find_speed(options, gpus) == pytest.approx(speed)
