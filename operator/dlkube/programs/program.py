"""Runs a program of ours in a container: it logs to standard error, and ends upon a signal."""

import asyncio
import logging
import signal
import socket
import sys
import uuid
from collections.abc import Coroutine
from typing import Any


def log_to_stderr() -> None:
    """Log what happens, but not each call of each of kopf's handlers."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("kopf").setLevel(logging.WARNING)


def new_identity() -> str:
    """Name this process as no other ever was."""
    return f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"


async def run_until_told(act: Coroutine[Any, Any, None]) -> bool:
    """Do this until a signal ends it; tell whether one did."""
    task = asyncio.create_task(act)
    # The event loop calls these handlers between two steps of tasks, never in the middle of one. A
    # second signal cancels the clean-up after the first one, too.
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False
