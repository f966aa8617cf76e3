"""A SideCar begins only when no process of an earlier start is left."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys

import pytest

from dljob_sidecar import EXIT_UNAVAILABLE
from dljob_sidecar.linux.family import MARK
from dljob_sidecar.processes.leftovers import hold, kill_holders, make_mark, sweep
from tests.sidecar.containers import BOUNDED, find_sidecar
from tests.sidecar.drivers import LIMIT_SECONDS, find_processes, wait_until

pytestmark = pytest.mark.processes


@pytest.fixture
def begin(token):
    """Start processes that carry a mark."""
    begun = []

    def begin(mark):
        command = [sys.executable, "-S", "-c", "import time; time.sleep(1000)", token]
        begun.append(subprocess.Popen(command, env={MARK: mark}))
        return begun[-1]

    yield begin
    for process in begun:
        process.kill()
        process.wait(LIMIT_SECONDS)


def test_processes_of_other_names_survive_the_sweep(begin, token):
    name = f"/run/{token}"
    others = [begin(make_mark(other, "a1")) for other in (f"{name}.2", f"{name}/x", f"/x{name}")]
    assert sweep(name) == 0
    assert [other.poll() for other in others] == [None] * 3


def kill_both(sidecar):
    """Kill the keeper and its SideCar at once."""
    pids = [find_sidecar(sidecar.process.pid), sidecar.process.pid]
    for how in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, how)
    sidecar.wait_ended()


def run_on_a_plain_machine(start, *manners):
    """Start a training without namespaces, whose processes may outlive the SideCar."""
    sidecar = start(*manners, python=BOUNDED)
    sidecar.train(1)
    wait_until(lambda: f"ready {sidecar.token}" in sidecar.read_log(), what="the training")
    return sidecar


@pytest.mark.parametrize(
    "hiding", [pytest.param((), marks=pytest.mark.story), ("clearenv",)], ids=["", "clearenv"]
)
def test_next_start_ends_leftovers(start, token, tmp_path, hiding):
    """A process without environment and parents is found by the file that it holds."""
    kill_both(run_on_a_plain_machine(start, "daemon", "setsid", "deaf", *hiding))
    wait_until(lambda: len(find_processes(token)) == 1, what="the death of the training itself")
    assert not hiding or sweep(str(tmp_path / "control")) == 0
    following = start(python=BOUNDED)
    assert following.trainings() == []
    assert hiding or "ended 1 processes that an earlier start had left" in following.read_log()


def test_reader_without_the_lock_survives(tmp_path):
    path = tmp_path / "held"
    ours = hold(str(path))
    # It opens the file itself.
    script = f"import time; file = open({str(path)!r}); print('open', flush=True); time.sleep(1000)"
    with subprocess.Popen([sys.executable, "-S", "-c", script], stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"open\n"
        assert kill_holders(ours) == 0
        assert reader.poll() is None
        reader.kill()
    os.close(ours)


def test_sidecar_does_not_start_with_leftovers(start, tmp_path):
    with (tmp_path / "control.held").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        sidecar = start(waits=False)
        assert sidecar.wait_ended() == EXIT_UNAVAILABLE
    log = sidecar.read_log()
    assert "ERROR ProcessesDoNotEnd: processes of an earlier start are still there" in log
    assert "ready" not in log
