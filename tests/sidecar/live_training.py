"""
A training without PyTorch for the tests of live changes: independent processes with a counter as their state.

``python -m tests.sidecar.live_training JOURNAL STEPS SECONDS``: each rank appends its steps to JOURNAL.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

from dljob import training


class Counter:
    """A state that anybody can check: the sum of all steps, and a random number of each."""

    def __init__(self) -> None:
        self.sum = 0

    def state_dict(self) -> dict[str, int]:
        return {"sum": self.sum}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.sum = state["sum"]


def main(journal: str, steps: str, seconds: str) -> None:
    counter = Counter()
    batches = training.batches(10, 4, seed=3, steps=int(steps))
    training.live(counter, batches)
    with Path(journal).open("a", buffering=1, encoding="ascii") as lines:
        for batch in batches:
            counter.sum += batch.step
            lines.write(
                f"{os.getpid()} {training.rank()} {training.world_size()} {batch.step} {counter.sum} "
                f"{random.random()} {','.join(map(str, batch.samples)) if batch.weight else '-'}\n"
            )
            time.sleep(float(seconds))
            training.boundary(batch.step)


if __name__ == "__main__":
    random.seed(0)
    main(*sys.argv[1:])
