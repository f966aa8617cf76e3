"""
Freed memory goes back to the kernel, also where the C library would keep it.

glibc gives back only the end of its heap by itself. OpenSSL frees the connections to thousands of SideCars in the
middle of the heap, after each of them was met, and those pages would count for the operator for ever.
"""

import asyncio
import ctypes

PERIOD_S = 20.0


async def return_freed_memory() -> None:
    """Return freed pages at each period, until cancelled."""
    while True:
        await asyncio.sleep(PERIOD_S)
        # A thread does it, because ctypes releases the interpreter meanwhile and so the event loop goes on.
        await asyncio.to_thread(trim)


def trim() -> None:
    """Return the whole pages that are free now; a C library other than glibc may have no call for it."""
    call = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if call is not None:
        call(ctypes.c_size_t(0))
