"""
What NVML says of the GPUs of this machine: which there are, and what uses them.

``dljob up`` schedules on these. :class:`Driver` is all that the rest of it asks, so that tests can
answer in NVML's place. The SideCar has a reader of its own (:mod:`dlsidecar.gpus`), because its
code runs in other people's images.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

DEVICE = "/dev/nvidia{}"
"""Where a GPU is opened, by its minor number."""


class NoGpus(Exception):
    """There is nothing to schedule on: what was found, and what to do."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU of this machine."""

    index: int
    """Its number in the order of the PCI bus, as ``nvidia-smi`` counts."""
    uuid: str
    model: str = ""
    path: str = ""
    """Its device file; empty where there is none, such as under WSL."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What uses a GPU at one moment."""

    processes: tuple[int, ...] = ()
    """Those that compute on it. A display is none of them."""
    memory_used: int = 0
    """Bytes; 0 where the GPU does not tell."""


class Driver(Protocol):
    """The driver of the GPUs."""

    def devices(self) -> tuple[Device, ...]:
        """List the GPUs that there are; raises :class:`NoGpus` if there is none."""

    def read(self) -> Mapping[str, Usage]:
        """Say of each GPU, by UUID, what uses it; of one that does not answer, nothing."""


class Nvml:
    """NVML by nvidia-ml-py."""

    def __init__(self) -> None:
        try:
            import pynvml  # noqa: PLC0415 - its import fails where there is no driver at all

            pynvml.nvmlInit()
        except Exception as error:
            raise NoGpus(
                f"NVML finds no GPU here ({error}); install the NVIDIA driver, or say"
                " --virtual-gpus N for virtual ones"
            ) from error
        self._nvml: Any = pynvml

    def devices(self) -> tuple[Device, ...]:
        count = self._nvml.nvmlDeviceGetCount()
        if count == 0:
            raise NoGpus("this machine has no NVIDIA GPU; say --virtual-gpus N for virtual ones")
        return tuple(self._device(index) for index in range(count))

    def read(self) -> Mapping[str, Usage]:
        usages = {}
        for index in range(self._nvml.nvmlDeviceGetCount()):
            handle = self._ask(self._nvml.nvmlDeviceGetHandleByIndex, index)
            uuid = handle and self._ask(self._nvml.nvmlDeviceGetUUID, handle)
            memory = uuid and self._ask(self._nvml.nvmlDeviceGetMemoryInfo, handle)
            processes = uuid and self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses, handle)
            if processes is not None or memory is not None:
                pids = tuple(sorted(int(each.pid) for each in processes or ()))
                usages[_text(uuid)] = Usage(pids, int(memory.used) if memory else 0)
        return usages

    def _device(self, index: int) -> Device:
        handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        minor = self._ask(self._nvml.nvmlDeviceGetMinorNumber, handle)
        path = "" if minor is None else DEVICE.format(minor)
        return Device(
            index=index,
            uuid=_text(self._nvml.nvmlDeviceGetUUID(handle)),
            model=_model(_text(self._ask(self._nvml.nvmlDeviceGetName, handle) or "")),
            path=path if os.path.exists(path) else "",  # noqa: PTH110 - may be empty
        )

    def _ask(self, question: Callable[..., Any], argument: Any) -> Any:
        """Return the answer, or None: not every GPU can answer every question."""
        try:
            return question(argument)
        except self._nvml.NVMLError:
            return None


def _text(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode()


def _model(name: str) -> str:
    """The model as one word, such as ``H200``."""
    words = name.removeprefix("NVIDIA ").removeprefix("Tesla ").split()
    return words[0].split("-")[0] if words else ""
