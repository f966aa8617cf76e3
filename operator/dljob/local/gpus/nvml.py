"""
Reads the GPUs of this machine and their use by NVML.

Tests replace it behind :class:`Driver`. The SideCar has a reader of its own (:mod:`dljob_sidecar.observing.gpus.nvml`), which
runs in users' images.
"""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dljob_wire.occupancy import Usage

log = logging.getLogger(__name__)

DEVICE = "/dev/nvidia{}"
"""Where a GPU is opened, by its minor number."""


class NoGpusError(Exception):
    """There are no GPUs: the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Device:
    index: int
    """Its number in PCI bus order, as ``nvidia-smi`` counts."""
    uuid: str
    model: str = ""
    path: str = ""
    """Its device file; empty if there is none, as under WSL."""


class Driver(Protocol):
    """The driver of the GPUs."""

    def devices(self) -> tuple[Device, ...]:
        """List the GPUs; raises :class:`NoGpusError` if there are none."""

    def read(self) -> Mapping[str, Usage]:
        """Return the use of each GPU that answers, by UUID."""


class Nvml:
    def __init__(self) -> None:
        try:
            import pynvml  # noqa: PLC0415 - its import fails where there is no driver at all

            pynvml.nvmlInit()
        except Exception as error:
            raise NoGpusError(
                f"NVML finds no GPU here ({error}); install the NVIDIA driver, or give"
                " --virtual-gpus N for virtual ones"
            ) from error
        self._nvml: Any = pynvml

    def devices(self) -> tuple[Device, ...]:
        count = self._nvml.nvmlDeviceGetCount()
        if count == 0:
            raise NoGpusError(
                "this machine has no NVIDIA GPU; say --virtual-gpus N for virtual ones"
            )
        found = [device for device in map(self._device, range(count)) if device is not None]
        if not found:
            raise NoGpusError(
                f"NVML counts {count} GPUs here and can use none of them; look at the driver"
                " (nvidia-smi, dmesg), or give --virtual-gpus N for virtual ones"
            )
        return tuple(found)

    def read(self) -> Mapping[str, Usage]:
        usages = {}
        for index in range(self._nvml.nvmlDeviceGetCount()):
            handle = self._ask(self._nvml.nvmlDeviceGetHandleByIndex, index)
            uuid = handle and self._ask(self._nvml.nvmlDeviceGetUUID, handle)
            usage = uuid and self._usage(handle)
            if usage:
                usages[_text(uuid)] = usage
        return usages

    def _usage(self, handle: Any) -> Usage | None:
        """Return the use of a GPU; ``None`` if it reports neither memory nor processes."""
        memory = self._memory(handle)
        processes = self._processes("Compute", handle)
        if processes is None and memory is None:
            return None
        rates = self._ask(self._nvml.nvmlDeviceGetUtilizationRates, handle)
        drawing = self._processes("Graphics", handle) or ()
        drawn = sum(int(each.usedGpuMemory or 0) for each in drawing)
        return Usage(
            tuple(sorted(int(each.pid) for each in processes or ())),
            max(0, int(memory.used) - drawn) if memory else 0,
            rates.gpu / 100 if rates else 0.0,
        )

    def _processes(self, kind: str, handle: Any) -> Any:
        # Without the version nvidia-ml-py refuses drivers of other versions.
        question = getattr(self._nvml, f"nvmlDeviceGet{kind}RunningProcesses_v3", None)
        return question and self._ask(question, handle)

    def _memory(self, handle: Any) -> Any:
        """Return the memory in use; old drivers include their own."""
        version = getattr(self._nvml, "nvmlMemory_v2", None)
        later = version and self._ask(self._nvml.nvmlDeviceGetMemoryInfo, handle, version)
        return later or self._ask(self._nvml.nvmlDeviceGetMemoryInfo, handle)

    def _device(self, index: int) -> Device | None:
        """Return a GPU; ``None`` if the driver has lost it."""
        handle = self._ask(self._nvml.nvmlDeviceGetHandleByIndex, index)
        uuid = handle and self._ask(self._nvml.nvmlDeviceGetUUID, handle)
        if not uuid:
            log.warning("NVML counts GPU %d and cannot use it; it is left out", index)
            return None
        name = _text(self._ask(self._nvml.nvmlDeviceGetName, handle) or "")
        words = name.removeprefix("NVIDIA ").removeprefix("Tesla ").split()
        minor = self._ask(self._nvml.nvmlDeviceGetMinorNumber, handle)
        path = "" if minor is None else DEVICE.format(minor)
        return Device(
            index=index,
            uuid=_text(uuid),
            # One word, such as H200.
            model=words[0].split("-")[0] if words else "",
            path=path if os.path.exists(path) else "",  # noqa: PTH110 - may be empty
        )

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """Return the answer; ``None`` if the GPU cannot answer."""
        try:
            return question(*arguments)
        except self._nvml.NVMLError:
            return None


def _text(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode()
