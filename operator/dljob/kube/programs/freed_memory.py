"""
Returns freed memory to the kernel, which glibc would keep.

glibc itself returns only the end of its heap. OpenSSL frees thousands of connections to SideCars in the middle of the
heap, and those pages would count for the operator for ever.
"""

import asyncio
import ctypes

PERIOD_S = 20.0


async def return_freed_memory() -> None:
    while True:
        await asyncio.sleep(PERIOD_S)
        # In a thread: ctypes releases the interpreter lock, so the event loop continues.
        await asyncio.to_thread(trim)


def trim() -> None:
    """Return free pages; C libraries other than glibc may lack the call."""
    call = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if call is not None:
        call(ctypes.c_size_t(0))
