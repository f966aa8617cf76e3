"""
`nvidia-smi` of a rehearsal: the few questions that tests/gpu asks it, answered by the stand-in for NVML.

On a machine with a GPU the real one answers, so that the witness there is none of our code.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

import pynvml

GPU_FIELDS: dict[str, Callable[[object], object]] = {
    "uuid": pynvml.nvmlDeviceGetUUID,
    "name": pynvml.nvmlDeviceGetName,
    "memory.used": lambda handle: memory(handle).used >> 20,
    "memory.reserved": lambda handle: memory(handle).reserved >> 20,
    "memory.total": lambda handle: memory(handle).total >> 20,
}


def memory(handle: object) -> pynvml.c_nvmlMemory_v2_t:
    return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)


def ask(field: str, index: int, handle: object) -> str:
    if field == "index":
        return str(index)
    if field not in GPU_FIELDS:
        return "[N/A]"
    return str(GPU_FIELDS[field](handle))


def iter_handles() -> Iterator[object]:
    for index in range(pynvml.nvmlDeviceGetCount()):
        yield pynvml.nvmlDeviceGetHandleByIndex(index)


def iter_lines(question: str) -> Iterator[str]:
    name, _, fields = question.partition("=")
    for index, handle in enumerate(iter_handles()):
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        if name == "-L":
            yield f"GPU {index}: {pynvml.nvmlDeviceGetName(handle)} (UUID: {uuid})"
        elif name == "--query-gpu":
            yield ", ".join(ask(field, index, handle) for field in fields.split(","))
        elif name == "--query-compute-apps":
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle):
                yield f"{uuid}, {process.pid}, {(process.usedGpuMemory or 0) >> 20}"


def main() -> None:
    pynvml.nvmlInit()
    pause = next(
        (float(word[10:]) / 1000 for word in sys.argv if word.startswith("--loop-ms=")), 0.0
    )
    while True:
        for line in iter_lines(sys.argv[1]):
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        if not pause:
            return
        time.sleep(pause)


if __name__ == "__main__":
    main()
