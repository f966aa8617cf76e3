"""How a program of ours runs in a container: it logs to standard error, and ends when it is told to."""

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
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False
