"""
Take memory of every GPU that CUDA shows, and hold it: a training as far as a GPU can see.

Called as ``consumer.py MIB [WORDS]``, with nothing but the driver's library, so that it starts in
milliseconds and on any machine with a driver. With the word ``stubborn`` only SIGKILL ends it. Says ``holds N GPUs`` when it has them, and counts steps.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import time

STEP_SECONDS = 0.05


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def call(name: str, *arguments: object) -> None:
    """Call the driver; an error ends the program with its number."""
    status = getattr(CUDA, name)(*arguments)
    if status != 0:
        sys.exit(f"{name} failed: {status}")


def take(device: int, mib: int) -> None:
    """Take ``mib`` MiB of the memory of one GPU, by the primary context, as frameworks do."""
    handle, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    call("cuDeviceGet", ctypes.byref(handle), device)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(mib << 20))


def main() -> None:
    if "stubborn" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    count = ctypes.c_int()
    call("cuInit", 0)
    call("cuDeviceGetCount", ctypes.byref(count))
    for device in range(count.value):
        take(device, int(sys.argv[1]))
    say(f"holds {count.value} GPUs")
    step = 0
    while True:
        step += 1
        say(f"step {step}")
        time.sleep(STEP_SECONDS)


CUDA = ctypes.CDLL("libcuda.so.1")

if __name__ == "__main__":
    main()
