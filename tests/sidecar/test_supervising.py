"""No process of the job is left when it is said to be gone, even if the processes resist."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path

import pytest

from tests.sidecar.drivers import find_processes, wait_until

pytestmark = pytest.mark.processes

MANNERS = ("fork", "daemon", "setsid", "clearenv", "deaf")
ALL = [
    manners
    for count in range(len(MANNERS) + 1)
    for manners in itertools.combinations(MANNERS, count)
]
TYPICAL = [("daemon", "setsid", "clearenv", "deaf"), ("fork",), ("deaf",), ()]


@pytest.mark.parametrize("manners", TYPICAL, ids=" ".join)
def test_nothing_is_left_after_a_kill(drive, token, manners):
    driver = drive(*manners)
    driver.start()
    driver.wait_for("Started")
    driver.wait_for_log("ready")
    expected = 1 + len({"fork", "daemon"} & set(manners))
    assert len(find_processes(token)) == expected + 1  # The harness bears the token, too.
    driver.call("kill")
    driver.wait_for("Gone", attempt=1)
    assert len(find_processes(token)) == 1


def test_sigterm_is_enough_for_one_that_listens(drive, token):
    driver = drive()
    driver.start()
    driver.wait_for_log("ready")
    driver.call("terminate")
    ended = driver.wait_for("RankEnded")
    assert (ended["exit_code"], ended["signal"]) == (None, 15)
    driver.wait_for("Gone")


def test_what_the_ranks_leave_behind_gets_sigterm_as_well(drive, token):
    driver = drive("fork", "setsid", "lone")
    driver.start()
    driver.wait_for("RankEnded", exit_code=0)
    driver.call("terminate")
    driver.wait_for("Gone")


def test_gone_is_not_said_while_a_daemon_lives(drive, token):
    driver = drive("daemon", "setsid", "clearenv", "deaf", "lone")
    driver.start()
    driver.wait_for("RankEnded", exit_code=0)
    driver.call("terminate")
    driver.facts()
    assert not any(event["event"] == "Gone" for event in driver.events)
    assert len(find_processes(token)) == 2
    driver.stop_all()
    assert len(find_processes(token)) == 1


@pytest.mark.parametrize(
    ("code", "expected"), [("0", (0, None)), ("3", (3, None)), ("-11", (None, 11))]
)
def test_exit_codes_and_signals_are_told(drive, token, code, expected):
    driver = drive(f"quit={code}")
    driver.start()
    ended = driver.wait_for("RankEnded")
    assert (ended["exit_code"], ended["signal"]) == expected
    driver.wait_for("Gone")
    names = [event["event"] for event in driver.events if event["event"] != "Changed"]
    assert names == ["Ready", "Started", "RankEnded", "Gone"]


def test_a_command_that_is_in_no_folder_of_path_is_told_with_path(drive, token):
    driver = drive(command=["no-such-command-anywhere", token])
    driver.start()
    failed = driver.wait_for("StartFailed")
    assert "no-such-command-anywhere: not found in PATH (/" in str(failed["problem"])
    driver.wait_for("Gone")


def test_a_command_that_does_not_exist_is_named(drive, token):
    driver = drive(command=["/nonexistent/python", token])
    driver.start()
    failed = driver.wait_for("StartFailed")
    assert "CommandNotFound" in str(failed["problem"])
    driver.wait_for("Gone")
    # The SideCar lives on.
    driver.facts()


def test_a_command_that_cannot_be_run_is_named(drive, token, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print()")
    driver = drive(command=[str(script), token])
    driver.start()
    assert "CommandNotExecutable" in str(driver.wait_for("StartFailed")["problem"])
    driver.wait_for("Gone")


def test_one_process_per_gpu_each_with_its_own(drive, token):
    driver = drive(split="perGpu")
    driver.start(gpus=4, processes=4)
    driver.wait_for("Started")
    log = driver.wait_for_log("ready", 4)
    assert {line.partition("gpus=")[2] for line in log.splitlines()} == {"0", "1", "2", "3"}
    assert [one["rank"] for one in driver.facts()["processes"]] == [0, 1, 2, 3]
    driver.stop_all()


def test_many_starts_leave_no_descriptor_open(drive, token):
    driver = drive()
    counts = []
    for attempt in range(1, 11):
        driver.start(attempt)
        driver.wait_for("Started", attempt=attempt)
        driver.stop_all(attempt)
        counts.append(driver.facts()["descriptors"])
    assert len(set(counts)) == 1


@pytest.mark.parametrize("keep", ["namespace", "tree"])
@pytest.mark.parametrize("manners", TYPICAL[:2], ids=" ".join)
def test_nothing_outlives_a_killed_sidecar(drive, token, keep, manners):
    driver = drive(*manners, keep=keep)
    driver.start()
    driver.wait_for_log("ready")
    # The SideCar itself is the harness below the keeper.
    sidecar = next(pid for pid in find_processes(token) if is_child_of(pid, driver.process.pid))
    kill(sidecar)
    driver.process.wait(240)
    assert find_processes(token) == []


@pytest.mark.parametrize("keep", ["namespace", "tree"])
def test_nothing_outlives_a_killed_keeper(drive, token, keep):
    driver = drive("daemon", "setsid", keep=keep)
    driver.start()
    driver.wait_for_log("ready")
    kill(driver.process.pid)
    wait_until(lambda: not find_processes(token), what="the end of all")


def kill(pid):
    os.kill(pid, signal.SIGKILL)


def is_child_of(pid, parent):
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    return int(text.rpartition(")")[2].split()[1]) == parent
