"""The end of processes that a test leaves behind."""

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from tests.running import kernel

LONGEST_S = 60.0
"""A process that SIGKILL has not ended by then waits for the kernel."""


def kill_all(find: Callable[[], Iterable[int]], *, seconds: float = LONGEST_S) -> None:
    """Kill all processes that are found until none is; raises ``TimeoutError`` with those that stay."""
    end = time.monotonic() + seconds
    while found := list(find()):
        if time.monotonic() > end:
            raise TimeoutError(
                f"SIGKILL has not ended {', '.join(map(kernel.describe_process, found))}"
            )
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
