"""Real trainings under the policies of papers, on one machine."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.local.ups import Up, find_told, going, replay
from tests.policy_stories import KIND, SPEEDS, STORIES, Json, write_speeds

pytestmark = pytest.mark.processes

GATE = ("afs-p", "ones")
"""The stories of the gate. The others are told in a deep part, because each takes seconds of waiting."""


class Machine:
    """One machine, as the stories see it."""

    def __init__(self, up: Up, root: Path) -> None:
        self._up, self._root = up, root
        self._speeds = write_speeds(root / "speeds.csv")

    def submit(self, name: str, *, iterations: int, **spec: Any) -> None:
        training = {"iterations": iterations, "batchSize": KIND[2]}
        usual = {"gpus": {"options": sorted(SPEEDS)}, "training": training}
        document = replay(name, self._root, iterations=iterations, faster=1.0, **(usual | spec))
        document["spec"]["profile"] = {"model": KIND[0], "dataset": KIND[1]}
        command = document["spec"]["template"]["spec"]["containers"][0]["command"]
        command += [f"--speeds={self._speeds}", f"--model={KIND[0]}", f"--batch={KIND[2]}"]
        self._up.backend.create_jobs([document])

    def cancel(self, name: str) -> None:
        self._up.backend.delete_job(name)

    def status(self, name: str) -> Json:
        status: Json = self._up.backend.get_job(name)["status"]
        return status

    def history(self, name: str) -> Sequence[Json]:
        return self._up.backend.list_history(name, 100)

    def find_told(self, name: str, variable: str) -> set[str]:
        return find_told(self._root / "checkpoints" / name, variable)

    def wait(self, what: Callable[[], object]) -> Any:
        found: list[object] = []

        def is_so() -> bool:
            found[:] = [what()]
            return bool(found[0])

        self._up.until(is_so)
        return found[0]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.story] if name in GATE else ()) for name in STORIES],
)
def test_policy_makes_its_own_move(root, name):
    policy, tell = STORIES[name]
    with going(root / "state", "--virtual-gpus", 4, "--policy", policy) as up:
        tell(Machine(up, root))
