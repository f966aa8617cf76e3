"""
One machine, whose GPUs die: no GPU ever has two masters.

The witness is the stand-in for CUDA: it knows which programs have taken memory of which GPU, by what the
kernel says of their locks, and nothing of DLJob.
"""

from typing import Any

import pytest

from tests.local.gpus import StandIn
from tests.local.ups import going
from tests.sidecar.standins import Witness, consume

pytestmark = pytest.mark.processes


@pytest.fixture
def box(tmp_path, monkeypatch) -> StandIn:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    made = StandIn(tmp_path, count=3)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


GRACE_SECONDS = 10
"""A stubborn training keeps its GPU for this time after the order to end."""


def job(name: str, root, *options: int, words: tuple[str, ...] = ()) -> dict[str, Any]:
    """Describe a job that takes memory of its GPUs by CUDA, and can be stopped at any time."""
    container = {"name": "trainer", "command": list(consume(700, str(root / name), *words))}
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": name},
        "spec": {
            "gpus": {"options": list(options)},
            "framework": "none",
            "processes": "perNode",
            "training": {"iterations": 10**6},
            "progress": {"log": r"step (?P<iteration>\d+)"},
            "checkpoint": {"trusted": True, "graceSeconds": GRACE_SECONDS if words else 1},
            "template": {"spec": {"containers": [container]}},
        },
    }


def rows(up) -> dict[int, dict[str, Any]]:
    return {gpu["index"]: gpu for gpu in up.backend.list_nodes()[0]["gpus"]}


def place_of(up, name: str) -> list[int]:
    (node,) = up.backend.get_job(name)["status"]["allocation"]["nodes"]
    return list(node["gpuIds"])


def test_gpus_that_are_renumbered_after_one_has_died_have_one_master(root, box):
    """With indices in commands, the newcomer got what the former start had called GPU 2."""
    with going(root / "state") as up, Witness(box) as witness:
        for name, words in {"a": (), "b": (), "c": ("stubborn",)}.items():
            up.submit(job(name, root, 1, words=words))
            up.until_phase(name, "Running")
        up.until(lambda: box.users().keys() == {0, 1, 2})
        assert [place_of(up, name) for name in ("a", "b", "c")] == [[0], [1], [2]]
        assert up("cancel", "--wait", "b").status == 0
        assert up.end() == 0
        # The trainings go on, and NVML counts two GPUs from now on: the second is the former third.
        box.set("gone-1")
        with going(root / "state") as again:
            again.until(lambda: rows(again).keys() == {0, 1})
            again.submit(job("late", root, 1))
            again.until(lambda: holders(again) in ({"a", "late"}, {"a", "c"}))
            assert again("cancel", "--wait", "a").status == 0
            again.until(lambda: holders(again) == {"late", "c"})
            again.until(lambda: box.users().keys() == {0, 2})
            assert again.end() == 0
    assert (witness.shared, witness.looks > 0) == ({}, True)


def holders(up) -> set[str]:
    """The jobs that train, by the rows of the GPUs that they have."""
    there = [gpu for gpu in rows(up).values() if gpu["state"] == "in use"]
    return {gpu["job"] for gpu in there} if len(there) == 2 else set()
