"""Runs a program in a container: logs to standard error, and ends on a signal."""

import asyncio
import logging
import signal
import socket
import sys
import uuid
from collections.abc import Coroutine
from typing import Any


def log_to_stderr() -> None:
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("kopf").setLevel(logging.WARNING)


def new_identity() -> str:
    """Return a name that no other process ever had."""
    return f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"


async def run_until_told(act: Coroutine[Any, Any, None]) -> bool:
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
