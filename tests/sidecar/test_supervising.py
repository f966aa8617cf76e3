"""No process of the job is left after *gone*, even if the processes resist."""

from __future__ import annotations

import os
import signal

import pytest

from tests.sidecar.drivers import LIMIT_SECONDS, find_children, find_processes, wait_until

pytestmark = pytest.mark.processes

TYPICAL = [("daemon", "setsid", "clearenv", "deaf"), ("fork",), ()]


@pytest.mark.parametrize("manners", TYPICAL, ids=" ".join)
def test_kill_leaves_no_process(drive, token, manners):
    driver = drive(*manners)
    driver.start()
    driver.wait_for("Started")
    driver.wait_for_log("ready")
    expected = 1 + len({"fork", "daemon"} & set(manners))
    assert len(find_processes(token)) == expected + 1  # The harness has the token, too.
    driver.call("kill")
    driver.wait_for("Gone", attempt=1)
    assert len(find_processes(token)) == 1


def test_gone_waits_for_daemons(drive, token):
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
def test_exit_codes_and_signals_are_reported(drive, code, expected):
    driver = drive(f"quit={code}")
    driver.start()
    ended = driver.wait_for("RankEnded")
    assert (ended["exit_code"], ended["signal"]) == expected
    driver.wait_for("Gone")
    names = [event["event"] for event in driver.events if event["event"] != "Changed"]
    assert names == ["Ready", "Started", "RankEnded", "Gone"]


def test_missing_command_is_reported_with_path(drive, token):
    driver = drive(command=["no-such-command-anywhere", token])
    driver.start()
    failed = driver.wait_for("StartFailed")
    assert "no-such-command-anywhere: not found in PATH (/" in str(failed["problem"])
    driver.wait_for("Gone")


def test_one_process_per_gpu(drive, token):
    driver = drive(processes="perGpu")
    driver.start(gpus=4, processes=4)
    driver.wait_for("Started")
    log = driver.wait_for_log("ready", 4)
    assert {line.partition("gpus=")[2] for line in log.splitlines()} == {"0", "1", "2", "3"}
    assert [one["rank"] for one in driver.facts()["processes"]] == [0, 1, 2, 3]
    driver.stop_all()


@pytest.mark.parametrize("victim", ["SideCar", "keeper"])
@pytest.mark.parametrize("keep", [pytest.param("namespace", marks=pytest.mark.story), "tree"])
def test_no_process_outlives_a_killed_sidecar_or_keeper(drive, token, keep, victim):
    driver = drive(*TYPICAL[0], keep=keep)
    driver.start()
    driver.wait_for_log("ready")
    # The SideCar itself is the harness below the keeper.
    keeper = driver.process.pid
    [sidecar] = find_children(keeper) & {*find_processes(token)}
    os.kill(sidecar if victim == "SideCar" else keeper, signal.SIGKILL)
    driver.process.wait(LIMIT_SECONDS)
    wait_until(lambda: not find_processes(token), what="the end of all")
