"""The signal for a checkpoint goes only to processes with a handler, and ends none."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import pytest

from dljob_sidecar.checkpoints.requests import find_recipients
from tests.sidecar.drivers import LIMIT_SECONDS, read_proc

pytestmark = pytest.mark.processes

# Each line in one piece, because several write to one pipe.
LATE = "import os, time; os.write(1, b'up\\n'); time.sleep(600)"
RANK = "import os, signal; signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b'saved\\n'))"
PARENT = f"{RANK}; os.fork(); {LATE}"
READY = f"{RANK}; {LATE}"


@pytest.fixture
def start():
    """Start a shell with this script in its own group, and wait for its processes."""
    shells = []

    def begin(script, *, lines, **variables):
        shell = subprocess.Popen(
            ["bash", "-c", script],
            env={**os.environ, "PYTHON": sys.executable, **variables},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        shells.append(shell)
        assert shell.stdout is not None
        assert [shell.stdout.readline() for _ in range(lines)] == ["up\n"] * lines
        return shell

    yield begin
    for shell in shells:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait(LIMIT_SECONDS)
        assert shell.stdout is not None
        shell.stdout.close()


def find(shell, *, to_all=False):
    return find_recipients(shell.pid, signal.SIGUSR1, to_all=to_all)


def test_shell_does_not_swallow_the_signal(start):
    shell = start('"$PYTHON" -c "$RANK"; true', lines=1, RANK=READY)
    found = find(shell)
    assert (len(found.pids), found.fault) == (1, "")
    assert found.pids[0] != shell.pid
    os.kill(found.pids[0], signal.SIGUSR1)
    assert shell.stdout.readline() == "saved\n"
    assert shell.poll() is None


@pytest.mark.parametrize("script", ['exec "$PYTHON" -c "$RANK"', '"$PYTHON" -c "$RANK"; true'])
def test_helpers_of_a_rank_are_not_signalled(start, script):
    shell = start(script, lines=2, RANK=PARENT)
    [asked] = find(shell, to_all=True).pids
    assert (asked == shell.pid) == script.startswith("exec")


RANKS = """
RANK=0 TORCHELASTIC_RUN_ID=none "$PYTHON" -c "$FIRST" &
RANK=1 TORCHELASTIC_RUN_ID=none "$PYTHON" -c "$SECOND" &
wait; true
"""
LAUNCH = {"TORCHELASTIC_RUN_ID": "dljob"}


@pytest.mark.story
def test_leader_or_all_ranks_are_signalled(start):
    shell = start(RANKS, lines=2, FIRST=READY, SECOND=READY, **LAUNCH)
    (leader,) = find(shell).pids
    assert b"RANK=0" in read_proc(leader, "environ").split(b"\0")
    assert len(find(shell, to_all=True).pids) == 2


def test_ranks_without_handler_are_named(start):
    shell = start(RANKS, lines=2, FIRST=READY, SECOND=LATE, **LAUNCH)
    for to_all in (False, True):
        found = find(shell, to_all=to_all)
        assert (found.pids, found.fault) == ((), "rank 1 has no handler for SIGUSR1")
    shell = start('"$PYTHON" -c "$RANK"; true', lines=1, RANK=LATE)
    assert find(shell) == ((), "the training has no handler for SIGUSR1")


def test_ignoring_shell_does_not_hide_a_missing_handler(start):
    shell = start('trap \'\' USR1; "$PYTHON" -c "$RANK"; true', lines=1, RANK=LATE)
    assert find(shell) == ((), "the training has no handler for SIGUSR1")
