"""
A training with :mod:`dljob.training` and without a framework: its state is a sum of steps.

``python live_counters.py TOKEN FOLDER``. Each process writes its steps into a journal in FOLDER.
"""

from __future__ import annotations

import os
import sys
import time

from dljob import training


class Sum:
    def __init__(self) -> None:
        self.value = 0

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


def main(folder: str) -> None:
    total = Sum()
    training.live(total)
    journal = os.open(f"{folder}/journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    begin = training.joined_at()
    os.write(journal, f"began {os.getpid()} at {begin}\n".encode())
    step = begin
    while True:
        step += 1
        total.value += step
        place = f"{training.rank()} of {training.world_size()}"
        os.write(journal, f"{os.getpid()} {place} step {step} sum {total.value}\n".encode())
        time.sleep(0.01)
        training.boundary(step)


if __name__ == "__main__":
    main(sys.argv[2])
