"""
What a SideCar costs. Processor time is counted by the kernel, so that a busy machine changes little;
what `benchmarks/footprint.py` prints is far below the limits that are held here.
"""

import sys
import time

import pytest
from _sidecars import SideCar, count_held, measure_memory, read_processor_seconds

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SLEEP = ("sleep", "100000")
EXPRESSION = ("--progress-log", r"step (?P<iteration>\d+) loss=(?P<loss>[\d.]+)")
ALL_DOORS = ("--health", "127.0.0.1:0")
POLL_SECONDS = 5.0
MEMORY_MB = 45


def spend(pids: list[int]) -> float:
    return sum(map(read_processor_seconds, pids))


@pytest.fixture
def begin(tmp_path):
    """Start a SideCar and a training; it is ended after the test."""
    begun = []

    def make(*options: str, command: tuple[str, ...] = SLEEP) -> tuple[SideCar, list[int]]:
        sidecar = SideCar(tmp_path, command, options=options)
        begun.append(sidecar)
        sidecar.wait_ready()
        pids = sidecar.pids()
        sidecar.put(1)
        return sidecar, pids

    yield make
    for sidecar in begun:
        sidecar.end()


def test_keeper_agent_and_helper_are_small(begin):
    sidecar, pids = begin(*EXPRESSION, *ALL_DOORS)
    sidecar.wait_running(1)
    # On a plain machine there is a keeper; the helper is there because of the expression.
    assert len(pids) == 3
    assert measure_memory(pids).once < MEMORY_MB


def test_it_is_ready_after_little_work(tmp_path):
    sidecar = SideCar(tmp_path, SLEEP)
    try:
        sidecar.wait_ready()
        assert spend(sidecar.pids()) < 0.8
    finally:
        sidecar.end()


def test_a_poll_every_five_seconds_costs_less_than_a_hundredth_of_a_core(begin):
    sidecar, pids = begin(*EXPRESSION)
    sidecar.wait_running(1)
    sidecar.state()
    before = spend(pids)
    for _ in range(100):
        sidecar.state()
    poll = (spend(pids) - before) / 100
    # What is done once after that, such as to close a connection, does not count.
    time.sleep(1)
    before, since = spend(pids), time.monotonic()
    time.sleep(5)
    idle = (spend(pids) - before) / (time.monotonic() - since)
    assert idle + poll / POLL_SECONDS < 0.01


LINES = """
import os, sys, time
count = int(sys.argv[1])
due = time.monotonic()
for step in range(1, count + 1):
    os.write(1, b"step %d loss=0.5 lr=0.1 images/s=1234 eta 3:04:05\\n" % step)
    due += 0.001
    time.sleep(max(0.0, due - time.monotonic()))
time.sleep(100000)
"""


@pytest.mark.parametrize("is_tailed", [False, True])
def test_a_thousand_lines_a_second_cost_less_than_a_tenth_of_a_core(begin, tmp_path, is_tailed):
    log = ("--log-file", str(tmp_path / "training.log")) if is_tailed else ()
    command = (sys.executable, "-S", "-c", LINES, "2000")
    sidecar, pids = begin(*EXPRESSION, *log, command=command)
    before, since = spend(pids), time.monotonic()
    sidecar.wait_for(lambda s: s.progress.iteration == 2000)
    # A busy machine makes the training slower, and us idle for longer.
    assert spend(pids) - before < 0.1 * (time.monotonic() - since)


def count_at_rest(pids):
    """Count what is held when nobody asks anything: the last connection is closed a moment later."""
    counts = []
    for _ in range(50):
        counts.append(count_held(pids))
        time.sleep(0.01)
    return min(counts, key=lambda count: count["descriptors"])


def test_a_thousand_reshapes_leave_nothing_behind(begin):
    sidecar, pids = begin(*EXPRESSION)
    for generation in range(2, 12):
        sidecar.put(generation)
        sidecar.wait_running(generation)
    before = count_at_rest(pids)
    for generation in range(12, 1012):
        sidecar.put(generation)
        sidecar.wait_running(generation)
    after = count_at_rest(pids)
    assert (after["threads"], after["descriptors"]) == (before["threads"], before["descriptors"])
    assert after["resident_mb"] < before["resident_mb"] + 2
    assert sidecar.pids()[:3] == pids
