"""
The cost of a SideCar, in processor time, which a busy machine changes little.

The limits are far above the figures of `benchmarks/footprint.py`.
"""

import sys
import time

import pytest
from _sidecars import SideCar, count_held, measure_memory, read_processor_seconds

pytestmark = pytest.mark.processes

EXPRESSION = {"progress.log": r"step (?P<iteration>\d+) loss=(?P<loss>[\d.]+)"}
MEMORY_MB = 90
READY_SECONDS = 3.0
POLL_SECONDS, LINE_SECONDS = 0.02, 0.0005
"""The processor time of one poll, and of one line of the training."""
LIMIT_SECONDS = 240.0
LINES = """
import os, time
for step in range(1, 2001):
    os.write(1, b"step %d loss=0.5 lr=0.1 images/s=1234 eta 3:04:05\\n" % step)
    time.sleep(0.001)
time.sleep(100000)
"""


@pytest.fixture
def sidecar(tmp_path):
    """A SideCar whose training prints lines."""
    flags = ("--health", "127.0.0.1:0")
    begun = SideCar(tmp_path, (sys.executable, "-S", "-c", LINES), options=EXPRESSION, flags=flags)
    begun.wait_ready()
    yield begun
    begun.end()


def test_resource_usage_is_small(sidecar, capsys):
    def spend() -> float:
        return sum(map(read_processor_seconds, pids))

    pids = sidecar.pids()
    # On a plain machine a keeper runs; the helper runs because of the expression.
    assert len(pids) == 3
    spent = {"ready": spend()}
    sidecar.put(1)
    sidecar.wait_for(lambda s: s.progress.iteration == 2000, "all lines are read")
    spent["line"] = (spend() - spent["ready"]) / 2000
    before = spend()
    for _ in range(100):
        sidecar.state()
    spent["poll"] = (spend() - before) / 100
    spent["memory"] = measure_memory(pids).once
    with capsys.disabled():
        sys.stdout.write(f"\nprocessor seconds and MB: {spent}\n")
    limits = {
        "ready": READY_SECONDS,
        "line": LINE_SECONDS,
        "poll": POLL_SECONDS,
        "memory": MEMORY_MB,
    }
    assert all(spent[what] < limit for what, limit in limits.items()), spent


def count_at_rest(pids):
    """Count the resources in use between requests: the last connection is closed a moment later."""
    counts = []
    for _ in range(50):
        counts.append(count_held(pids))
        time.sleep(0.01)
    return min(counts, key=lambda count: count["descriptors"])


@pytest.mark.timeout(2700)
def test_many_reshapes_leak_nothing(sidecar):
    pids = sidecar.pids()
    for generation in range(1, 11):
        sidecar.put(generation)
        sidecar.wait_running(generation)
    before = count_at_rest(pids)
    for generation in range(11, 211):
        sidecar.put(generation)
        sidecar.wait_running(generation)
    after, until = count_at_rest(pids), time.monotonic() + LIMIT_SECONDS
    # A SideCar that stands still closes the last connection later.
    while after["descriptors"] > before["descriptors"] and time.monotonic() < until:
        after = count_at_rest(pids)
    assert after["descriptors"] <= before["descriptors"]
    assert after["threads"] <= before["threads"]
    assert after["resident_mb"] < before["resident_mb"] + 4
    assert sidecar.pids()[:3] == pids
