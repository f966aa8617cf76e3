"""Freed memory in the middle of the heap goes back to the kernel."""

import subprocess
import sys

import pytest

PROGRAM = """
import re
from pathlib import Path
from dljob.kube.programs import trim

def resident_kb():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

# The C library serves what has more than 512 bytes; Python has pools of its own for less.
blocks = [bytes(700) for _ in range(100_000)]
kept = blocks[::100]
del blocks
before = resident_kb()
trim()
print(before - resident_kb())
"""


@pytest.mark.processes
def test_memory_between_kept_blocks_is_returned() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=240
    )
    assert int(ran.stdout) > 50_000, "almost all of 68 MB is free, between blocks in use"
