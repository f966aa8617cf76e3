"""
A training of several containers that changes live, without a framework and without a checkpoint.

``python -m tests.operator.live_members FOLDER``. Its ranks agree by files in FOLDER, which all of its containers see, as PyTorch's
do by a store; each step ends with a barrier, which hangs if a rank is missing. The first rank notes each step in the journal.
"""

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.sidecar.live_trainers import (
    CAPABLE,
    JOINED,
    JOINED_STEP,
    SEEN,
    STEP,
    Board,
    Trainer,
)

LOOK_SECONDS = 0.002


def make_job(name: str, folder: Path, *, options: Sequence[int]) -> dict[str, Any]:
    """Return a job of such ranks, which has no checkpoint and trains for ever."""
    folder.mkdir()
    command = [sys.executable, "-m", "tests.operator.live_members", str(folder)]
    container = {"name": "trainer", "image": "training", "command": command}
    spec = {
        "gpus": {"options": list(options)},
        "training": {"iterations": 10**6},
        "framework": "pytorch",
        "processes": "perGpu",
        "progress": {"log": r"step (?P<iteration>\d+)"},
        "template": {"spec": {"containers": [container]}},
    }
    kind = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob"}
    return {**kind, "metadata": {"name": name}, "spec": spec}


class Member(Trainer):
    """One rank."""

    group = ""
    """Names its present group."""

    def pass_boundary(self, board: Board) -> None:
        if self.rank == 0:
            self.tell(f"step {self.step} of {self.world}")
        self.reach(f"{self.group}.step-{self.step}")
        board.say(STEP, self.step)
        pending = board.header()[0]
        if pending and pending != self.number and self.find_step(board, pending) == self.step:
            self.change(board, pending)

    def find_step(self, board: Board, pending: int) -> int:
        """Return the step after which a change takes place; -1 while the ranks have not agreed."""
        change = self.read(pending)
        members, place = change["members"], self.place_of(change)
        self.mark(f"{place}.ready-{self.rank}")
        is_leader = self.rank == next(old for old in members if old >= 0)
        at = self.read_number(f"{place}.at")
        joining = [new for new, old in enumerate(members) if old < 0]
        expected = [f"{place}.ready-{old}" for old in range(self.world)]
        expected += [f"{place}.ready-new-{new}" for new in joining]
        if at < 0 and is_leader and all(map(os.path.exists, expected)):
            at = self.step + 2
            if not self.agree_on(board, pending, at):
                return -1
            self.mark(f"{place}.at", str(at))
        if at >= 0:
            self.agree_on(board, pending, at)
        return at

    def agree_on(self, board: Board, pending: int, at: int) -> bool:
        with board.locked():
            if board.header()[0] != pending:
                return False
            board.agree(at)
            return True

    def join(self, board: Board) -> None:
        board.say(CAPABLE, 1)
        while board.header()[0] != self.joins:
            time.sleep(LOOK_SECONDS)
        board.say(SEEN, self.joins)
        place = self.place_of(self.read(self.joins))
        self.mark(f"{place}.ready-new-{self.rank}")
        while (at := self.read_number(f"{place}.at")) < 0:
            time.sleep(LOOK_SECONDS)
        self.agree_on(board, self.joins, at)
        self.step, self.number = at, self.joins
        self.meet(board, self.number)
        board.say(STEP, self.step)
        board.say(JOINED, self.number)
        board.say(JOINED_STEP, self.step)

    def meet(self, board: Board, number: int) -> None:
        is_start = number == int(os.environ["DLJOB_GENERATION"]) and not self.joins
        start = f"{self.folder}/meet/{number}"
        self.group = start if is_start else self.place_of(self.read(number))
        self.reach(f"{self.group}.met")
        self.tell(f"joined {number} rank {self.rank} of {self.world} at {self.step}")

    def place_of(self, change: dict[str, Any]) -> str:
        """Return where the ranks of a change meet, in all of its containers, of which some have no port in common."""
        store = change["store"]
        place = "{host}-{port}".format(**store) if "port" in store else Path(store["file"]).name
        return f"{self.folder}/meet/{place}"

    def reach(self, name: str) -> None:
        """Wait until all ranks of the group are there."""
        self.mark(f"{name}.{self.rank}")
        while not all(Path(f"{name}.{rank}").exists() for rank in range(self.world)):
            time.sleep(LOOK_SECONDS)

    def mark(self, name: str, text: str = "") -> None:
        Path(f"{name}~{os.getpid()}").write_text(text)
        Path(f"{name}~{os.getpid()}").rename(name)

    def read_number(self, name: str) -> int:
        with contextlib.suppress(FileNotFoundError):
            return int(Path(name).read_text())
        return -1


if __name__ == "__main__":
    Path(sys.argv[1], "meet").mkdir(exist_ok=True)
    Member(sys.argv[1], []).train()
