"""
The training of lending.py, in a container: ``_lent_training.py FOLDER MANNER``.

It keeps a journal of its steps and their times in FOLDER. With the manner ``live`` its ranks change live. With ``saved`` each
rank is for itself; asked to end by SIGTERM, it saves its step and ends, and the next start goes on from there.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.operator.live_members import Member
from tests.sidecar.live_trainers import STEP_SECONDS, Board

ASKED_TO_END = 128 + signal.SIGTERM
GENERATOR = np.random.default_rng(0)
WEIGHTS, DATA = GENERATOR.normal(size=(784, 128)), GENERATOR.normal(size=(64, 784))


def work() -> None:
    np.tanh(DATA @ WEIGHTS)


class Live(Member):
    def tell(self, text: str) -> None:
        super().tell(f"{text} {time.time()}")

    def pass_boundary(self, board: Board) -> None:
        work()
        super().pass_boundary(board)


class Saved:
    def __init__(self, folder: Path) -> None:
        self._journal, self._saved = folder / "journal", folder / "saved"
        # DLJob's SideCar names the rank, or Kubernetes the index of the pod.
        self._rank = int(os.environ.get("RANK") or os.environ["JOB_COMPLETION_INDEX"])
        self._is_asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: Any) -> None:
        self._is_asked = True

    def train(self) -> None:
        step = int(self._saved.read_text()) if self._saved.exists() else 0
        while not self._is_asked:
            time.sleep(STEP_SECONDS)
            work()
            step += 1
            if self._rank == 0:
                print(f"step {step}", flush=True)
                with self._journal.open("a") as journal:
                    journal.write(f"step {step} {time.time()}\n")
        if self._rank == 0:
            part = self._saved.with_suffix(".part")
            part.write_text(str(step))
            part.replace(self._saved)
        os._exit(ASKED_TO_END)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    (place / "meet").mkdir(exist_ok=True, parents=True)
    if sys.argv[2] == "live":
        Live(str(place), []).train()
    else:
        Saved(place).train()
