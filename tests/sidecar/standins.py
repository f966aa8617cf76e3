"""Stand-ins for NVML and CUDA, compiled on demand, and control over their answers."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Self

import pytest

from tests.sidecar.drivers import HERE, LIMIT_SECONDS, ROOT

CONSUMER = ROOT / "tests" / "gpu" / "consumer.py"
"""A program that takes memory of its visible GPUs by CUDA."""


def build_nvml(folder: Path) -> Path:
    """Compile the stand-ins for NVML and CUDA into this folder."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler here")
    for source, made in (("standin_nvml", "libnvidia-ml.so.1"), ("standin_cuda", "libcuda.so.1")):
        command = [compiler, "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", str(folder / made)]
        subprocess.run([*command, str(HERE / f"{source}.c")], check=True, timeout=LIMIT_SECONDS)
    return folder


class StandIn:
    """The answers of the stand-ins; a slot names the same GPU under every numbering."""

    def __init__(self, folder: Path) -> None:
        """``folder`` is the one that STANDIN_NVML names."""
        self.folder = folder
        # NVML names no processes of other namespaces, and the SideCar makes one for each job.
        self._write("pidns", str(Path("/proc/self/ns/pid").readlink()))
        self.hold(0)

    def hold(self, mib: int, processes: Mapping[int, int] = MappingProxyType({})) -> None:
        """Let ``mib`` MiB of GPU 0 be in use, of these the given amounts by processes."""
        self._list("processes", processes)
        self._write("memory", str(mib))

    def draw(self, *processes: int) -> None:
        """Let these processes draw on GPU 0, as those of a display do."""
        self._list("drawing", dict.fromkeys(processes, 1))

    def _list(self, file: str, processes: Mapping[int, int]) -> None:
        lines = [f"0 {pid} {used}" for pid, used in processes.items()]
        self._write(file, "\n".join(lines))

    def _write(self, file: str, text: str) -> None:
        (self.folder / "new").write_text(text)
        (self.folder / "new").rename(self.folder / file)

    def count(self, gpus: int) -> None:
        self._write("count", str(gpus))

    def set(self, what: str) -> None:
        """Set a fault such as ``lost-1``: see standin_nvml.c."""
        (self.folder / what).touch()

    def unset(self, what: str) -> None:
        (self.folder / what).unlink()

    def hang(self) -> None:
        self.set("hang")

    def answer(self) -> None:
        self.unset("hang")

    def lose(self) -> None:
        """Fail each question for the memory, as a GPU that fell off its bus."""
        self.set("lost")

    def find(self) -> None:
        self.unset("lost")

    def users(self) -> dict[int, list[int]]:
        """Return by slot the living processes that have taken memory by CUDA."""
        found: dict[int, list[int]] = {}
        for file in sorted((self.folder / "cuda").glob("*")):
            pid = find_owner(file)
            for line in file.read_text().splitlines() if pid else ():
                found.setdefault(int(line.split()[0]), []).append(pid)
        return found


class Witness:
    """Polls the users of each GPU, and records two programs on one GPU."""

    def __init__(self, machine: StandIn) -> None:
        self._machine = machine
        self._is_over = threading.Event()
        self.looks = 0
        self.shared: dict[int, list[int]] = {}
        """The processes that used a GPU together, by slot."""
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(LIMIT_SECONDS)

    def _look(self) -> None:
        while not self._is_over.wait(0.01):
            self.looks += 1
            both = {slot: pids for slot, pids in self._machine.users().items() if len(pids) > 1}
            if not both:
                continue
            # The first may have ended before the second began, unless it is still there.
            still = self._machine.users()
            self.shared.update(
                (slot, pids)
                for slot, pids in both.items()
                if not set(pids[:-1]).isdisjoint(still.get(slot, ()))
            )


def find_owner(file: Path) -> int:
    """Ask the kernel which process has locked a file; 0 for none."""
    form = (
        "hhqqi4x"  # struct flock where offsets have 64 bits: kind, whence, start, length, process.
    )
    asked = struct.pack(form, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    with file.open("r+") as opened:
        kind, _, _, _, pid = struct.unpack(form, fcntl.fcntl(opened, fcntl.F_GETLK, asked))
    return 0 if kind == fcntl.F_UNLCK else int(pid)


def consume(mib: int, *words: str) -> tuple[str, ...]:
    """Return the command that takes ``mib`` MiB of memory of each GPU that it sees."""
    return (sys.executable, "-S", str(CONSUMER), str(mib), *words)


def library_path(folder: Path) -> str:
    """Return LD_LIBRARY_PATH with the stand-ins of this folder first."""
    return ":".join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH", "")]))
