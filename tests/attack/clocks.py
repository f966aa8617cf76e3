"""
A clock that tests set by hours and years, for a real ``dljob up``.

A preloaded library shifts the time by the offset in a file. The kernel's monotonic clocks go on, as they do when NTP sets
the clock of a machine.
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
