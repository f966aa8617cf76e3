"""Progress is read from the output and files of the training, without stalling anything."""

from __future__ import annotations

import json
import os
import pathlib
import sys

import pytest

from tests.sidecar.drivers import wait_until

pytestmark = pytest.mark.processes

STEP = r"step (?P<iteration>\d+) loss=(?P<loss>[\d.]+)"


def append(driver, text):
    """Append to the log, as the training would."""
    with driver.log.open("a") as log:
        log.write(text)


@pytest.mark.story
def test_log_with_bars_and_long_lines_is_read(drive):
    driver = drive(progress_log=STEP).begin()
    append(driver, "step 1 loss=0.5\nnothing\nstep 2 lo")
    append(driver, "ss=0.25\n")
    facts = driver.wait_for_fact(lambda facts: facts["progress"]["iteration"] == 2, "step 2")
    assert facts["progress"]["metrics"] == {"loss": 0.25}
    append(driver, "step 3 loss=0.5\rstep 4 loss=0.4\r")
    driver.wait_for_fact(lambda facts: facts["progress"]["iteration"] == 4, "step 4")
    append(driver, "step 5 loss=0.5" + "x" * 300_000 + "\nstep 6 loss=0.5\n")
    driver.wait_for_fact(lambda facts: facts["progress"]["iteration"] == 6, "step 6")
    driver.stop_all()


@pytest.mark.parametrize("look_seconds", [0.0, 0.5])
def test_last_lines_are_read_before_the_end_is_reported(drive, look_seconds):
    """The reported end includes all progress, although one look does not read all lines."""
    code = "for i in range(600): print('step', i + 1, 'loss=0.5', 'x' * 900, flush=i % 97 == 0)"
    driver = drive(
        progress_log=STEP, command=[sys.executable, "-c", code], look_seconds=look_seconds
    )
    driver.start()
    driver.wait_for("Gone")
    assert driver.facts()["progress"]["iteration"] == 600


def test_stderr_does_not_break_a_line(drive, tmp_path, token):
    output, seen = tmp_path / "output", tmp_path / "seen"
    output.touch()
    # Half a line of a buffered output, and then a warning.
    code = f"""
import os, time
os.write(1, b"step 1 loss=0.5\\nstep 2")
while not os.path.exists({str(seen)!r}):
    time.sleep(0.01)
os.write(2, b"3 warnings, loss=9.9\\n")
while os.path.exists({str(seen)!r}):
    time.sleep(0.01)
os.write(1, b" loss=0.25\\n")
time.sleep(1000)
"""
    command = [sys.executable, "-S", "-c", code, token]
    way = {"log_file": "", "stdout": str(output), "stderr": str(output)}
    driver = drive(
        command=command, progress_log=r"step (?P<iteration>\d+).*loss=(?P<loss>.+)", **way
    )
    driver.start()
    driver.wait_for_fact(lambda facts: facts["progress"]["iteration"] == 1, "the first step")
    seen.touch()
    wait_until(lambda: "warnings" in output.read_text(), what="the warning")
    seen.unlink()
    facts = driver.wait_for_fact(lambda facts: facts["progress"]["iteration"] > 1, "another step")
    assert (facts["progress"]["iteration"], facts["progress"]["metrics"]) == (2, {"loss": 0.25})
    driver.stop_all()


def test_invalid_or_slow_expression_is_reported(drive):
    driver = drive(progress_log=r"(?P<x>")
    assert "(?P<x>" in driver.wait_for_problem("ExpressionInvalid")["message"]
    driver.begin().stop_all()
    driver = drive(progress_log=r"(?P<x>(a+)+)$").begin()
    append(driver, "a" * 40 + "b\n")
    assert "(a+)+" in driver.wait_for_problem("ExpressionTooSlow")["message"]
    # The training goes on, and so do we.
    driver.stop_all()


def test_file_of_json_lines_is_read(drive, tmp_path):
    path = tmp_path / "progress.jsonl"
    path.write_text('{"iteration": 99}\n')
    driver = drive(progress_file=str(path)).begin()
    with path.open("a") as file:
        file.write('{"iteration": 3, "top5": 0.75}\n{"itera')
    facts = driver.wait_for_fact(lambda facts: facts["progress"]["iteration"], "an iteration")
    # Earlier lines of the file belong to a former start.
    assert facts["progress"]["iteration"] == 3
    path.unlink()
    path.write_text(json.dumps({"iteration": 4}) + "\n")
    driver.wait_for_fact(lambda facts: facts["progress"]["iteration"] == 4, "the new file")
    driver.stop_all()


@pytest.mark.parametrize("kind", ["folder", "fifo"])
def test_unreadable_progress_file_is_reported(drive, tmp_path, kind):
    path = tmp_path / "progress"
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    driver = drive(progress_file=str(path)).begin()
    assert str(path) in driver.wait_for_problem("ProgressFileUnreadable")["message"]
    path.rmdir() if kind == "folder" else path.unlink()
    path.write_text("step 5\n")
    driver.wait_for_problem("ProgressNotUnderstood")
    driver.stop_all()


def test_stall_is_reported(drive):
    driver = drive(stall_seconds=1).begin()
    driver.wait_for_problem("TrainingStalled")
    driver.stop_all()
    assert driver.facts()["problems"] == []


def test_output_is_unchanged_and_waits_for_its_reader(drive, tmp_path):
    fifo = tmp_path / "out"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    driver = drive("say=" + "y" * 99, log_file="", stdout=str(fifo), progress_log=STEP)
    driver.start()
    driver.wait_for("Started")
    wait_until(
        lambda: is_waiting_to_write(driver.facts()["processes"][0]["pid"]), what="a full pipe"
    )
    os.set_blocking(reader, True)
    head = os.read(reader, 65536)
    assert b"ready" in head.splitlines()[0]
    rest = b"".join(os.read(reader, 65536) for _ in range(100))
    lines = (head + rest).split(b"\n")[1:-1]
    assert set(lines) == {b"y" * 99}
    # Without a reader the training stands still, but can be stopped.
    driver.stop_all()
    os.close(reader)


def is_waiting_to_write(pid):
    try:
        with pathlib.Path(f"/proc/{pid}/wchan").open() as file:
            if "pipe_write" in file.read():
                return True
        with pathlib.Path(f"/proc/{pid}/syscall").open() as file:
            return file.read().startswith("1 ")
    except OSError:
        return False
