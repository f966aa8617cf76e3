"""
Full and read-only disks, in a mount namespace of their own.

On a full disk a controller begins and jobs can be cancelled; on a read-only disk a controller refuses in one line. Refused
requests succeed as soon as the disk works again, and a training goes on meanwhile.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import endings
from tests.disks import fill, on_small_disk
from tests.local.asking import Asker
from tests.local.stages import job_document
from tests.local.ups import find_processes

pytestmark = pytest.mark.processes

TIMES = 6 if os.environ.get("DLJOB_ATTACK") else 1
LONGEST_S = 120.0
SCRIPT = "from dljob.cli.main import main; main()"


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
        words = ["up", "--virtual-gpus", "2", "--state", str(self.folder / "state")]
        with self._log.open("wb") as log:
            self._up = subprocess.Popen(
                [*self._enter, sys.executable, "-c", SCRIPT, *words],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        up = self._up
        self._until(
            lambda: up.poll() is not None or self.ask.phases() is not None, "begins or ends"
        )
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
            done = subprocess.run(command, check=False, capture_output=True, timeout=LONGEST_S)
            return done.returncode == 0

        # A process that writes there may be about to end.
        self._until(is_done, f"is remounted {how}")

    def submit(self, name: str) -> int:
        answer = self.ask(
            "POST", "/v1/jobs", job_document(name, gpus={"options": [1]}, framework="none")
        )
        return int(answer.status)

    def until(self, phases: dict[str, str]) -> None:
        self._until(lambda: self.ask.phases() == phases, f"has {phases}")

    def _until(self, true: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + LONGEST_S
        while not true():
            if time.monotonic() > end:
                raise TimeoutError(f"{what}: {self.said() if self._log.exists() else ''}")
            time.sleep(0.05)

    def close(self) -> None:
        endings.kill_all(lambda: find_processes(self.folder))
        if self._up is not None:
            self._up.wait(LONGEST_S)
        self._holder.kill()
        self._holder.wait(LONGEST_S)


@pytest.fixture
def disk(root: Path) -> Iterator[Disk]:
    made = Disk(root)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("number", range(TIMES))
@pytest.mark.parametrize("inodes", [False, True])
def test_full_or_protected_disk_loses_nothing(disk: Disk, inodes: bool, number: int):
    assert disk.begin(), disk.said()
    for name in ("kept", "gone"):
        assert disk.submit(name) == 201
    disk.until({"kept": "Running", "gone": "Running"})

    filler = fill(disk.inside, inodes=inodes)
    assert disk.submit("refused") == 507
    disk.end()
    assert disk.begin(), f"on a full disk no controller begins: {disk.said()}"
    assert disk.ask("DELETE", "/v1/jobs/gone").status == 202, "no job can be cancelled"
    disk.until({"kept": "Running"})
    shutil.rmtree(filler)

    # A disk with open files for writing cannot be remounted read-only.
    disk.ask("DELETE", "/v1/jobs/kept")
    disk.until({})
    disk.end(signal.SIGKILL if number % 2 else signal.SIGTERM)
    disk.remount("ro")
    assert not disk.begin(), "a controller begins on a read-only disk"
    (last,) = disk.said().strip().splitlines()[-1:]
    assert "--state" in last
    assert "Traceback" not in disk.said()
    disk.remount("rw")
    assert disk.begin(), f"no controller begins again: {disk.said()}"
    disk.end(signal.SIGTERM)
