"""A run always ends, leaves no process, and names what hung, what failed and what was flaky."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.story]

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 240.0
PROGRAM = """
import json, os, sys
from tests.running import __main__ as program, parts
parts.PYTHON = sys.executable
limit_s, *command = json.loads(os.environ["OWN_STEP"])
step = parts.Step("one", tuple(command), limit_s)
parts.PARTS["own"] = parts.Part("own", "a test of the runner", (((step,),),), 600.0)
sys.exit(program.main(sys.argv[1:], [__file__]))
"""
CONFTEST = """
import pytest
from tests.running import watching

watching.LAST_S = 1.0

def pytest_configure(config):
    watching.install(config)
"""
HANGING = """
import threading, time
import pytest

@pytest.fixture
def stuck():
    yield
    threading.Event().wait()

@pytest.mark.timeout(2)
def test_fails_and_hangs_in_its_tear_down(stuck):
    assert False

@pytest.mark.timeout(2)
def test_swallows_the_end_of_its_time():
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass

def test_is_good():
    pass
"""
FLAKY = """
from pathlib import Path

def test_passes_when_it_runs_again():
    place = Path(__file__).with_name("ran")
    ran = place.exists()
    place.touch()
    assert ran, "for the first time"

def test_is_good():
    pass
"""
STUBBORN = "trap '' TERM INT; echo begun; setsid sleep 7777 & sleep 7778"
"""A command that ignores requests to end, and a child in a session of its own that holds its output."""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    place = tmp_path / "program.py"
    place.write_text(PROGRAM, encoding="utf-8")
    return place


def begin(program: Path, limit_s: float, *command: str) -> "subprocess.Popen[str]":
    step = json.dumps([limit_s, *command])
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OWN_STEP": step}
    return subprocess.Popen(
        [sys.executable, str(program), "own"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        cwd=program.parent,
    )


def end(run: "subprocess.Popen[str]") -> str:
    """Everything it prints until nothing holds its output any more."""
    try:
        return run.communicate(timeout=LIMIT_S)[0]
    finally:
        run.kill()
        run.wait(LIMIT_S)


def run_pytest(program: Path, tests: str) -> tuple[int, str]:
    folder = program.parent
    folder.joinpath("conftest.py").write_text(CONFTEST, encoding="utf-8")
    folder.joinpath("test_suite.py").write_text(tests, encoding="utf-8")
    folder.joinpath("pytest.ini").write_text("[pytest]\naddopts = -p no:faulthandler\n")
    words = ("-m", "pytest", "-q", "-n", "1", "--max-worker-restart=3")
    run = begin(program, 120.0, sys.executable, *words)
    printed = end(run)
    return run.returncode, printed


def test_a_step_that_hangs_is_ended_with_all_its_processes(program: Path):
    run = begin(program, 2.0, "sh", "-c", STUBBORN)
    printed = end(run)
    assert run.returncode == 124
    assert "over time" in printed
    # What ran is named, the child in its own session as well.
    assert "sleep 7777" in printed
    assert find("sleep 7777") == find("sleep 7778") == []


def test_ended_run_ends_its_steps(program: Path):
    run = begin(program, LIMIT_S, "sh", "-c", STUBBORN)
    assert run.stdout is not None
    while "begun" not in run.stdout.readline():
        assert run.poll() is None
    run.send_signal(signal.SIGTERM)
    printed = end(run)
    assert run.returncode == 128 + signal.SIGTERM
    assert "ended by SIGTERM" in printed
    assert find("sleep 7777") == find("sleep 7778") == []


def test_a_test_that_hangs_is_named_and_the_others_run(program: Path):
    status, printed = run_pytest(program, HANGING)
    assert status == 1, printed
    assert "FAILED: test_suite.py::test_fails_and_hangs_in_its_tear_down" in printed
    assert "FAILED: test_suite.py::test_swallows_the_end_of_its_time" in printed
    # The stacks of what hung.
    assert "in stuck" in printed
    assert printed.splitlines()[-1] == "1 passed, 2 failed, 0 skipped"


def test_a_test_that_passes_when_it_runs_again_is_flaky(program: Path):
    status, printed = run_pytest(program, FLAKY)
    assert status == 0, printed
    name = "test_suite.py::test_passes_when_it_runs_again"
    *_, flaky, last = printed.splitlines()
    assert flaky == f"flaky: {name}"
    assert last == "2 passed, 0 failed, 0 skipped"
    kept = (program.parent / ".tests" / "flaky.txt").read_text(encoding="utf-8")
    assert name in kept
    assert "for the first time" in kept


def find(words: str) -> list[str]:
    end_at = time.monotonic() + LIMIT_S
    while True:
        found = [
            place.name
            for place in Path("/proc").iterdir()
            if place.name.isdecimal() and _command(place) == words
        ]
        if not found or time.monotonic() > end_at:
            return found
        # A process that was killed takes a moment to vanish.
        time.sleep(0.05)


def _command(place: Path) -> str:
    try:
        return place.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""
