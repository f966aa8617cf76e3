"""
The operator as it is, but that each cycle is written into a file as well, because a histogram knows no
percentiles, and nothing of the processor: ``_scaled_operator.py FILE OPTION…``.
"""

import resource
import sys
import time
from pathlib import Path

from dljob.control.loop import Controller
from dljob.control.reporting.metrics import Metrics
from dljob.operator.__main__ import main


def record_cycles(file: Path) -> None:
    """Have a line written of each: when it ended, how long it took, of a core too, whether it decided."""
    out = file.open("a", buffering=1)
    count, run = Metrics.cycle, Controller.cycle
    began = 0.0

    def cycle(self: Metrics, seconds: float, *, decided: bool) -> None:
        # The work of others on this event loop while the cycle waits counts, too.
        core = time.thread_time() - began
        out.write(f"{time.monotonic():.3f} {seconds:.6f} {core:.6f} {int(decided)}\n")
        count(self, seconds, decided=decided)

    async def timed(self: Controller) -> None:
        nonlocal began
        began = time.thread_time()
        await run(self)

    Metrics.cycle = cycle  # type: ignore[method-assign]
    Controller.cycle = timed  # type: ignore[method-assign]


if __name__ == "__main__":
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    record_cycles(Path(sys.argv.pop(1)))
    main()
