"""
What the GPUs of this machine say of themselves, by NVML where it is to be had.

NVML tells the process ids of the machine, which mean nothing inside a container; what can be concluded
from them is in :mod:`dlsidecar.releasing`. Without NVML everything else works as well; it is said
once, and the GPUs are then taken to be what they are said to be.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Protocol

from dlwire.messages import MOST_GPU_PROCESSES, Gpu, GpuProcess

log = logging.getLogger(__name__)

BUSY_UTILIZATION = 0.05
BUSY_BYTES = 512 << 20
"""Above either of the two somebody computes there; an idle driver holds a few hundred MiB."""
DRIVER = "libnvidia-ml.so.1"
NOT_IDS = frozenset({"all", "none", "void"})
"""What NVIDIA_VISIBLE_DEVICES may say instead of a list."""
DEVICE = "/dev/nvidia{}"
"""Where a GPU is opened, by its minor number."""
GPU_IS_LOST = 15
"""What NVML answers of a GPU that fell off its bus."""
XID_EVENT = 0x8
MOST_XIDS = 64


class Gauge(Protocol):
    """Where the numbers come from."""

    missing: str
    """Why there is nothing to read, or the empty string."""

    def read(self) -> list[Gpu]: ...

    def close(self) -> None: ...


class NoGauge:
    """A machine without NVML."""

    def __init__(self, missing: str) -> None:
        self.missing = missing

    def read(self) -> list[Gpu]:
        return []

    def close(self) -> None:
        """Nothing is open."""


class Nvml:
    """NVML by nvidia-ml-py."""

    missing = ""

    def __init__(self, library: Any) -> None:
        self._nvml = library
        self._nvml.nvmlInit()
        count = self._nvml.nvmlDeviceGetCount()
        self._handles = [self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        # NVML enumerates in PCI bus order, which is what CUDA_DEVICE_ORDER is set to.
        self._names = [
            (to_text(library.nvmlDeviceGetUUID(one)), to_text(library.nvmlDeviceGetName(one)))
            for one in self._handles
        ]
        self._devices = [self._find_device(handle) for handle in self._handles]
        self._xids: dict[str, list[int]] = {}
        self._events = self._register_events()

    def _register_events(self) -> Any:
        """Ask to be told of Xid errors, which some drivers and most virtual GPUs refuse."""
        try:
            events = self._nvml.nvmlEventSetCreate()
            for handle in self._handles:
                self._nvml.nvmlDeviceRegisterEvents(handle, XID_EVENT, events)
            return events
        except self._nvml.NVMLError as error:
            log.info("Xid errors are not told by this driver: %s", error)
            return None

    def _find_device(self, handle: Any) -> str:
        """Return the device file of a GPU; empty where it cannot be opened even now."""
        minor = self._ask(self._nvml.nvmlDeviceGetMinorNumber, handle)
        device = "" if minor is None else DEVICE.format(minor)
        return "" if why_closed(device) else device

    def read(self) -> list[Gpu]:
        self._read_events()
        return [
            self._read_one(index, handle, *self._names[index])
            for index, handle in enumerate(self._handles)
        ]

    def _ask_memory(self, handle: Any) -> tuple[Any, str]:
        """Return the answer, and why there is none if that is because the GPU is lost."""
        try:
            return self._nvml.nvmlDeviceGetMemoryInfo(handle), ""
        except self._nvml.NVMLError as error:
            is_lost = getattr(error, "value", None) == GPU_IS_LOST
            return None, "NVML says that it is lost" if is_lost else ""

    def _read_one(self, index: int, handle: Any, uuid: str, model: str) -> Gpu:
        memory, lost = self._ask_memory(handle)
        rates = self._ask(self._nvml.nvmlDeviceGetUtilizationRates, handle)
        # Uncorrectable errors, counted since the driver was loaded.
        ecc = self._ask(self._nvml.nvmlDeviceGetTotalEccErrors, handle, 1, 0)
        return Gpu(
            index=index,
            uuid=uuid,
            model=model,
            utilization=rates.gpu / 100 if rates else 0.0,
            memory_used=int(memory.used) if memory else 0,
            memory_total=int(memory.total) if memory else 0,
            xid_errors=tuple(self._xids.get(uuid, ())),
            ecc_errors=int(ecc or 0),
            processes=self._read_processes(handle),
            # What we have open stays open when it is forbidden; a new process gets nothing.
            lost_because=lost or why_closed(self._devices[index]),
        )

    def _read_processes(self, handle: Any) -> tuple[GpuProcess, ...]:
        """Return who has memory there; nothing where the driver does not tell, or is an old one."""
        found = {}
        for kind in ("Compute", "Graphics"):
            # Without the version nvidia-ml-py refuses to ask drivers of another one than its own.
            question = getattr(self._nvml, f"nvmlDeviceGet{kind}RunningProcesses_v3", None)
            for one in (question and self._ask(question, handle)) or ():
                found[int(one.pid)] = GpuProcess(int(one.pid), int(one.usedGpuMemory or 0))
        return tuple(found[pid] for pid in sorted(found))[:MOST_GPU_PROCESSES]

    def _ask(self, question: Any, *arguments: Any) -> Any:
        """Return the answer, or None: not every GPU can answer every question."""
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
                # Nothing new: it calls that a time-out.
                return
            errors = self._xids.setdefault(uuid, [])
            if int(event.eventData) not in errors and len(errors) < MOST_XIDS:
                errors.append(int(event.eventData))

    def close(self) -> None:
        self._ask(self._nvml.nvmlShutdown)


def why_closed(device: str) -> str:
    """Say why a device file cannot be opened; empty if it can, or none is named."""
    if not device:
        return ""
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"{device} cannot be opened: {error.strerror}"
    return ""


def to_text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def open_gauge() -> Gauge:
    """Return NVML, or say why there is none. It never raises."""
    # Asked first, because the bindings are as large as half of the SideCar.
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        return NoGauge(f"there is no {DRIVER}, which comes with the driver of NVIDIA's GPUs")
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        return NoGauge("nvidia-ml-py is not installed")
    try:
        return Nvml(library)
    except (library.NVMLError, OSError, AttributeError) as error:
        return NoGauge(f"NVML cannot be used: {error}")


# --- questions about what was read ----------------------------------------------------------


def find_unknown(gpus: Collection[Gpu], ids: Collection[str]) -> list[str]:
    """Return those ids, indices or UUIDs, that no GPU of this machine answers to."""
    known = {str(one.index) for one in gpus} | {one.uuid for one in gpus}
    # NVML counts whole GPUs, and does not name the parts of one among them.
    return [one for one in ids if one not in known and not one.startswith("MIG-")]


def find_lost(gpus: Collection[Gpu], ids: Collection[str]) -> list[str]:
    """Say of each GPU that the ids name and that can be used no more why that is."""
    chosen = [one for one in choose(gpus, ids) if one.lost_because]
    return [f"GPU {one.index} ({one.uuid}): {one.lost_because}" for one in chosen]


def choose(gpus: Collection[Gpu], ids: Collection[str]) -> list[Gpu]:
    """Return the GPUs that the ids, indices or UUIDs, name."""
    return [one for one in gpus if str(one.index) in ids or one.uuid in ids]


def count_named(environment: Mapping[str, str]) -> int:
    """Return how many GPUs the environment names one by one; 0 where it does not."""
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        ids = [one for one in environment.get(name, "").split(",") if one.strip()]
        if ids and not set(ids) & NOT_IDS:
            return len(ids)
    return 0


def is_busy(gpu: Gpu) -> bool:
    return gpu.utilization > BUSY_UTILIZATION or gpu.memory_used > BUSY_BYTES


def mark_strangers(gpus: Collection[Gpu], ids: Collection[str]) -> tuple[Gpu, ...]:
    """Return the GPUs with a mark on those that work although they are not assigned to us."""
    assigned = choose(gpus, ids)
    return tuple(replace(one, busy_unassigned=is_busy(one) and one not in assigned) for one in gpus)
