"""Where it is shown: a machine with a GPU, or one that stand-ins make of this one for a rehearsal."""

from __future__ import annotations

import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _sidecars import NO_FIELDS

from tests.gpu import witness
from tests.sidecar.drivers import ROOT, find_processes
from tests.sidecar.sidecars import SideCar
from tests.sidecar.standins import StandIn, build_nvml, library_path

PROGRAM_MIB = 2048
"""The memory that a program here takes, so that two of them cannot be taken for one."""
SETTLE_SECONDS = 240.0


@dataclass(frozen=True)
class Place:
    """One GPU, and what is needed to show something on it."""

    folder: Path
    uuid: str
    index: str
    token: str
    base_mib: int
    """In use before anything was started."""
    is_rehearsal: bool
    torch: str
    """An interpreter that has PyTorch; empty if there is none."""
    others: tuple[str, ...] = ()
    """The other GPUs that were empty."""

    @contextmanager
    def sidecar(
        self, *command: str, name: str, options: Mapping[str, Any] = NO_FIELDS
    ) -> Iterator[SideCar]:
        """Have a SideCar around a command; it is ended afterwards."""
        folder = self.folder / name
        folder.mkdir()
        always = {"pollSeconds": 0.2, "checkpoint.graceSeconds": 0.5, "killSeconds": 1}
        sidecar = SideCar(folder, self.token, *command, options={**always, **options})
        try:
            sidecar.wait_ready()
            yield sidecar
        finally:
            sidecar.close()

    def wait(self, ask: Callable[[], object], what: str, seconds: float = SETTLE_SECONDS) -> float:
        """Wait until the answer is true; returns for how long."""
        began = time.monotonic()
        while not ask():
            waited = time.monotonic() - began
            assert waited < seconds, f"{what} has not come in {seconds:g} s"
            time.sleep(0.01)
        return time.monotonic() - began

    def is_free(self) -> bool:
        """Whether the witness sees no more in use than before anything was started."""
        return witness.used_mib(self.uuid) <= self.base_mib + 64

    def wait_free(self) -> float:
        return self.wait(self.is_free, "the memory that was in use before")

    def holds(self, programs: int = 1) -> bool:
        """Return whether the witness sees this number of programs by their memory."""
        more = witness.used_mib(self.uuid) - self.base_mib
        return programs * PROGRAM_MIB <= more < (programs + 1) * PROGRAM_MIB


@contextmanager
def rehearsed(folder: Path) -> Iterator[None]:
    """Make stand-ins for NVML, CUDA and nvidia-smi be found by all that is started from here."""
    machine = folder / "machine"
    machine.mkdir()
    build_nvml(machine)
    StandIn(machine)
    smi = machine / "nvidia-smi"
    script = ROOT / "tests" / "gpu" / "standin_smi.py"
    smi.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
    smi.chmod(0o755)
    before = dict(os.environ)
    os.environ |= {
        "STANDIN_NVML": str(machine),
        "STANDIN_NVML_NAME": uuid.uuid4().hex,
        "LD_LIBRARY_PATH": library_path(machine),
        "PATH": f"{machine}:{os.environ['PATH']}",
    }
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def find_place(folder: Path, *, is_rehearsal: bool, torch: str) -> Place:
    """Choose the first GPU that is empty; raises :class:`~tests.gpu.witness.NoGpu` if there is none."""
    found = witness.query("index", "uuid", "memory.used")
    if not found:
        raise witness.NoGpu("nvidia-smi shows no GPU")
    empty = [
        row
        for row in found
        if int(row["memory.used"]) < 512 and not witness.processes_on(row["uuid"])
    ]
    if not empty:
        raise witness.NoGpu("every GPU here is in use; end what computes there, and try again")
    first, *others = empty
    return Place(
        folder=folder,
        uuid=first["uuid"],
        index=first["index"],
        token=f"witness-{uuid.uuid4().hex}",
        base_mib=int(first["memory.used"]),
        is_rehearsal=is_rehearsal,
        torch=torch,
        others=tuple(row["uuid"] for row in others),
    )


def leave_nothing(place: Place) -> None:
    """See that no process of this run is left, and end it if one is."""
    left = find_processes(place.token)
    for pid in left:
        os.kill(pid, 9)
    shutil.rmtree(place.folder, ignore_errors=True)
    assert not left, f"processes were left: {left}"
