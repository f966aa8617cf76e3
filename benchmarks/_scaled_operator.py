"""
The operator as it is, but that each cycle's time is written into a file as well, because a histogram knows
no percentiles: ``_scaled_operator.py FILE OPTION…``.
"""

import resource
import sys
import time
from pathlib import Path

from dlcontrol.metrics import Metrics
from dloperator.__main__ import main


def record_cycles(file: Path) -> None:
    """Have each cycle written as a line: when it ended, how long it took, whether it decided."""
    original = Metrics.cycle
    out = file.open("a", buffering=1)

    def cycle(self: Metrics, seconds: float, *, decided: bool) -> None:
        out.write(f"{time.monotonic():.3f} {seconds:.6f} {int(decided)}\n")
        original(self, seconds, decided=decided)

    setattr(Metrics, "cycle", cycle)  # noqa: B010 - mypy forbids to assign a method


if __name__ == "__main__":
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    record_cycles(Path(sys.argv.pop(1)))
    main()
