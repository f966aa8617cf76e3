"""The life of a program in a container: its log, its tasks, its memory, and its end on a signal."""

import asyncio
import ctypes
import faulthandler
import logging
import signal
import socket
import sys
import uuid
from collections.abc import Collection, Coroutine
from typing import Any

MEMORY_S = 20.0


STDERR = 2


def log_to_stderr() -> None:
    """Log to stderr; a crash of the interpreter and SIGUSR1 add the stacks of all threads there.

    faulthandler writes them even while a thread holds the interpreter lock for ever.
    """
    faulthandler.enable(STDERR)
    faulthandler.register(signal.SIGUSR1, STDERR)
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("kopf").setLevel(logging.WARNING)


def new_identity() -> str:
    """Return a name that no other process ever had."""
    return f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"


async def run_until_signal(act: Coroutine[Any, Any, None]) -> bool:
    """Run a coroutine until its end or a signal; return true after a signal."""
    task = asyncio.create_task(act)
    # A second signal also cancels the clean-up after the first one.
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False


async def together(*activities: Coroutine[Any, Any, None]) -> None:
    """Run coroutines until the first one ends, and return or raise as that one does."""
    tasks = [asyncio.create_task(each) for each in activities]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()
    finally:
        await _end(tasks)


async def _end(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for their end, before the caller closes their connections."""
    is_cancelled = False
    for task in tasks:
        task.cancel()
    while pending := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError:
            # A signal takes precedence over a task's error.
            is_cancelled = True
    # Retrieves all exceptions, so that asyncio logs none.
    await asyncio.gather(*tasks, return_exceptions=True)
    if is_cancelled:
        raise asyncio.CancelledError


async def return_freed_memory() -> None:
    """
    Return freed memory to the kernel, for ever, which glibc would keep.

    glibc itself returns only the end of its heap. OpenSSL frees thousands of connections to SideCars in the middle of
    the heap, and those pages would count for the operator for ever.
    """
    while True:
        await asyncio.sleep(MEMORY_S)
        # In a thread: ctypes releases the interpreter lock, so the event loop continues.
        await asyncio.to_thread(trim)


def trim() -> None:
    """Return free pages; C libraries other than glibc may lack the call."""
    call = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if call is not None:
        call(ctypes.c_size_t(0))
