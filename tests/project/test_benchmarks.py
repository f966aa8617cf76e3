"""The script that runs benchmarks: each has a limit, and nothing of it is left."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

LEAVING = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open("left", "w").write(str(child.pid))
"""
HANGING = LEAVING + "import time\ntime.sleep(600)\n"
LACKING = "import sys\nprint('no such server', file=sys.stderr)\nsys.exit(77)\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "run-benchmarks", tmp_path / "scripts")
    return tmp_path


def run(folder: Path, script: str, *options: str) -> "subprocess.CompletedProcess[str]":
    (folder / "benchmarks" / "measure.py").write_text(script, encoding="utf-8")
    command = [sys.executable, str(folder / "scripts" / "run-benchmarks"), *options]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )


def is_left(folder: Path) -> bool:
    pid = int((folder / "left").read_text(encoding="utf-8"))
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_process_in_a_session_of_its_own_ends_with_its_benchmark(folder):
    ran = run(folder, LEAVING)
    assert ran.returncode == 0
    assert "ok: left running: python" in ran.stdout
    assert not is_left(folder)


@pytest.mark.slow
def test_a_benchmark_that_hangs_is_ended_and_counts_as_failed(folder):
    ran = run(folder, HANGING, "--limit", "5", "measure")
    assert ran.returncode == 1
    assert "over time: limit 5 s" in ran.stdout
    assert not is_left(folder)


def test_a_benchmark_that_cannot_run_here_is_listed_with_its_reason(folder):
    ran = run(folder, LACKING)
    assert ran.returncode == 0
    assert "cannot run here: no such server" in ran.stdout


def test_a_failure_is_listed_with_its_last_line(folder):
    ran = run(folder, "raise ValueError('wrong')")
    assert ran.returncode == 1
    assert "failed: ValueError: wrong" in ran.stdout
