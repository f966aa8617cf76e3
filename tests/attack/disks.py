"""
Disks that are full or read-only, in a mount namespace of their own that ends with the attack.

On a full disk a controller begins and jobs can be cancelled; on a read-only one it refuses in one
line. A refused request succeeds as soon as the disk works again, and a training goes on meanwhile.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import endings
from tests.attack.counts import Count, Size
from tests.disks import fill, on_small_disk
from tests.local.asking import Asker
from tests.local.ups import find_processes

LONGEST_S = 120.0
ROUNDS = {Size.SHORT: 1, Size.FULL: 6}
SCRIPT = "from dlctl.main import main; main()"


class Disk:
    """A small disk, and a ``dljob up`` with its state there."""

    def __init__(self, root: Path) -> None:
        self.folder, self._log = root / "disk", root / "log"
        self.folder.mkdir()
        words = on_small_disk(self.folder, size=40 << 20)
        self._holder = subprocess.Popen([*words, "-c", "import time; time.sleep(3600)"])
        self._enter = ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt"]
        if os.geteuid():
            self._enter += [f"--user=/proc/{self._holder.pid}/ns/user", "--preserve-credentials"]
        self.inside = Path(f"/proc/{self._holder.pid}/root{self.folder}")
        self._until(self._is_mounted, "is mounted")
        self._up: subprocess.Popen[bytes] | None = None
        self.ask = Asker(self.inside / "state" / "run" / "dljob.sock")

    def _is_mounted(self) -> bool:
        mounts = Path(f"/proc/{self._holder.pid}/mounts").read_text(encoding="utf-8")
        return f" {self.folder} tmpfs " in mounts

    def begin(self) -> bool:
        """Start a controller; tells whether it begins."""
        words = ["up", "--virtual-gpus", "2", "--state", str(self.folder / "state")]
        with self._log.open("wb") as log:
            self._up = subprocess.Popen(
                [*self._enter, sys.executable, "-c", SCRIPT, *words],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        up = self._up
        self._until(lambda: up.poll() is not None or self.phases() is not None, "begins or ends")
        return up.poll() is None

    def said(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def end(self, signum: int = signal.SIGKILL) -> None:
        assert self._up is not None
        self._up.send_signal(signum)
        self._up.wait(LONGEST_S)

    def remount(self, how: str) -> None:
        command = [*self._enter, "mount", "-o", f"remount,{how}", str(self.folder)]

        def is_done() -> bool:
            return subprocess.run(command, check=False, capture_output=True).returncode == 0

        # A process that writes there may be about to end.
        self._until(is_done, f"is remounted {how}")

    def phases(self) -> dict[str, str] | None:
        try:
            answer = self.ask("GET", "/v1/jobs")
        except (OSError, ValueError):
            return None
        items = answer.json["items"] if answer.status == 200 else []
        return {each["metadata"]["name"]: each["status"]["phase"] for each in items}

    def submit(self, name: str) -> int:
        answer = self.ask("POST", "/v1/jobs", _job(name))
        return int(answer.status)

    def until(self, phases: dict[str, str]) -> None:
        self._until(lambda: self.phases() == phases, f"has {phases}")

    def _until(self, true: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + LONGEST_S
        while not true():
            if time.monotonic() > end:
                raise TimeoutError(f"{what}: {self.said() if self._log.exists() else ''}")
            time.sleep(0.05)

    def close(self) -> None:
        endings.kill_all(lambda: find_processes(self.folder))
        self._holder.kill()
        self._holder.wait(LONGEST_S)


def _job(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": name},
        "spec": {
            "gpus": {"options": [1]},
            "framework": "none",
            "training": {"iterations": 1000},
            "progress": {"log": r"step (?P<iteration>\d+)"},
            "checkpoint": {"signal": "SIGUSR1", "confirm": "exit", "shared": True},
            "template": {
                "spec": {"containers": [{"name": "trainer", "command": ["sleep", "3600"]}]}
            },
        },
    }


def run(size: Size) -> Count:
    """Fill a disk and protect it, while a controller runs and before it begins."""
    count, root = Count(), Path(tempfile.mkdtemp(prefix="dljob-disk-"))
    try:
        disk = Disk(root)
    except pytest.skip.Exception as error:
        count.skipped = str(error)
        return count
    try:
        for number in range(ROUNDS[size]):
            _attack(count, disk, number)
    except (AssertionError, TimeoutError) as error:
        count.broken.append(f"after {count.tried}: {error}")
    finally:
        disk.close()
    if not count.broken:
        shutil.rmtree(root)
    return count


def _attack(count: Count, disk: Disk, number: int) -> None:
    kept, gone = f"kept-{number}", f"gone-{number}"
    assert disk.begin(), disk.said()
    for name in (kept, gone):
        assert disk.submit(name) == 201
    disk.until({kept: "Running", gone: "Running"})

    filler = fill(disk.inside)
    count.hold(true=disk.submit("refused") == 507, otherwise="a full disk takes a job")
    disk.end()
    count.hold(true=disk.begin(), otherwise=f"on a full disk no controller begins: {disk.said()}")
    answer = disk.ask("DELETE", f"/v1/jobs/{gone}")
    count.hold(true=answer.status == 202, otherwise=f"no job can be cancelled: {answer}")
    disk.until({kept: "Running"})
    count.hold(true=True, otherwise="")
    filler.unlink()

    # A disk with open files for writing cannot be remounted read-only.
    disk.ask("DELETE", f"/v1/jobs/{kept}")
    disk.until({})
    disk.end(signal.SIGKILL if number % 2 else signal.SIGTERM)
    disk.remount("ro")
    count.hold(true=not disk.begin(), otherwise="a controller begins on a read-only disk")
    last = disk.said().strip().splitlines()[-1:]
    is_clear = "Traceback" not in disk.said() and "--state" in "".join(last)
    count.hold(true=is_clear, otherwise=f"a read-only disk is not explained: {disk.said()}")
    disk.remount("rw")
    count.hold(true=disk.begin(), otherwise=f"no controller begins again: {disk.said()}")
    disk.end(signal.SIGTERM)
