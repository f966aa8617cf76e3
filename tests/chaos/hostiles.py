"""
Hostile jobs among those of a world: their SideCars lie to every controller, or their trainings do harm.

They have their own witnesses. Only NVML could expose one that reports its GPUs as released and goes on
using them, and these GPUs are virtual; everything else counts against the honest jobs.
"""

import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.chaos.processes import TRAINER
from tests.hostile import lies, trainings
from tests.servers.api import Json

Ask = Callable[..., Any]

PREFIX = "hostile-"
LIVES_S = (4.0, 12.0)
"""The shortest and longest life of a hostile job."""
LOOK_S = 1.0
MISCHIEF = tuple(kind for kind in trainings.KINDS if kind != "fills-its-log")
"""The mischief of trainings, without the kind that needs its own disk."""
ROOT = Path(__file__).parents[2]


def is_hostile(job: str) -> bool:
    return job.startswith(PREFIX)


class Place(Protocol):
    """A place for hostile jobs. Each method is called again if it finds no controller."""

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds of hostile jobs that run there."""

    def submit(self, name: str, kind: str) -> bool:
        """Submit a job; return whether it was accepted."""

    def cancel(self, name: str) -> bool:
        """Cancel a job; return whether it is gone."""

    def reinstate(self, after: Sequence[str]) -> None:
        """Reinstate GPUs that hostile jobs reported as broken; ``after`` names the jobs that went."""


class Hostiles:
    """Keeps ``at_once`` hostile jobs of different kinds, and cancels them."""

    def __init__(
        self, place: Place, *, at_once: int, seed: int, lives: tuple[float, float] = LIVES_S
    ) -> None:
        self.kinds: list[str] = []
        """The kinds of all submitted jobs, in order."""
        self._place = place
        self._at_once = at_once
        self._chance = random.Random(seed)
        self._lives = lives
        self._left: list[str] = []
        self._due: dict[str, float] = {}
        """The time to cancel each job."""
        self._next_look = 0.0

    def go_on(self) -> None:
        """Submit missing jobs, and cancel old ones."""
        if self._is_early():
            return
        now = time.monotonic()
        self._cancel([job for job, due in self._due.items() if due < now])
        while len(self._due) < self._at_once:
            kind = self._next_kind()
            name = f"{PREFIX}{len(self.kinds)}"
            if not self._place.submit(name, kind):
                self._left.append(kind)
                return
            self.kinds.append(kind)
            self._due[name] = now + self._chance.uniform(*self._lives)

    def leave(self) -> bool:
        """Cancel all; return whether none is left."""
        if not self._is_early():
            self._cancel(list(self._due))
        return not self._due

    def _is_early(self) -> bool:
        is_early = time.monotonic() < self._next_look
        if not is_early:
            self._next_look = time.monotonic() + LOOK_S
        return is_early or not self._at_once

    def _next_kind(self) -> str:
        if not self._left:
            self._left = list(self._place.kinds)
            self._chance.shuffle(self._left)
        return self._left.pop()

    def _cancel(self, jobs: Sequence[str]) -> None:
        gone = [job for job in jobs if self._place.cancel(job)]
        for job in gone:
            del self._due[job]
        self._place.reinstate(gone)


class OneMachine:
    """A controller of one machine, through its socket."""

    kinds = (*lies.KINDS, *MISCHIEF)

    def __init__(self, root: Path, ask: Ask) -> None:
        """``ask`` returns None without a controller."""
        self._root = root
        self._ask = ask

    def submit(self, name: str, kind: str) -> bool:
        document = hostile_document(name, kind, self._root)
        answer = self._ask("POST", "/v1/jobs", {"kind": "DLJobList", "items": [document]})
        if answer is None:
            return False
        assert answer.status == 201 or b"is a job already" in answer.body, answer
        return True

    def cancel(self, name: str) -> bool:
        answer = self._ask("DELETE", f"/v1/jobs/{name}")
        if answer is None:
            return False
        assert answer.status in (200, 202, 204, 404), answer
        return bool(answer.status == 404)

    def reinstate(self, _: Sequence[str]) -> None:
        answer = self._ask("GET", "/v1/nodes")
        if answer is None or answer.status != 200:
            return
        for node in answer.json["items"]:
            for gpu in broken_gpus(node):
                self._ask("DELETE", f"/v1/nodes/{node['name']}/gpus/{gpu}/cordon")


def broken_gpus(node: Mapping[str, Any]) -> list[int]:
    return [each["index"] for each in node["gpus"] if each.get("reason")]


def hostile_document(name: str, kind: str, root: Path) -> Json:
    """A job of one GPU on one machine that is hostile in this way."""
    path = folder_of(name, root)
    command: Sequence[str] = [sys.executable, "-m", "tests.hostile.liar", kind, *honest(name, path)]
    if kind in trainings.KINDS:
        command = [sys.executable, trainings.__file__, kind, str(path)]
    return document_of(name, command, path)


def folder_of(name: str, root: Path) -> Path:
    """Make the folder of a hostile job, with its witness."""
    path = root / "hostile" / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def honest(
    name: str, path: Path, program: Sequence[str] = (sys.executable, "-S", "-E", str(TRAINER))
) -> list[str]:
    """The command of an honest training."""
    return [
        *program,
        f"--job={name}",
        f"--folder={path}",
        f"--witness={path}",
        "--iterations=1000000",
    ]


def document_of(name: str, command: Sequence[str], path: Path, **env: str) -> Json:
    """A job of one GPU that ends soon after SIGTERM."""
    variables = {
        "PYTHONPATH": f"{ROOT}:{ROOT / 'sidecar'}",
        "HOSTILE_CHECKPOINTS": str(path / "checkpoint"),
        **env,
    }
    container = {
        "name": "trainer",
        "command": [*command],
        "workingDir": str(path),
        "env": [{"name": name, "value": value} for name, value in variables.items()],
    }
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": name},
        "spec": {
            "gpus": {"options": [1]},
            "framework": "none",
            "processes": "perNode",
            "training": {"iterations": 10**6},
            "progress": {"log": r"step (?P<iteration>\d+)"},
            "checkpoint": {
                "signal": "SIGUSR1",
                "shared": True,
                "confirm": "file",
                "complete": "rename",
                "path": str(path / "checkpoint"),
                "timeoutSeconds": 3,
                "graceSeconds": 1,
            },
            "backoffLimit": 0,
            "template": {"spec": {"containers": [container]}},
        },
    }
