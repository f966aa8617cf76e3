"""A failed training is reported with the process that failed first, and its last lines."""

from __future__ import annotations

import signal
import sys
import time

import pytest

from dljob_sidecar.diagnosing.tracebacks import Tracebacks
from dljob_wire.messages import Phase
from tests.sidecar.drivers import wait_until

processes = pytest.mark.processes

# Rank 1 raises on request; the others wait for it, and raise when they have lost it.
TRAINING = """
import os, signal, sys, time
from pathlib import Path
rank, folder = int(os.environ["RANK"]), Path(sys.argv[2])
print(f"rank {rank} is up", flush=True)
(folder / f"up-{rank}").write_text(str(os.getpid()))
while True:
    if rank == 1 and (folder / "kill").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    if (folder / "fail").exists():
        if rank == 1:
            print("the last step", flush=True)
            raise ValueError("shapes (3,4) and (5,6) do not fit")
        while (folder / "up-1").exists() and os.path.exists("/proc/" + (folder / "up-1").read_text()):
            time.sleep(0.01)
        raise ConnectionError("connection closed by peer")
    time.sleep(0.01)
"""


def feed(tracebacks, *blocks, now=0.0, stream=0):
    for block in blocks:
        tracebacks.feed(block.encode(), now, stream=stream)


def traceback(exception, prefix=""):
    frames = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    f()\n'
    return "".join(f"{prefix}{line}\n" for line in (frames + exception).split("\n"))


def test_first_traceback_is_the_cause():
    found = Tracebacks()
    feed(found, "step 1\nstep 2\n", traceback("ValueError: bad"))
    found.fail(1.0)
    feed(found, traceback("ConnectionError: peer"), now=1.5)
    words = found.last_words()
    assert words.exception_of(0) == words.exception_of(1) == "ValueError: bad"
    assert words.lines[:2] == ("step 1", "step 2")
    assert words.lines[5] == "ValueError: bad"


def test_interleaved_tracebacks_are_separated_by_rank():
    one = traceback("ConnectionError: peer", "[rank0]: ").splitlines(keepends=True)
    other = traceback("ValueError: bad", "[rank1]: ").splitlines(keepends=True)
    found = Tracebacks()
    feed(found, *(line for both in zip(one, other, strict=True) for line in both))
    found.fail(0.0)
    words = found.last_words()
    assert words.exception_of(1) == "ValueError: bad"
    assert words.exception_of(0) == "ConnectionError: peer"


def test_split_traceback_is_found():
    text = "x\n" + traceback("ValueError: bad")
    for cut in range(len(text)):
        found = Tracebacks()
        feed(found, text[:cut], text[cut:])
        found.fail(0.0)
        assert found.last_words().exception_of(0) == "ValueError: bad", cut


def test_last_exception_of_a_chain_counts():
    chain = "\nDuring handling of the above exception, another exception occurred:\n\n"
    found = Tracebacks()
    feed(found, traceback("KeyError: 'x'"), chain, traceback("ValueError: bad"))
    found.fail(0.0)
    assert found.last_words().exception_of(0) == "ValueError: bad"


def test_old_or_earlier_tracebacks_are_ignored():
    found = Tracebacks()
    feed(found, traceback("OSError: tried again"), now=0.0)
    found.fail(100.0)
    assert found.last_words().exception_of(0) == ""
    feed(found, traceback("ValueError: bad"), now=100.0)
    found.begin()
    found.fail(100.0)
    assert (found.last_words().exception_of(0), found.last_words().lines) == ("", ())


def test_last_words_are_printable_and_bounded():
    found = Tracebacks()
    feed(found, "\x1b[31mred\x00\n" + "x" * 100_000 + "\n")
    found.fail(0.0)
    red, long = found.last_words().lines
    assert red == " [31mred "
    assert len(long) == 512


@pytest.fixture
def failing(start, token, tmp_path):
    """A SideCar with two ranks that run, and fail when files in the folder say so."""
    script = tmp_path / "train.py"
    script.write_text(TRAINING)

    def begin(**options):
        command = (sys.executable, "-S", str(script), token, str(tmp_path))
        options = {"processes": "perGpu", "framework": "pytorch", **options}
        sidecar = start(command=command, options=options)
        sidecar.run(1, "0", "1", processes=2)
        up = [tmp_path / "up-0", tmp_path / "up-1"]
        wait_until(lambda: all(one.exists() for one in up), what="both ranks")
        return sidecar

    return begin


@processes
def test_killed_rank_is_blamed(failing, tmp_path):
    sidecar = failing()
    (tmp_path / "kill").touch()
    state = sidecar.wait_phase(Phase.FAILED)
    assert (state.failure.rank, state.failure.signal) == (1, signal.SIGKILL)
    assert state.processes[0].signal == signal.SIGTERM
    assert state.failure.lines


@processes
@pytest.mark.parametrize("has_file", [pytest.param(False, marks=pytest.mark.story), True])
def test_exception_of_the_first_failed_rank_is_reported(failing, tmp_path, has_file):
    sidecar = failing(**({"logFile": str(tmp_path / "output")} if has_file else {}))
    began = time.time()
    (tmp_path / "fail").touch()
    failure = sidecar.wait_phase(Phase.FAILED).failure
    assert (failure.rank, failure.exit_code) == (1, 1)
    assert began <= failure.at <= time.time()
    # The end of a file that does not answer at once is read a moment later.
    wait_until(lambda: sidecar.state().failure.exception, what="the exception")
    failure = sidecar.state().failure
    assert failure.exception == "ValueError: shapes (3,4) and (5,6) do not fit"
    assert "rank 1 | the last step" in failure.lines
