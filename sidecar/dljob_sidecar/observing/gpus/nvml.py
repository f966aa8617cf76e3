"""
The readings of this machine's GPUs, from NVML where it is available.

NVML reports the process ids of the machine, which mean nothing inside a container;
:mod:`dljob_sidecar.processes.releasing` evaluates them. Without NVML everything else works; the SideCar
reports that once and trusts the declared GPUs.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from dljob_wire.messages import MOST_GPU_PROCESSES, Gpu, GpuProcess

log = logging.getLogger(__name__)

DRIVER = "libnvidia-ml.so.1"
NOT_IDS = frozenset({"all", "none", "void"})
"""Values of NVIDIA_VISIBLE_DEVICES that are not lists."""
DEVICE = "/dev/nvidia{}"
"""The device file of a GPU, by its minor number."""
LOST: Mapping[int, str] = MappingProxyType(
    {
        6: "NVML no longer finds it",
        15: "NVML says that it is lost",
        29: "NVML says that it has to be reset",
        999: "NVML answers with an unknown error",
    }
)
"""NVML's errors for a lost GPU. Error 3 (not supported) is none: some GPUs cannot report memory."""
XID_EVENT = 0x8
MOST_XIDS = 64
LONGEST_REASON = 200


class GpuReader(Protocol):
    """A source of GPU readings."""

    missing: str
    """The reason why there are no readings, or the empty string."""

    def read(self) -> list[Gpu]: ...

    def close(self) -> None: ...


class NoGpuReader:
    """The reader of a machine without NVML."""

    def __init__(self, missing: str) -> None:
        self.missing = missing

    def read(self) -> list[Gpu]:
        return []

    def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True)
class Device:
    """A GPU that NVML counts."""

    index: int
    """The index in PCI bus order, as NVML counts, and CUDA with CUDA_DEVICE_ORDER."""
    handle: Any
    """None if NVML returns no handle, because the GPU is lost."""
    uuid: str = ""
    model: str = ""
    file: str = ""
    """Empty if the file is unknown or could not be opened at the beginning."""
    lost_because: str = ""


class Nvml:
    """NVML through nvidia-ml-py."""

    missing = ""

    def __init__(self, library: Any) -> None:
        self._nvml = library
        self._nvml.nvmlInit()
        self._devices = [self._open(index) for index in range(self._nvml.nvmlDeviceGetCount())]
        self._xids: dict[str, list[int]] = {}
        self._events = self._register_events()

    def _open(self, index: int) -> Device:
        """Find a GPU; a GPU that the driver has lost has no handle."""
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = to_text(self._nvml.nvmlDeviceGetUUID(handle))
        except self._nvml.NVMLError as error:
            why = f"NVML cannot use it: {error}"[:LONGEST_REASON]
            log.warning("GPU %d: %s", index, why)
            return Device(index, None, lost_because=why)
        model = to_text(self._ask(self._nvml.nvmlDeviceGetName, handle) or "")
        minor = self._ask(self._nvml.nvmlDeviceGetMinorNumber, handle)
        device = "" if minor is None else DEVICE.format(minor)
        # A file that is closed from the beginning is no sign of a lost GPU.
        return Device(index, handle, uuid, model, "" if why_closed(device) else device)

    def _register_events(self) -> Any:
        """Register for Xid errors, which some drivers and most virtual GPUs do not support."""
        try:
            events = self._nvml.nvmlEventSetCreate()
        except self._nvml.NVMLError as error:
            log.info("this driver does not report Xid errors: %s", error)
            return None
        for device in self._devices:
            if device.handle is not None:
                self._ask(self._nvml.nvmlDeviceRegisterEvents, device.handle, XID_EVENT, events)
        return events

    def read(self) -> list[Gpu]:
        self._read_events()
        return [self._read_one(device) for device in self._devices]

    def _ask_memory(self, handle: Any) -> tuple[Any, str]:
        """Return the memory reading, and the reason if it is missing because the GPU is lost."""
        # Version 2 excludes the memory reserved by the driver, more than half a gibibyte on large
        # GPUs. Drivers before 510 lack it.
        version = getattr(self._nvml, "nvmlMemory_v2", None)
        later = version and self._ask(self._nvml.nvmlDeviceGetMemoryInfo, handle, version)
        if later:
            return later, ""
        try:
            return self._nvml.nvmlDeviceGetMemoryInfo(handle), ""
        except self._nvml.NVMLError as error:
            return None, LOST.get(getattr(error, "value", 0), "")

    def _read_one(self, device: Device) -> Gpu:
        handle = device.handle
        if handle is None:
            return Gpu(device.index, lost_because=device.lost_because)
        memory, lost = self._ask_memory(handle)
        rates = self._ask(self._nvml.nvmlDeviceGetUtilizationRates, handle)
        # Uncorrectable errors since the driver was loaded.
        ecc = self._ask(self._nvml.nvmlDeviceGetTotalEccErrors, handle, 1, 0)
        return Gpu(
            index=device.index,
            uuid=device.uuid,
            model=device.model,
            utilization=rates.gpu / 100 if rates else 0.0,
            memory_used=int(memory.used) if memory else 0,
            memory_total=int(memory.total) if memory else 0,
            xid_errors=tuple(self._xids.get(device.uuid, ())),
            ecc_errors=int(ecc or 0),
            processes=self._read_processes(handle),
            # An open device stays open when access is revoked, but a new process cannot open it.
            lost_because=lost or why_closed(device.file),
        )

    def _read_processes(self, handle: Any) -> tuple[GpuProcess, ...]:
        """Return the processes with memory on the GPU; none if the driver does not report them."""
        found = {}
        # Read compute last, so a process in both lists counts as a compute process.
        for kind in ("Graphics", "Compute"):
            # Name the version, or nvidia-ml-py fails on drivers of another version.
            question = getattr(self._nvml, f"nvmlDeviceGet{kind}RunningProcesses_v3", None)
            for one in (question and self._ask(question, handle)) or ():
                pid, used = int(one.pid), int(one.usedGpuMemory or 0)
                found[pid] = GpuProcess(pid, used, draws=kind == "Graphics")
        return tuple(found[pid] for pid in sorted(found))[:MOST_GPU_PROCESSES]

    def _ask(self, question: Any, *arguments: Any) -> Any:
        """Return the answer; None if the GPU does not support the question."""
        try:
            return question(*arguments)
        except self._nvml.NVMLError:
            return None

    def _read_events(self) -> None:
        while self._events is not None:
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
                uuid = to_text(self._nvml.nvmlDeviceGetUUID(event.device))
            except self._nvml.NVMLError:
                # NVML reports the absence of new events as a time-out.
                return
            errors = self._xids.setdefault(uuid, [])
            if int(event.eventData) not in errors and len(errors) < MOST_XIDS:
                errors.append(int(event.eventData))

    def close(self) -> None:
        self._ask(self._nvml.nvmlShutdown)


def why_closed(device: str) -> str:
    """Return why a device file cannot be opened; empty if it can, or if no file is given."""
    if not device:
        return ""
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"{device} cannot be opened: {error.strerror}"
    return ""


def to_text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def open_gpu_reader() -> GpuReader:
    """Return a reader over NVML, or a reader with the reason why there is none. Never raises."""
    # Check for the library first, because the bindings are as large as half of the SideCar.
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        return NoGpuReader(f"there is no {DRIVER}, which comes with the driver of NVIDIA's GPUs")
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        return NoGpuReader("nvidia-ml-py is not installed")
    try:
        return Nvml(library)
    except (library.NVMLError, OSError, AttributeError) as error:
        return NoGpuReader(f"NVML cannot be used: {error}")


# --- questions about what was read ----------------------------------------------------------


def find_unknown(gpus: Collection[Gpu], ids: Collection[str]) -> list[str]:
    """Return the indices or UUIDs that match no GPU of this machine."""
    known = {str(one.index) for one in gpus} | {one.uuid for one in gpus}
    # NVML counts whole GPUs, and does not list their MIG parts.
    return [one for one in ids if one not in known and not one.startswith("MIG-")]


def find_lost(gpus: Collection[Gpu], ids: Collection[str]) -> list[str]:
    """Describe each of the named GPUs that is lost."""
    chosen = [one for one in choose(gpus, ids) if one.lost_because]
    return [f"GPU {one.index} ({one.uuid}): {one.lost_because}" for one in chosen]


def choose(gpus: Collection[Gpu], ids: Collection[str]) -> list[Gpu]:
    """Return the GPUs with these indices or UUIDs."""
    return [one for one in gpus if str(one.index) in ids or one.uuid in ids]


def count_named(environment: Mapping[str, str]) -> int:
    """Return the number of GPUs that the environment lists; 0 if it has no list."""
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        ids = [one for one in environment.get(name, "").split(",") if one.strip()]
        if ids and not set(ids) & NOT_IDS:
            return len(ids)
    return 0
