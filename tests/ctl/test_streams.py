"""Standard output holds data only, even if libraries print to it."""

import subprocess
import sys

PROGRAM = """
import os, sys
sys.path.insert(0, sys.argv[1])
from dlctl.output.streams import divert_libraries
print("before", flush=True)
with divert_libraries():
    os.write(1, b"a solver talks\\n")
print("after")
"""


def test_what_a_library_prints_goes_to_standard_error():
    operator = next(path for path in sys.path if path.endswith("operator"))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, operator], capture_output=True, text=True, check=True
    )
    assert done.stdout == "before\nafter\n"
    assert done.stderr == "a solver talks\n"
