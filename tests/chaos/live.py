"""
Live changes whose hand-over is disturbed: a job of a real SideCar gets other members, and something is killed meanwhile.

``python -m tests.chaos.live [--kills 200] [--seed 1] [--minutes 30]``. Each turn draws new members, what is killed, and the step of
the hand-over. A rank that stays, leaves or joins is killed, or the SideCar. The job must then train as declared: live, or after one
restart from its newest checkpoint. No GPU may have two masters.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dljob_wire.messages import Phase, Run, State
from tests.chaos.processes import kill
from tests.sidecar.drivers import HERE, is_alive, read_children, read_proc, wait_until
from tests.sidecar.live_boards import HEADER, SIZE, SLOT, SLOTS, Slot
from tests.sidecar.sidecars import SideCar
from tests.sidecar.targets import live_run, run

MOST = 4
LIVE_SECONDS = 5.0
RESTART_SECONDS = 60.0
"""For a restart on a busy machine, and for a new SideCar."""
VICTIMS = ("a rank that stays", "a rank that leaves", "a rank that joins", "the SideCar")
STAGES = (
    "it is declared",
    "a newcomer begins",
    "it is pending",
    "a rank acknowledges",
    "the step is agreed",
    "a rank has changed",
    "all have changed",
)
OPTIONS = {
    "framework": "pytorch",
    "processes": "perGpu",
    "pollSeconds": 0.1,
    "liveSeconds": LIVE_SECONDS,
    "checkpoint.signal": "SIGUSR1",
    "checkpoint.confirm": "file",
    "checkpoint.files": "step-*",
    "checkpoint.complete": "rename",
    "progress.log": r"step (?P<iteration>\d+)",
}


@dataclass
class Tally:
    kills: Counter[str] = field(default_factory=Counter)
    """By victim and stage."""
    ways: Counter[str] = field(default_factory=Counter)
    longest: float = 0.0
    """The longest time from a kill until the job trains as declared."""


class Journal:
    """What the trainings write, and the laws that it must show."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = self._saved = 0
        self._steps: dict[str, int] = {}
        self._due: dict[str, int] = {}
        """What was saved before each start."""
        self.starts: list[str] = []
        """The generations that ranks began from a checkpoint or nothing, since the last look."""

    def look(self) -> None:
        """Read what is new, and check it."""
        self.starts = []
        with self._path.open("rb") as lines:
            lines.seek(self._read)
            for line in lines:
                self._read += len(line)
                self._take(line.decode().split())

    def _take(self, words: list[str]) -> None:
        match words:
            case ["TWICE", gpu]:
                raise AssertionError(f"two masters of GPU {gpu}")
            case ["saved", step]:
                self._saved = int(step)
            case ["began", pid, "at", _, "joins", _]:
                self._steps.pop(pid, None)
            case ["began", pid, "at", step, "of", generation]:
                # Other ranks of the start may be ahead, and have saved since.
                due = self._due.setdefault(generation, self._saved)
                assert int(step) >= due, f"{step} though {due} was saved"
                self._steps[pid] = int(step)
                self.starts.append(generation)
            case [pid, _, "of", _, "step", step, "sum", total]:
                number = int(step)
                assert self._steps.get(pid, number - 1) == number - 1, words
                assert int(total) == number * (number + 1) // 2, words
                self._steps[pid] = number


class Job:
    """A job in one container, over several SideCars."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self._folder, self._chance = folder, chance
        self._token = f"live-{uuid.uuid4().hex}"
        (folder / "checkpoints").mkdir()
        self.journal = Journal(folder / "journal")
        self.tally = Tally()
        self._sidecar = self._begin()
        self._run = run(0)
        self._slots: list[int] = []
        """Of the ranks."""
        self._registered = 0
        self._restart(MOST)
        self.journal.look()

    def close(self) -> None:
        self._sidecar.close()

    def _begin(self) -> SideCar:
        command = (sys.executable, "-S", str(HERE / "live_counters.py"), self._token)
        path = {"checkpoint.path": str(self._folder / "checkpoints")}
        sidecar = SideCar(
            self._folder, self._token, *command, str(self._folder), options=OPTIONS | path
        )
        sidecar.wait_ready()
        return sidecar

    # --- a turn -----------------------------------------------------------------------------------

    def change_under_fire(self) -> None:
        """Declare other members, kill something at a drawn step, and wait until the job trains as declared."""
        before, known = self._run, self._find_pids()
        old = before.processes
        board = self._find_board(known)
        self._registered = count_registered(board)
        keep = self._chance.sample(range(old), self._chance.randint(1, old))
        joins = self._chance.randint(0 if len(keep) < old else 1, max(1, MOST - len(keep)))
        joins = min(joins, MOST - len(keep))
        stage = self._chance.randrange(len(STAGES))
        victim = self._chance.choice(VICTIMS)
        self._declare(live_run(before, before.generation + 1, keep=keep, joins=joins))
        self._await(board, stage)
        killed, at = self._kill(victim, keep, known), time.monotonic()
        self.tally.kills[f"{killed} once {STAGES[stage]}"] += 1
        way = self._settle(keep) if killed != VICTIMS[-1] else self._replace()
        self.tally.ways[way] += 1
        self.tally.longest = max(self.tally.longest, time.monotonic() - at)
        self.journal.look()
        starts = Counter(self.journal.starts)
        assert len(starts) <= 1, f"it was restarted twice: {starts}"
        assert max(starts.values(), default=0) <= self._run.processes, starts

    def _await(self, board: Path, stage: int) -> None:
        """Wait until the hand-over has come to a stage, or is over."""
        limit = time.monotonic() + LIVE_SECONDS
        while self._find_stage(board) < stage and time.monotonic() < limit:
            time.sleep(0.0005)

    def _find_stage(self, board: Path) -> int:
        """Return the latest stage that the board shows."""
        header, slots = read_board(board)
        _, _, pending, at, _ = header
        number = self._run.generation
        joined = [slot.joined for slot in slots if abs(slot.joined) == number]
        reached = (
            sum(slot.pid > 0 for slot in slots) > self._registered,
            pending == number,
            any(slot.seen == number for slot in slots),
            pending == number and at >= 0,
            bool(joined),
            joined.count(number) == self._run.processes,
        )
        return max((stage for stage, is_so in enumerate(reached, 1) if is_so), default=0)

    def _kill(self, victim: str, keep: list[int], known: dict[int, int]) -> str:
        """Kill a process of this kind, or a rank that stays where there is none."""
        if victim == VICTIMS[-1]:
            keeper = self._sidecar.process.pid
            kill(self._chance.choice([keeper, *read_children(keeper)]))
            return victim
        pids = [known[slot] for slot in self._slots]
        kinds = {
            VICTIMS[0]: [pids[rank] for rank in keep],
            VICTIMS[1]: [pid for rank, pid in enumerate(pids) if rank not in keep],
            VICTIMS[2]: [pid for slot, pid in self._find_pids().items() if slot not in known],
        }
        found = victim if kinds[victim] else VICTIMS[0]
        pid = self._chance.choice(kinds[found])
        kill(pid)
        # On a busy machine it may still be there for a while, and the change be over meanwhile.
        wait_until(lambda: not is_alive(pid), what="the end of the victim")
        return found

    def _settle(self, keep: list[int]) -> str:
        """Wait until the job trains as declared; a failure after the change is the controller's to mend."""
        seconds = LIVE_SECONDS + RESTART_SECONDS
        state = self._wait_until_settled(seconds)
        if state.phase is Phase.RUNNING:
            if state.change is None or not state.change.live:
                self._slots = sorted(self._find_pids())
                return "restarted by the SideCar"
            joined = sorted({*self._find_pids()} - {*self._slots})
            self._slots = [*(self._slots[rank] for rank in keep), *joined]
            return "changed live"
        assert state.phase is Phase.FAILED, state
        self._restart(self._run.processes)
        return "restarted after its end"

    def _wait_until_settled(self, seconds: float) -> State:
        end = time.monotonic() + seconds
        while True:
            state = self._sidecar.state()
            count = self._run.processes
            is_as_declared = state.held_generation == self._run.generation
            is_running = state.live is not None and state.live.capable == count == len(
                self._find_pids()
            )
            if state.phase is Phase.RUNNING and is_as_declared and is_running:
                return state
            if state.phase in (Phase.FAILED, Phase.EXITED, Phase.STOPPED):
                return state
            assert time.monotonic() < end, f"it hangs: {state}"
            time.sleep(0.01)

    def _replace(self) -> str:
        """Prove that all ended with the SideCar, and start another one."""
        self._sidecar.wait_ended()
        wait_until(lambda: not self._sidecar.trainings(), what="the end of all processes")
        self._sidecar.close()
        self._sidecar = self._begin()
        self._restart(self._run.processes)
        return "restarted with a new SideCar"

    def _restart(self, processes: int) -> None:
        self._declare(run(self._run.generation + 1, gpus=processes, processes=processes))
        state = self._wait_until_settled(RESTART_SECONDS)
        assert state.phase is Phase.RUNNING, state
        self._slots = sorted(self._find_pids())

    def _declare(self, target: Run) -> None:
        self._run = replace(target, incarnation=self._sidecar.incarnation)
        answer = self._sidecar.declare(self._run)
        assert answer.status == 200, answer

    def _find_pids(self) -> dict[int, int]:
        """Return the processes of the training by their slots."""
        found = {}
        for pid in self._sidecar.trainings():
            slot = read_variable(pid, "DLJOB_LIVE_SLOT")
            if slot:
                found[int(slot)] = pid
        return found

    def _find_board(self, pids: dict[int, int]) -> Path:
        return Path(read_variable(next(iter(pids.values())), "DLJOB_LIVE")) / "board"


def read_variable(pid: int, name: str) -> str:
    entries = read_proc(pid, "environ").split(b"\0")
    start = f"{name}=".encode()
    return next((entry[len(start) :].decode() for entry in entries if entry.startswith(start)), "")


def read_board(board: Path) -> tuple[tuple[Any, ...], list[Slot]]:
    """Return the header and the slots; those of an empty board if it is gone."""
    try:
        data = board.read_bytes()
    except FileNotFoundError:
        data = bytes(SIZE)
    slots = [Slot(*SLOT.unpack_from(data, 64 * (slot + 1))) for slot in range(SLOTS)]
    return HEADER.unpack_from(data), slots


def count_registered(board: Path) -> int:
    return sum(slot.pid > 0 for slot in read_board(board)[1])


def disturb(folder: Path, *, kills: int, seed: int, seconds: float) -> Tally:
    """Kill so often, or for so long."""
    end = time.monotonic() + seconds
    job = Job(folder, random.Random(seed))
    try:
        while job.tally.kills.total() < kills and time.monotonic() < end:
            job.change_under_fire()
    finally:
        job.close()
    return job.tally


def main() -> int:
    options = argparse.ArgumentParser(prog="tests.chaos.live")
    options.add_argument("--kills", type=int, default=200)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--minutes", type=float, default=30.0)
    given = options.parse_args()
    # Only after success: the folder explains a failure.
    folder = Path(tempfile.mkdtemp(prefix="dljob-live-"))
    tally = disturb(folder, kills=given.kills, seed=given.seed, seconds=60 * given.minutes)
    shutil.rmtree(folder)
    for ways in (tally.ways, tally.kills):
        for what, count in ways.most_common():
            sys.stdout.write(f"{count:5d}  {what}\n")
    sys.stdout.write(
        f"{tally.longest:.1f} s at the longest from a kill to a training as declared\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
