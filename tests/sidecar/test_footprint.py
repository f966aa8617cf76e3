"""
The cost of a SideCar. The kernel counts processor time, so that a busy machine changes little; the
figures that `benchmarks/footprint.py` prints are far below the limits that are held here.
"""

import math
import sys
import time
from collections.abc import Callable

import pytest
from _sidecars import SideCar, count_held, measure_memory, read_processor_seconds

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SLEEP = ("sleep", "100000")
EXPRESSION = ("--progress-log", r"step (?P<iteration>\d+) loss=(?P<loss>[\d.]+)")
ALL_DOORS = ("--health", "127.0.0.1:0")
POLL_SECONDS = 5.0
MEMORY_MB = 45
TRIES = 5
LIMIT_SECONDS = 240.0


def spend(pids: list[int]) -> float:
    return sum(map(read_processor_seconds, pids))


def measure_least(measure: Callable[[], float], *, limit: float) -> float:
    """
    Measure until the cost is below the limit, a few times at most, and return the least.

    For the time that the host stops a virtual machine, the kernel may charge the process that ran right then.
    """
    least, tries = math.inf, 0
    while least >= limit and tries < TRIES:
        least, tries = min(least, measure()), tries + 1
    return least


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
    # On a plain machine a keeper runs; the helper runs because of the expression.
    assert len(pids) == 3
    assert measure_memory(pids).once < MEMORY_MB


def test_it_is_ready_after_little_work(tmp_path):
    def measure() -> float:
        sidecar = SideCar(tmp_path, SLEEP)
        try:
            sidecar.wait_ready()
            return spend(sidecar.pids())
        finally:
            sidecar.end()

    assert measure_least(measure, limit=0.8) < 0.8


def test_a_poll_every_five_seconds_costs_less_than_a_hundredth_of_a_core(begin):
    sidecar, pids = begin(*EXPRESSION)
    sidecar.wait_running(1)
    sidecar.state()

    def measure() -> float:
        before = spend(pids)
        for _ in range(100):
            sidecar.state()
        poll = (spend(pids) - before) / 100
        # Work that happens once after that, such as to close a connection, does not count.
        time.sleep(1)
        before, since = spend(pids), time.monotonic()
        time.sleep(5)
        idle = (spend(pids) - before) / (time.monotonic() - since)
        return idle + poll / POLL_SECONDS

    assert measure_least(measure, limit=0.01) < 0.01


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

    def measure() -> float:
        sidecar, pids = begin(*EXPRESSION, *log, command=command)
        before, since = spend(pids), time.monotonic()
        sidecar.wait_for(lambda s: s.progress.iteration == 2000)
        # A busy machine makes the training slower, and us idle for longer.
        share = (spend(pids) - before) / (time.monotonic() - since)
        sidecar.end()
        return share

    assert measure_least(measure, limit=0.1) < 0.1


def count_at_rest(pids):
    """Count the resources in use between requests: the last connection is closed a moment later."""
    counts = []
    for _ in range(50):
        counts.append(count_held(pids))
        time.sleep(0.01)
    return min(counts, key=lambda count: count["descriptors"])


@pytest.mark.timeout(2700)
def test_a_thousand_reshapes_leave_nothing_behind(begin):
    sidecar, pids = begin(*EXPRESSION)
    for generation in range(2, 12):
        sidecar.put(generation)
        sidecar.wait_running(generation)
    before = count_at_rest(pids)
    for generation in range(12, 1012):
        sidecar.put(generation)
        sidecar.wait_running(generation)
    after, until = count_at_rest(pids), time.monotonic() + LIMIT_SECONDS
    # A SideCar that stands still closes the last connection later.
    while after["descriptors"] > before["descriptors"] and time.monotonic() < until:
        after = count_at_rest(pids)
    assert after["descriptors"] <= before["descriptors"]
    assert after["threads"] <= before["threads"]
    assert after["resident_mb"] < before["resident_mb"] + 2
    assert sidecar.pids()[:3] == pids
