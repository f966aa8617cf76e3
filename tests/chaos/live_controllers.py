"""
Live changes whose controller is killed: a job of one machine gives GPUs to short ones and gets them back, meanwhile.

``python -m tests.chaos.live_controllers [--kills 100] [--seed 1] [--minutes 30]``. Half of the controllers die at a declaration of a
run, the others at any moment after a short job has come or gone. The processes of the job must go on: neither a lost step nor a
GPU with two masters.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.chaos.live import OPTIONS, Journal
from tests.chaos.nurseries import Nursery
from tests.chaos.points import Plan
from tests.chaos.processes import find_processes, kill
from tests.local.asking import Asker
from tests.sidecar.drivers import HERE

LONG, SHORT = "lives", "comes"
SHORT_STEPS = 40
LIFE_S = 2.0
"""A controller is killed at most this time after its first answer."""
LIMIT_S = 240.0


class Machine:
    """One machine with a job that lives on while controllers die."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self._root, self._chance = root, chance
        self._state = root / "state"
        (root / "checkpoints").mkdir()
        self._nursery = Nursery()
        self._ask = Asker(self._state / "run" / "dljob.sock")
        self._came = 0
        self.deaths: Counter[str] = Counter()
        self.journal = Journal(root / "journal")

    def close(self) -> None:
        self._nursery.close()
        for pid, _ in find_processes(self._root):
            kill(pid)

    # --- controllers ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Let the job run, and come to trust in live changes."""
        self._bear(Plan(seed=0, is_calm=True))
        self._until(lambda: self._submit(LONG, [1, 2, 4]), "the job is submitted")
        self._until(self._changes_live, "the job can change live")

    def live_and_die(self) -> None:
        """Kill the controller in the middle of a change, and start the next one."""
        is_at_declaration = self._chance.random() < 0.5
        if is_at_declaration:
            self._end()
            self._bear(Plan(seed=self._chance.getrandbits(32), only=("Run",)))
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end and not self._submit_another():
            if self._nursery.wait(0.01) is not None:
                break
        until = time.monotonic() + self._chance.uniform(0.0, LIFE_S)
        while self._nursery.pid and time.monotonic() < until:
            self._nursery.wait(0.01)
        death = self._root / "death"
        if self._nursery.pid:
            self._end()
            self.deaths["anywhere"] += 1
        else:
            self.deaths[death.read_text()] += 1
            death.unlink()
        self._bear(Plan(seed=0, is_calm=True))
        self.journal.look()

    def end(self) -> dict[str, Any]:
        """Let all short jobs end; return the status of the long one, and end it."""
        self._until(self._is_calm, "all short jobs have ended")
        status: dict[str, Any] = self._look()[LONG]
        assert self._ask("DELETE", f"/v1/jobs/{LONG}").status < 300
        self._until(lambda: not self._find_trainings(), "the end of the job")
        self._nursery.end(signal.SIGTERM)
        assert self._nursery.wait(LIMIT_S) == 0
        self.journal.look()
        return status

    def _bear(self, plan: Plan) -> None:
        self._nursery.bear(
            state=str(self._state),
            deaths=str(self._root / "death"),
            plan=asdict(plan),
            cluster="1x4",
            policy="max-min",
            patience=20.0,
        )

    def _end(self) -> None:
        self._nursery.end()
        assert self._nursery.wait(LIMIT_S) == -signal.SIGKILL

    def _until(self, is_so: Any, what: str) -> None:
        end = time.monotonic() + LIMIT_S
        while not is_so():
            assert time.monotonic() < end, f"it takes too long until {what}: {self._look()}"
            time.sleep(0.05)

    # --- jobs -------------------------------------------------------------------------------------

    def _submit_another(self) -> bool:
        """Submit a short job, unless one is there; return whether a controller has answered."""
        jobs = self._look()
        if not jobs:
            return False
        if all(name == LONG or job.get("phase") == "Completed" for name, job in jobs.items()):
            self._came += 1
            return self._submit(f"{SHORT}-{self._came}", [2])
        return True

    def _submit(self, name: str, options: list[int]) -> bool:
        document = make_document(name, self._root, options)
        answer = self._try("POST", "/v1/jobs", {"kind": "DLJobList", "items": [document]})
        return answer is not None and answer.status in (201, 409)

    def _look(self) -> dict[str, dict[str, Any]]:
        """Return the statuses of the jobs; empty if no controller answers."""
        answer = self._try("GET", "/v1/jobs")
        if answer is None or answer.status != 200:
            return {}
        return {each["metadata"]["name"]: each.get("status", {}) for each in answer.json["items"]}

    def _try(self, method: str, target: str, body: Any = None) -> Any:
        try:
            return self._ask(method, target, body)
        except (OSError, ValueError):
            return None

    def _changes_live(self) -> bool:
        conditions = self._look().get(LONG, {}).get("conditions", [])
        return any(each["type"] == "Live" and each["status"] == "True" for each in conditions)

    def _is_calm(self) -> bool:
        jobs = self._look()
        phases = [job.get("phase") for name, job in jobs.items() if name != LONG]
        is_whole = jobs.get(LONG, {}).get("allocation", {}).get("gpus") == 4
        return bool(jobs) and is_whole and all(phase == "Completed" for phase in phases)

    def _find_trainings(self) -> list[int]:
        found = find_processes(self._root)
        return [pid for pid, command in found if "live_counters.py" in command]


def make_document(name: str, root: Path, options: list[int]) -> dict[str, Any]:
    command = [sys.executable, "-S", str(HERE / "live_counters.py"), name, str(root)]
    if name != LONG:
        command += [f"journal-{name}", str(SHORT_STEPS)]
    checkpoint = {
        key.removeprefix("checkpoint."): value
        for key, value in OPTIONS.items()
        if key.startswith("checkpoint.")
    }
    saving = {"checkpoint": {**checkpoint, "path": str(root / "checkpoints")}}
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": name},
        "spec": {
            "gpus": {"options": options},
            "framework": "pytorch",
            "processes": "perGpu",
            "training": {"iterations": 10**7 if name == LONG else SHORT_STEPS},
            "progress": {"log": OPTIONS["progress.log"]},
            **(saving if name == LONG else {}),
            "backoffLimit": 1000,
            "template": {"spec": {"containers": [{"name": "trainer", "command": command}]}},
        },
    }


def survive(
    root: Path, chance: random.Random, *, kills: int, seconds: float
) -> tuple[Counter[str], dict[str, Any]]:
    """Let controllers die so often, or for so long; return their deaths, and the status of the job."""
    end = time.monotonic() + seconds
    machine = Machine(root, chance)
    try:
        machine.begin()
        while machine.deaths.total() < kills and time.monotonic() < end:
            machine.live_and_die()
        return machine.deaths, machine.end()
    finally:
        machine.close()


def main() -> int:
    options = argparse.ArgumentParser(prog="tests.chaos.live_controllers")
    options.add_argument("--kills", type=int, default=100)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--minutes", type=float, default=30.0)
    given = options.parse_args()
    # Only after success: the folder explains a failure.
    root = Path(tempfile.mkdtemp(prefix="dljob-live-"))
    chance, seconds = random.Random(given.seed), 60 * given.minutes
    deaths, status = survive(root, chance, kills=given.kills, seconds=seconds)
    shutil.rmtree(root)
    for what, count in deaths.most_common():
        sys.stdout.write(f"{count:5d}  {what}\n")
    counts = [f"{status[what]} {what}" for what in ("reshapes", "restarts", "failures")]
    live = status["live"]["changes"]
    sys.stdout.write(f"{', '.join(counts)}, {live} live changes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
