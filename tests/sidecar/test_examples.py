"""The examples train for real: reshaped and killed, they end where they would have ended."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise

import pytest
import yaml

from dlcore import jobfile
from tests.sidecar.drivers import ROOT, wait_until

pytestmark = pytest.mark.processes

EXAMPLES = ROOT / "examples"
STEP = re.compile(r"step (\d+) loss=([\d.]+)")
ITERATIONS = 1500


def read_steps(log):
    return [(int(step), float(loss)) for step, loss in STEP.findall(log)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What one process prints that nobody disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    command = digits(folder)
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout


def digits(folder):
    script = str(EXAMPLES / "digits" / "train.py")
    return [sys.executable, script, f"--iterations={ITERATIONS}", f"--checkpoints={folder}"]


def wait_for_steps(driver, count):
    wait_until(lambda: driver.read_log().count("step") > count, what="steps")


@pytest.mark.slow
def test_digits_reshaped_and_killed_end_where_they_would_have_ended(
    drive, token, tmp_path, undisturbed
):
    folder = tmp_path / token
    folder.mkdir()
    saving = {"signal": "SIGUSR1", "confirm": "file", "path": str(folder)}
    driver = drive(command=digits(folder), framework="pytorch", split="perGpu", saving=saving)
    plan = [(1, True), (4, True), (2, False), (4, True), (1, True)]
    for attempt, (processes, with_checkpoint) in enumerate(plan, start=1):
        done = driver.read_log().count("step")
        driver.start(attempt, gpus=processes, processes=processes)
        wait_for_steps(driver, done + 50)
        if with_checkpoint:
            driver.call("checkpoint")
            driver.wait_for("CheckpointDone", attempt=attempt)
        driver.stop_all(attempt)
    driver.start(9, gpus=2, processes=2)
    driver.wait_for("Gone", attempt=9)

    log = driver.read_log()
    expected = dict(read_steps(undisturbed))
    seen = read_steps(log)
    assert {step for step, _ in seen} == set(range(1, ITERATIONS + 1))
    assert all(loss == pytest.approx(expected[step], abs=1e-6) for step, loss in seen)
    # Each step back is one to a checkpoint, and there was one start in between.
    backs = [later for (earlier, _), (later, _) in pairwise(seen) if later <= earlier]
    assert len(backs) <= len(plan)
    assert log.splitlines()[-1] == undisturbed.splitlines()[-1]


def test_replay_goes_at_the_measured_pace_and_on_from_its_checkpoint(drive, token, tmp_path):
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
    saving = {"signal": "SIGUSR1", "confirm": "file", "path": str(folder)}
    driver = drive(command=command, saving=saving, progress_log=r"step (?P<iteration>\d+)")
    speeds = {}
    for attempt, gpus in enumerate((1, 4), start=1):
        driver.start(attempt, gpus=gpus)
        driver.wait_for("Started", attempt=attempt)
        facts = driver.wait_for_fact(
            lambda facts, least=60 * attempt: facts["progress"]["iteration"] >= least, "60 steps"
        )
        speeds[gpus] = facts["progress"]["iterations_per_second"]
        driver.call("checkpoint")
        driver.wait_for("CheckpointDone", attempt=attempt)
        driver.stop_all(attempt)
    # On a machine with much else to do it may fall behind, but never run ahead.
    assert 0 < speeds[1] < 1.84337 * 20 * 1.1
    assert speeds[1] < speeds[4] < 6.19081 * 20 * 1.1
    assert int((folder / "iteration").read_text()) > 60


@pytest.mark.parametrize("name", ["digits", "replay"])
def test_the_job_files_are_right_and_the_code_does_not_know_us(name):
    document = yaml.safe_load((EXAMPLES / name / "job.yaml").read_text())
    job = jobfile.parse(document, require_template=True)
    assert job.id == name
    assert "dljob" not in (EXAMPLES / name / "train.py").read_text().lower()
