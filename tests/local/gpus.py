"""Fake GPUs: a driver that a test controls, and a machine with a fake NVML."""

import uuid
from collections.abc import Mapping
from pathlib import Path

from dljob.local.gpus.nvml import Device, NoGpusError
from dljob_wire.occupancy import Usage
from tests.sidecar import standins
from tests.sidecar.standins import build_nvml


def devices(count: int, folder: Path | None = None) -> tuple[Device, ...]:
    """GPUs of one model; their device files are plain ones of this folder."""
    found = []
    for index in range(count):
        file = folder / f"nvidia{index}" if folder is not None else None
        if file is not None:
            file.touch(0o666)
        path = str(file) if file is not None else ""
        found.append(Device(index, f"GPU-{index}0-aa", "H100", path))
    return tuple(found)


class ToldDriver:
    """A driver that reports the devices and usages that a test sets."""

    def __init__(self, found: tuple[Device, ...]) -> None:
        self._devices = found
        self.usages: Mapping[str, Usage] = {device.uuid: Usage() for device in found}

    def devices(self) -> tuple[Device, ...]:
        if not self._devices:
            raise NoGpusError("none")
        return self._devices

    def read(self) -> Mapping[str, Usage]:
        return self.usages


class StandIn(standins.StandIn):
    """NVML and CUDA of a machine of its own, for programs that are started under this environment."""

    def __init__(self, folder: Path, count: int) -> None:
        super().__init__(build_nvml(folder))
        self.name = uuid.uuid4().hex
        self.count(count)
        self.environment = {
            "LD_LIBRARY_PATH": str(folder),
            "STANDIN_NVML": str(folder),
            "STANDIN_NVML_NAME": self.name,
        }

    def let_compute(self, *processes: tuple[int, int]) -> None:
        self._write("processes", "".join(f"{gpu} {pid}\n" for gpu, pid in processes))
