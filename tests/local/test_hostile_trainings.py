"""Hostile trainings and an honest one on a machine: each harms only its own job."""

import os
import re
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dljob.local.pods.rotating import MOST_LATE, MOST_MEANWHILE, MOST_OVER, LogLimits
from tests.hostile import trainings
from tests.local.ups import Up, find_processes, going, replay

pytestmark = pytest.mark.processes

# An honest SideCar must not be lost that is only as slow as its machine.
QUICK = {
    "DLJOB_RULES_LOST_SECONDS": "15",
    "DLJOB_RULES_OBEY_SECONDS": "5",
    "DLJOB_RULES_RETRY_SECONDS": "1",
}
LONG = 100_000
# Their floods keep both cores of a small machine busy for seconds.
COSTLY = ("fills-its-log", "endless-line", "writes-garbage", "slow-lines", "huge-numbers")
CHEAP = [kind for kind in trainings.KINDS if kind not in COSTLY]
BATCHES = [
    pytest.param(CHEAP, id="cheap"),
    pytest.param(COSTLY, id="costly", marks=pytest.mark.long),
]
PATTERNS = {"slow-lines": r"(1|11)*(1|111)* (?P<iteration>\d+)"}
LIMITS = LogLimits()
MOST_LOG_BYTES = (LIMITS.kept_parts + 1) * (
    LIMITS.largest_bytes + MOST_OVER + MOST_MEANWHILE + MOST_LATE
)
"""Of one job, soon after it has written; the starts of one that fills its log write thrice as much."""


def honest(name: str, root: Path, *, iterations: int = LONG, gpus: int = 1) -> Any:
    return replay(name, root, iterations=iterations, faster=20.0, gpus={"options": [gpus]})


def hostile(kind: str, root: Path) -> Any:
    document = honest(kind, root)
    spec = document["spec"]
    spec["backoffLimit"] = 2
    spec["checkpoint"] |= {"timeoutSeconds": 3, "graceSeconds": 1}
    if kind in PATTERNS:
        spec["progress"]["log"] = PATTERNS[kind]
    folder = root / "folders" / kind
    folder.mkdir(parents=True)
    container = spec["template"]["spec"]["containers"][0]
    container["command"] = [sys.executable, trainings.__file__, kind, str(root / "began")]
    container["workingDir"] = str(folder)
    container["env"] = [{"name": "HOSTILE_CHECKPOINTS", "value": spec["checkpoint"]["path"]}]
    return document


def status(up: Up, name: str) -> Any:
    return up.backend.get_job(name)["status"]


def is_beyond(up: Up, name: str, iteration: int) -> bool:
    return bool(status(up, name)["progress"]["iteration"] > iteration)


def is_unharmed(up: Up, name: str) -> None:
    found = status(up, name)
    assert found.get("restarts", 0) == found.get("failures", 0) == 0, found


def is_bounded(state: Path, kind: str) -> bool:
    """Check that the logs of a job are no longer than the limits."""
    return 0 < log_bytes(state, kind) <= MOST_LOG_BYTES


def log_bytes(state: Path, kind: str) -> int:
    found = 0
    for folder, _, names in os.walk(state):
        for path in (Path(folder, name) for name in names if ".log" in name):
            # A log that is turned over changes its name, and the oldest part is removed.
            with suppress(OSError):
                found += path.lstat().st_size if f"/{kind}/" in str(path) else 0
    return found


@pytest.mark.parametrize("kinds", BATCHES)
def test_hostile_training_harms_no_other_job(
    root: Path, kinds: list[str], monkeypatch: pytest.MonkeyPatch
):
    for name, value in QUICK.items():
        monkeypatch.setenv(name, value)
    began, state, gpus = root / "began", root / "state", len(kinds) + 2
    began.mkdir()
    with going(state, "--virtual-gpus", gpus) as up:
        documents = [honest("beside", root), *(hostile(kind, root) for kind in kinds)]
        assert up.submit(*documents).status == 0
        up.until_phase("beside", "Running")
        for kind in kinds:
            up.until((began / kind).exists)
        before = status(up, "beside")["progress"]["iteration"]
        assert up.submit(honest("visits", root, iterations=50)).status == 0
        up.until_phase("visits", "Completed")
        up.until(partial(is_beyond, up, "beside", before))
        for name in ("visits", "beside"):
            is_unharmed(up, name)
        if "fills-its-log" in kinds:
            up.until_phase("fills-its-log", "Failed")
        for kind in kinds:
            up.until(partial(is_bounded, state, kind))
        assert up("cancel", *kinds, "beside").status == 0
        # Every GPU of theirs comes back, and nothing of them is left.
        up.until(lambda: len(up.backend.list_jobs().items) == 1)
        assert up.submit(honest("all", root, iterations=50, gpus=gpus)).status == 0
        up.until_phase("all", "Completed")
        is_unharmed(up, "all")
        up.until(lambda: not find_processes(began))
        words = (state / "dljob.log").read_text(encoding="utf-8")
        assert "a cycle failed" not in words
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", words)
