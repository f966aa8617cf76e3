"""
A training with :mod:`dljob.training` and without a framework: its state is a sum of steps.

``python live_counters.py TOKEN FOLDER [JOURNAL STEPS]``. Each process writes its steps into a journal in FOLDER, and locks a file
there for its GPU. Where the job has a checkpoint, the first rank saves each twentieth step as well.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from dljob import training

SAVED_EVERY = 20
KEPT = 100


class Sum:
    def __init__(self) -> None:
        self.step = self.value = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step, "value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step, self.value = state["step"], state["value"]


class Journal:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def tell(self, *words: Any) -> None:
        # One write, so that a line is there as a whole or not at all.
        os.write(self._file, f"{' '.join(map(str, words))}\n".encode())


def take_gpu(folder: str, journal: Journal) -> None:
    gpu = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[training.local_rank()]
    lock = os.open(f"{folder}/gpu-{gpu}", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        journal.tell("TWICE", gpu)


def save(total: Sum, journal: Journal) -> None:
    place = training.folder() / f"step-{total.step}"
    part = place.with_name(f"{place.name}.tmp")
    part.write_text(json.dumps(total.state_dict()))
    part.replace(place)
    journal.tell("saved", total.step)
    older = [each for each in training.folder().glob("step-*") if each.suffix != ".tmp"]
    # A rank that starts late on a busy machine still needs the one from which the others have gone on.
    for each in sorted(older, key=lambda each: int(each.name[5:]))[:-KEPT]:
        each.unlink()


def main(folder: str, name: str = "journal", steps: str = "0") -> None:
    total, journal = Sum(), Journal(f"{folder}/{name}")
    joins, saves = "DLJOB_JOINS" in os.environ, "DLJOB_CHECKPOINT_DIR" in os.environ
    newest = None if joins else training.latest()
    if newest:
        total.load_state_dict(json.loads(Path(newest).read_text()))
    take_gpu(folder, journal)
    start = (
        f"joins {os.environ['DLJOB_JOINS']}" if joins else f"of {os.environ['DLJOB_GENERATION']}"
    )
    journal.tell("began", os.getpid(), "at", total.step, start)
    training.live(total)
    while total.step != int(steps) or not total.step:
        total.step += 1
        total.value += total.step
        place = f"{training.rank()} of {training.world_size()}"
        journal.tell(os.getpid(), place, "step", total.step, "sum", total.value)
        if training.is_leader():
            os.write(1, f"step {total.step}\n".encode())
        time.sleep(0.01)
        is_asked = training.boundary(total.step)
        if saves and training.is_leader() and (is_asked or total.step % SAVED_EVERY == 0):
            save(total, journal)


if __name__ == "__main__":
    main(*sys.argv[2:])
