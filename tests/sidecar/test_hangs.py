"""A hanging training is reported with the activity of each rank, and stacks if possible."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from dljob_sidecar.diagnosing import stacks
from dljob_sidecar.diagnosing.stacks import ProcessSample
from dljob_sidecar.observing import facts
from dljob_sidecar.observing.progress import Pauses
from tests.sidecar.clients import live_through

processes = pytest.mark.processes


def pauses(*at):
    found = Pauses()
    for now in at:
        found.step(now)
    return found


def test_stall_limit_is_learnt_from_the_steps():
    steady = pauses(*range(30))
    assert steady.limit(600.0) == 60.0
    # An evaluation belongs to the training.
    assert pauses(*range(20), 49).limit(600.0) == 300.0
    assert pauses(*range(20), 119).limit(600.0) == 600.0
    assert pauses(*range(20), 119).limit(0.0) == 1000.0


def test_stall_limit_begins_with_the_setting():
    assert pauses(0.0, 1.0).limit(600.0) == 600.0
    assert pauses().limit(0.0) == 0.0
    again = pauses(*range(30))
    again.begin()
    assert again.limit(600.0) == 600.0


def sight(state="S", waits_for="", ticks=0, threads=1):
    return ProcessSample(state, waits_for, threads, ticks)


def test_activity_of_ranks_is_described():
    ticks = os.sysconf("SC_CLK_TCK")
    for after, said in (
        (sight(ticks=10 * ticks, threads=3), "computes (1000% of a CPU), 3 threads"),
        (sight(waits_for="futex_wait"), "waits in futex_wait, 1 thread"),
        (sight("D"), "waits for a device or a file system that does not answer, 1 thread"),
        (sight("T"), "is stopped by a signal, 1 thread"),
        (None, "is gone"),
    ):
        assert stacks.describe(sight(), after, seconds=1.0) == said
    reported = [(0, "computes"), (1, "computes"), (2, "waits"), (3, "computes")]
    # The odd ones come first.
    assert stacks.group(reported) == "rank 2 waits; each of ranks 0, 1, 3 computes"


def test_second_hang_is_reported_at_its_place(monkeypatch):
    monkeypatch.setattr(facts, "BETWEEN_SECONDS", 0.0)
    reported: list[str] = []

    async def story():
        hang = facts.Hang(
            processes=tuple,
            complain=lambda _, message: reported.append(message.partition(")")[0]),
            solve=reported.append,
        )
        for iteration in (7, 7, 39):
            hang.update(9.0, 5.0, what=f"iteration {iteration}")
            await asyncio.sleep(0.01)
        hang.end()

    live_through(story())
    first, solved, second, ended = reported
    assert (solved, ended) == ("TrainingHangs", "TrainingHangs")
    assert first.endswith("(iteration 7")
    assert second.endswith("(iteration 39")


STEPS = """
import sys, time
from pathlib import Path
for step in range(39):
    print(f"step {step}", flush=True)
    time.sleep(0.01)
def block_for_ever():
    print("step 39", flush=True)
    time.sleep(1000)
block_for_ever()
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(STEPS)
    return path


@processes
@pytest.mark.parametrize("preload", [[], ["colorsys"]], ids=["cold", "warm"])
def test_hang_is_reported_with_stacks(drive, token, script, preload):
    driver = drive(
        command=[sys.executable, str(script), token],
        preload=preload,
        progress_log=r"step (?P<iteration>\d+)",
        stall_seconds=2,
    )
    if preload:
        driver.wait_for_fact(lambda facts: facts["warmth"]["ready"] == 1, "a spare")
    driver.start()
    # A busy machine may cause earlier reports, which are solved later.
    message = driver.wait_for_problem("TrainingHangs", about="iteration 39")["message"]
    assert "rank 0 waits" in message
    if preload:
        assert "1 of 1 ranks wrote their stacks" in message
        assert "in block_for_ever" in driver.wait_for_log("in block_for_ever")
    else:
        # An unhandled signal would have ended it.
        assert "0 of 1 ranks wrote their stacks" in message
        assert "faulthandler" not in driver.read_log()
    assert driver.facts()["processes"][0]["signal"] is None
    driver.stop_all()
    assert not any(one["name"] == "TrainingHangs" for one in driver.facts()["problems"])


@processes
def test_only_processes_with_a_handler_are_signalled(token):
    handler = signal.signal(stacks.SIGNAL, lambda *_: None)
    try:
        assert stacks.request(os.getpid())
    finally:
        signal.signal(stacks.SIGNAL, handler)
    assert not stacks.request(os.getpid())
    assert not stacks.request(1 << 30)
