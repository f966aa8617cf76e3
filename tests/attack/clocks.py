"""
Clocks that are set while trainings go on: by hours and years, forward and back, under a real ``dljob up``.

A small library before the C library says what the time is, and reads from a file how far the clock was set. The
kernel's own clocks go on evenly, as they do when an administrator or NTP sets the clock of a machine.
"""

import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.attack.counts import Count, Size
from tests.local.ups import Up, kill_all, replay

SOURCE = Path(__file__).with_name("set_clock.c")
HOUR, YEAR = 3600, 365 * 86400
JUMPS = {
    Size.SHORT: (-HOUR, HOUR),
    Size.FULL: (-HOUR, HOUR, HOUR, -10, 60, -86400, YEAR, -10 * YEAR, 5 * HOUR),
}
"""By how many seconds the clock is set, one after the other."""
SAID = "the clock of this machine was set"
EVERY = 3
"""Another controller begins after this number of jumps."""


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


def run(size: Size) -> Count:
    """Set the clock again and again; what trains trains on, and newcomers start and complete."""
    count, compiler = Count(), shutil.which("cc")
    if compiler is None:
        count.skipped = "there is no C compiler (cc)"
        return count
    root = Path(tempfile.mkdtemp(prefix="dljob-attack-"))
    clock, before = Clock(root, compiler), dict(os.environ)
    os.environ |= clock.environment
    try:
        for number, jumps in enumerate(_split(JUMPS[size])):
            _live(count, root, clock, jumps, number)
            # And once while no controller runs.
            clock.set(-jumps[-1])
    except (AssertionError, TimeoutError) as error:
        count.broken.append(f"after {count.tried}: {error}")
    finally:
        os.environ.clear()
        os.environ |= before
        kill_all(root)
    if not count.broken:
        shutil.rmtree(root)
    return count


def _live(count: Count, root: Path, clock: Clock, jumps: tuple[int, ...], number: int) -> None:
    """Have one controller while the clock is set several times."""
    with _up(root) as up:
        if not number:
            _begin(up, root)
        for place, jump in enumerate(jumps):
            _jump(count, up, root, clock, jump, f"{number}-{place}")
        up.end()


def _split(jumps: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for place in range(0, len(jumps), EVERY):
        yield jumps[place : place + EVERY]


@contextmanager
def _up(root: Path) -> Iterator[Up]:
    up = Up(root / "state", "--virtual-gpus", 2)
    try:
        up.ready()
        yield up
    finally:
        up.process.kill()
        up.process.wait()


def _begin(up: Up, root: Path) -> None:
    # A job without new iterations for a minute would be started again.
    progress = {"log": r"step (?P<iteration>\d+)", "stallSeconds": 30, "restartSeconds": 60}
    one = {"gpus": {"options": [1]}, "progress": progress}
    assert up.submit(replay("long", root, iterations=10_000_000, faster=20.0, **one)).status == 0
    up.until_phase("long", "Running")


def _jump(count: Count, up: Up, root: Path, clock: Clock, jump: int, name: str) -> None:
    """Set the clock, wait until all has gone on for some time, and look."""
    at, said = _iteration(up), up.log.read_text(encoding="utf-8").count(SAID)
    clock.set(jump)
    up.until(lambda: _iteration(up) > at + 5)
    up.until(lambda: up.log.read_text(encoding="utf-8").count(SAID) > said)
    one = {"gpus": {"options": [1]}}
    up.submit(replay(f"new-{name}", root, iterations=5, faster=20.0, **one))
    up.until_phase(f"new-{name}", "Completed")
    status = up.backend.get_job("long")["status"]
    is_well = (
        status["phase"] == "Running" and not status.get("restarts") and not status.get("failures")
    )
    starts = (root / "state" / "jobs" / "long").glob("*-*/launched")
    count.hold(
        true=is_well and len([*starts]) == 1 and _iteration(up) > at,
        otherwise=f"the clock was set by {jump} s: {status['phase']}, {status.get('message')}",
    )


def _iteration(up: Up) -> int:
    progress = up.backend.get_job("long")["status"].get("progress", {})
    return int(progress.get("iteration", 0))
