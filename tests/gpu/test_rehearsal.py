"""The way through `make test-gpu`, with stand-ins for NVML, CUDA and nvidia-smi."""

import os
import subprocess
import sys

import pytest

from tests.sidecar.drivers import ROOT


def run(*options: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "tests.gpu", *options],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=1700.0,
    )


@pytest.mark.processes
@pytest.mark.timeout(1800)
def test_it_goes_through_with_stand_ins():
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    done = run("--rehearse", "--times", "4")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 of 8 parts held or were skipped" in done.stdout
    assert "| two masters | 0 |" in done.stdout
    assert done.stdout.count("skipped: ") == 3, done.stdout


@pytest.mark.processes
def test_it_is_skipped_with_a_word_where_there_is_no_gpu(tmp_path):
    done = run(PATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("skipped: there is no nvidia-smi; ")
