"""
Controllers that begin on damaged state folders while trainings go on.

After each end of the controller one file of the list of jobs or of a pod is damaged. The list itself loses whole pages or
all, because SQLite does not see a flipped bit within a value. The next controller knows all jobs, or refuses to begin. A
new job gets only free GPUs, and no training that was done begins again: each training logs its GPUs, for which it holds
locks.
"""

import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests import endings
from tests.chaos.nurseries import Nursery
from tests.chaos.points import Plan
from tests.chaos.processes import find_processes
from tests.chaos.testimony import Expected, find_broken_laws, read_all
from tests.chaos.worlds import job_document
from tests.local.asking import Asker

pytestmark = pytest.mark.processes

TIMES = 110 if os.environ.get("DLJOB_ATTACK") else 6
LONGEST_S = 120.0
LONG = ("a", "b", "c")
LIST = ("jobs.db", "jobs.db-journal", "jobs.db.copy")
GROSS = ("deleted", "emptied", "halved", "garbled")


class Place:
    """A state folder with three endless trainings and many controllers."""

    def __init__(self, seed: int) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="dljob-attack-"))
        self.state = self.root / "state"
        (self.root / "witness").mkdir()
        self.chance = random.Random(seed)
        self._nursery = Nursery()
        self.ask = Asker(self.state / "run" / "dljob.sock")
        self._count = 0
        self.probes: dict[str, int] = {}

    def begin(self) -> bool:
        """Start a controller; returns whether it begins."""
        self._nursery.bear(
            state=str(self.state),
            deaths=str(self.root / "death"),
            plan=asdict(Plan(0, is_calm=True)),
        )
        end = time.monotonic() + LONGEST_S
        while time.monotonic() < end:
            if self._nursery.wait(0.02) is not None:
                return False
            if self.ask.phases() is not None:
                return True
        raise TimeoutError(f"no controller answers; all is in {self.root}")

    def end(self) -> None:
        self._nursery.end(self.chance.choice((signal.SIGKILL, signal.SIGTERM)))
        assert self._nursery.wait(LONGEST_S) is not None

    def submit(self, name: str, *, iterations: int, options: list[int]) -> None:
        document = job_document(
            name,
            self.root,
            iterations=iterations,
            ends_when_saved=False,
            is_forgotten=False,
            options=options,
        )
        answer = self.ask("POST", "/v1/jobs", {"kind": "DLJobList", "items": [document]})
        assert answer.status == 201, answer

    def probe(self) -> None:
        """Let a short job train on free GPUs."""
        self._count += 1
        name = f"probe-{self._count}"
        self.probes[name] = 3
        self.submit(name, iterations=3, options=[1])
        self.until(lambda phases: phases.get(name) == "Completed", f"{name} does not complete")
        self.ask("DELETE", f"/v1/jobs/{name}")

    def until(self, true: Callable[[dict[str, str]], bool], what: str) -> None:
        """Wait for phases of jobs, which a new controller may not know yet."""
        end = time.monotonic() + LONGEST_S
        while not ((phases := self.ask.phases()) is not None and true(phases)):
            assert time.monotonic() < end, f"{what}: the jobs are {phases}; all is in {self.root}"
            time.sleep(0.02)

    def files(self) -> list[Path]:
        pods = [
            path
            for path in (self.state / "jobs").glob("*/*-*/*")
            if path.name in ("launched", "pid")
        ]
        there = [*(self.state / name for name in LIST), *sorted(pods)]
        return [path for path in there if path.exists() and path.stat().st_size]

    def close(self) -> None:
        self._nursery.close()
        endings.kill_all(lambda: [pid for pid, _ in find_processes(self.root)])


def _all_train(phases: dict[str, str]) -> bool:
    return all(phases.get(name) == "Running" for name in LONG)


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place(seed=3)
    try:
        yield made
    finally:
        made.close()


def test_no_damage_ends_a_training_or_gives_its_gpus_away(place: Place):
    assert place.begin()
    for name, gpus in zip(LONG, (1, 2, 2), strict=True):
        place.submit(name, iterations=10_000_000, options=[gpus])
    place.until(_all_train, "not all train")
    for _ in range(TIMES):
        place.end()
        place.until(_all_train, _damage(place))
        place.probe()
    broken = _read_witnesses(place)
    assert not broken, f"{broken}; all is in {place.root}"
    place.close()
    shutil.rmtree(place.root)


def _damage(place: Place) -> str:
    """Damage a file and begin; if that is refused, put the file back. Returns the damage."""
    path = place.chance.choice(place.files())
    kept = path.read_bytes()
    fine = () if path.name == "jobs.db" else ("shortened", "flipped")
    how = place.chance.choice((*GROSS, *fine))
    if how == "deleted":
        path.unlink()
    else:
        path.write_bytes(_damaged(kept, how, place.chance))
    what = f"{path.relative_to(place.state)} {how}"
    if not place.begin():
        path.write_bytes(kept)
        assert place.begin(), f"{what}, and put back: no controller begins"
    return what


def _damaged(data: bytes, how: str, chance: random.Random) -> bytes:
    match how:
        case "emptied":
            return b""
        case "halved":
            return data[: len(data) // 2]
        case "shortened":
            return data[:-1]
        case "garbled":
            return bytes(chance.getrandbits(8) for _ in range(len(data)))
    changed = bytearray(data)
    changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _read_witnesses(place: Place) -> list[str]:
    lives = read_all(place.root / "witness")
    ends: dict[str, Any] = {**place.probes}
    broken = find_broken_laws(lives, Expected({**ends, **dict.fromkeys(LONG, 0)}, frozenset(LONG)))
    starts = {job: len({life.start for life in lives if life.job == job}) for job in LONG}
    # No damage is a reason to end what trains.
    return broken + [f"{job} was started {n} times" for job, n in starts.items() if n != 1]
