"""
Damaged state folders, and controllers that begin on them beside trainings that go on.

Each time the controller is killed or ended, one file of the list of jobs or of a pod is deleted, shortened,
emptied, or gets a flipped bit, and the next controller begins. It knows all jobs, or refuses to begin. A job that
is submitted then gets only GPUs that no training has: each training holds a lock for each of its GPUs, and
says so in a log of its own.
"""

import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests import endings
from tests.attack.counts import Count, Size, say
from tests.chaos.nurseries import Nursery
from tests.chaos.points import Plan
from tests.chaos.processes import find_processes
from tests.chaos.testimony import Expected, find_broken_laws, read_all
from tests.chaos.worlds import job_document
from tests.local.asking import Asker

TIMES = {Size.SHORT: 6, Size.FULL: 110}
LONGEST_S = 120.0
LONG = ("a", "b", "c")
LIST = ("jobs.db", "jobs.db-wal", "jobs.db.journal")


class Place:
    """A state folder with three trainings that never end, and controllers that do."""

    def __init__(self, seed: int) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="dljob-attack-"))
        self.state = self.root / "state"
        (self.root / "witness").mkdir()
        self.chance = random.Random(seed)
        self._nursery = Nursery()
        self._ask = Asker(self.state / "run" / "dljob.sock")
        self._count = 0
        self.probes: dict[str, int] = {}

    def begin(self) -> bool:
        """Have a controller; tells whether it begins."""
        self._nursery.bear(
            state=str(self.state),
            deaths=str(self.root / "death"),
            plan=asdict(Plan(0, is_calm=True)),
        )
        end = time.monotonic() + LONGEST_S
        while time.monotonic() < end:
            if self._nursery.wait(0.02) is not None:
                return False
            if self.phases() is not None:
                return True
        raise TimeoutError(f"no controller answers; all is in {self.root}")

    def end(self) -> None:
        """End the controller, in order or not."""
        self._nursery.end(self.chance.choice((signal.SIGKILL, signal.SIGTERM)))
        assert self._nursery.wait(LONGEST_S) is not None

    def phases(self) -> dict[str, str] | None:
        """Say how the jobs are; nothing where no controller answers."""
        try:
            answer = self._ask("GET", "/v1/jobs")
        except (OSError, ValueError):
            return None
        items = answer.json["items"] if answer.status == 200 else []
        return {each["metadata"]["name"]: each["status"]["phase"] for each in items}

    def submit(self, name: str, *, iterations: int, options: list[int]) -> None:
        document = job_document(
            name,
            self.root,
            iterations=iterations,
            ends_when_saved=False,
            is_forgotten=False,
            options=options,
        )
        answer = self._ask("POST", "/v1/jobs", {"kind": "DLJobList", "items": [document]})
        assert answer.status == 201, answer

    def probe(self) -> None:
        """Let a job train for a moment on GPUs that are free."""
        self._count += 1
        name = f"probe-{self._count}"
        self.probes[name] = 3
        self.submit(name, iterations=3, options=[1])
        self.until(lambda phases: phases.get(name) == "Completed")
        self._ask("DELETE", f"/v1/jobs/{name}")

    def until(self, true: Callable[[dict[str, str]], bool]) -> None:
        if not self.comes_to(true):
            raise TimeoutError(f"{self.phases()}; all is in {self.root}")

    def comes_to(self, true: Callable[[dict[str, str]], bool]) -> bool:
        """Tell whether the jobs come to be so; a controller that has just begun may not know them well yet."""
        end = time.monotonic() + LONGEST_S
        while not ((phases := self.phases()) is not None and true(phases)):
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True

    def files(self) -> list[Path]:
        """Everything that may be damaged."""
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


def run(size: Size) -> Count:
    """Damage one file after the other."""
    count, place = Count(), Place(seed=3)
    refused = 0
    try:
        assert place.begin()
        for name, gpus in zip(LONG, (1, 2, 2), strict=True):
            place.submit(name, iterations=10_000_000, options=[gpus])
        place.until(_all_train)
        for _ in range(TIMES[size]):
            place.end()
            what, was_refused = _damage(place)
            refused += was_refused
            count.hold(
                true=place.comes_to(_all_train), otherwise=f"{what}: the jobs are {place.phases()}"
            )
            place.probe()
        count.broken += _read_witnesses(place)
    except (AssertionError, TimeoutError) as error:
        count.broken.append(f"after {count.tried}: {error}")
    finally:
        place.close()
    say(f"damages: {refused} were refused, and the others mended")
    if not count.broken:
        shutil.rmtree(place.root)
    return count


def _all_train(phases: dict[str, str]) -> bool:
    return all(phases.get(name) == "Running" for name in LONG)


def _damage(place: Place) -> tuple[str, bool]:
    """Damage a file and begin; where that is refused, the file is put back. Tells what was done."""
    path = place.chance.choice(place.files())
    kept = path.read_bytes()
    how = place.chance.choice(("deleted", "emptied", "halved", "shortened", "flipped", "garbled"))
    if how == "deleted":
        path.unlink()
    else:
        path.write_bytes(_damaged(kept, how, place.chance))
    what = f"{path.relative_to(place.state)} {how}"
    if place.begin():
        return what, False
    path.write_bytes(kept)
    assert place.begin(), f"{what}, and put back: no controller begins"
    return what, True


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
