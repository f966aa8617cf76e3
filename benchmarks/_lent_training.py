"""
The training of lending.py, in a container: ``_lent_training.py FOLDER MANNER``.

It keeps a journal of its steps and their times in FOLDER. Asked to end by SIGTERM, it saves its step and ends, and the next start
goes on from there. With the manner ``live`` its ranks change live; with ``saved`` each rank is for itself.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.operator.live_members import Member
from tests.sidecar import live_trainers

ASKED_TO_END = 128 + signal.SIGTERM
# Long, so that many ranks on few cores are no load of their own.
live_trainers.STEP_SECONDS = 0.05
DATA = np.zeros((64, 784))


def work() -> None:
    np.tanh(DATA)


class Saving:
    """The step at which a training was asked to end, which the next start goes on from."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "saved"

    def read(self) -> int:
        return int(self._file.read_text()) if self._file.exists() else 0

    def end(self, step: int, *, is_leader: bool) -> None:
        if is_leader:
            part = self._file.with_suffix(".part")
            part.write_text(str(step))
            part.replace(self._file)
        os._exit(ASKED_TO_END)


class Live(Member):
    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder), [])
        saving = Saving(folder)
        self.step = saving.read()
        signal.signal(signal.SIGTERM, lambda *_: saving.end(self.step, is_leader=self.rank == 0))

    def tell(self, text: str) -> None:
        super().tell(f"{text} {time.time()}")

    def pass_boundary(self, board: live_trainers.Board) -> None:
        work()
        super().pass_boundary(board)


class Saved:
    def __init__(self, folder: Path) -> None:
        self._journal, self._saving = folder / "journal", Saving(folder)
        # DLJob's SideCar names the rank, or Kubernetes the index of the pod.
        self._rank = int(os.environ.get("RANK") or os.environ["JOB_COMPLETION_INDEX"])
        self._is_asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: Any) -> None:
        self._is_asked = True

    def train(self) -> None:
        step = self._saving.read()
        while not self._is_asked:
            time.sleep(live_trainers.STEP_SECONDS)
            work()
            step += 1
            if self._rank == 0:
                print(f"step {step}", flush=True)
                with self._journal.open("a") as journal:
                    journal.write(f"step {step} {time.time()}\n")
        self._saving.end(step, is_leader=self._rank == 0)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    (place / "meet").mkdir(exist_ok=True, parents=True)
    if sys.argv[2] == "live":
        Live(place).train()
    else:
        Saved(place).train()
