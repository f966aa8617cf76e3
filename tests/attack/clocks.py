"""
Clocks that are set while trainings go on: by hours and years, forward and back, under a real ``dljob up``.

A small library before the C library says what the time is, and reads from a file how far the clock was set. The
kernel's own clocks go on evenly, as they do when an administrator or NTP sets the clock of a machine.
"""

import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("set_clock.c")


class Clock:
    """A clock that can be set, for processes with this environment."""

    def __init__(self, folder: Path, compiler: str) -> None:
        library = folder / "set_clock.so"
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True, timeout=240.0)
        self._file = folder / "offset"
        self._seconds = 0
        self.set(0)
        self.environment = {"LD_PRELOAD": str(library), "DLJOB_TEST_CLOCK": str(self._file)}

    def set(self, seconds: int) -> None:
        """Set the clock forward by these seconds, or back if they are negative."""
        self._seconds += seconds
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("q", self._seconds))
