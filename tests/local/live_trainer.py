"""
A training for :mod:`tests.local.test_live_changes`: it registers for live changes, and has no checkpoint.

``live_trainer.py STEPS``: the first rank prints each step with the number of ranks and the sum of all steps.
"""

import os
import sys
import time

from dljob import training


class Total:
    """The sum of all steps: a process that has lost the state has another one."""

    def __init__(self) -> None:
        self.sum = 0

    def state_dict(self) -> dict[str, int]:
        return {"sum": self.sum}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.sum = state["sum"]


total = Total()
batches = training.batches(1000, 8, seed=1, steps=int(sys.argv[1]))
training.live(total, batches)
for batch in batches:
    total.sum += batch.step
    time.sleep(0.01)
    if training.is_leader():
        ranks = training.world_size()
        os.write(1, f"step {batch.step} of {ranks} ranks, sum {total.sum}\n".encode())
    training.boundary(batch.step)
