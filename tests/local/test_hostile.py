"""A hostile training on one machine: its own job bears what it does, and no other job does."""

import asyncio
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dlcontrol.sidecars.dialing import DialSettings, Line
from dlcontrol.situation.ports import Address
from dllocal.folders import Folders
from dlwire.messages import State, Stop, Target
from tests.hostile.lies import KINDS
from tests.local.ups import ROOT, Up, find_processes, going, replay

pytestmark = [pytest.mark.processes]

ONE = {"gpus": {"options": [1]}}
LONG = 100_000
PATIENT = DialSettings(silence_seconds=60.0, dial_seconds=60.0)
"""A SideCar answers also where it stands still for some seconds."""
# An honest SideCar must not be lost that is only as slow as its machine.
QUICK = {
    "DLJOB_RULES_LOST_SECONDS": "15",
    "DLJOB_RULES_OBEY_SECONDS": "5",
    "DLJOB_RULES_RETRY_SECONDS": "1",
}
AT_ONCE = 6
NAMES = sorted(KINDS)
# Every second batch is played here each time, and the others on a control plane; `make test-long` plays all.
BATCHES = [
    pytest.param(
        NAMES[at : at + AT_ONCE],
        marks=[pytest.mark.long] if at // AT_ONCE % 2 == 1 else [],
        id=",".join(NAMES[at : at + AT_ONCE]),
    )
    for at in range(0, len(NAMES), AT_ONCE)
]


def sockets(state: Path) -> set[Path]:
    return set(Folders(state).sockets.glob("*.sock")) - {Folders(state).socket}


def command(socket: Path, make: Any) -> State:
    """Say something to a SideCar, as any process of its user can."""

    async def say() -> State:
        line = Line(Address(socket=str(socket)), PATIENT, credentials=None)
        try:
            told: Target = make(await line.read_state(None))
            return await line.declare(told)
        finally:
            await line.close()

    return asyncio.run(say())


def job(name: str, root: Path, *, iterations: int = LONG, kind: str = "", gpus: int = 1) -> Any:
    """A job that replays; of a hostile kind, a training that answers for its SideCar."""
    spec: dict[str, Any] = {"gpus": {"options": [gpus]}}
    document = replay(name, root, iterations=iterations, faster=20.0, **spec)
    if kind:
        document["spec"]["backoffLimit"] = 0
        document["spec"]["checkpoint"] |= {"timeoutSeconds": 3, "graceSeconds": 1}
        container = document["spec"]["template"]["spec"]["containers"][0]
        words = container["command"]
        container["command"] = [sys.executable, "-m", "tests.hostile.liar", kind, *words]
        container["env"] = [
            *container.get("env", ()),
            {"name": "PYTHONPATH", "value": f"{ROOT}:{ROOT / 'sidecar'}"},
        ]
    return document


def status(up: Up, name: str) -> Any:
    found: Any = up.backend.get_job(name)
    return found["status"]


def test_a_sidecar_that_names_another_controller_is_ended_and_its_job_told_so(root: Path):
    state = root / "state"
    with going(state, "--virtual-gpus", 2) as up:
        assert up.submit(job("other", root)).status == 0
        up.until_phase("other", "Running")
        theirs = sockets(state)
        assert up.submit(job("liar", root)).status == 0
        up.until_phase("liar", "Running")
        (socket,) = sockets(state) - theirs
        before = command(socket, lambda told: Stop(99, told.generation, told.incarnation))
        assert before.epoch == 99
        up.until(lambda: "SideCarUntrusted" in up("describe", "liar").stdout)
        # Its pod is ended, and only its controller has commanded the pod of the next attempt.
        up.until(lambda: status(up, "liar").get("failures") == 1)
        up.until_phase("liar", "Running")
        assert status(up, "other").get("restarts", 0) == 0
        assert up("cancel", "liar").status == 0
        up.until_phase("other", "Running")


def test_a_training_that_has_its_sidecar_take_anothers_gpu_is_ended(root: Path):
    state = root / "state"
    with going(state, "--virtual-gpus", 2) as up:
        assert up.submit(job("other", root)).status == 0
        up.until_phase("other", "Running")
        theirs = sockets(state)
        assert up.submit(job("thief", root)).status == 0
        up.until_phase("thief", "Running")
        (socket,) = sockets(state) - theirs

        def steal(told: State) -> Target:
            assert told.target is not None
            return told.target.__class__(
                **{
                    **vars(told.target),
                    "generation": told.generation + 1,
                    "gpus": ("0", "1"),
                }
            )

        command(socket, steal)
        up.until(lambda: "SideCarUntrusted" in up("describe", "thief").stdout)
        up.until(lambda: status(up, "thief").get("failures") == 1)
        up.until_phase("thief", "Running")
        assert status(up, "other").get("restarts", 0) == 0


def test_sidecars_that_outlive_a_restored_list_of_jobs_are_believed(root: Path):
    state = root / "state"
    backup = root / "backup.db"
    with going(state, "--virtual-gpus", 1) as up:
        assert up.submit(job("stays", root)).status == 0
        up.until_phase("stays", "Running")
        assert up.end() == 0
        shutil.copy(state / "jobs.db", backup)
        for epoch in (2, 3):
            stamp(state, epoch)
        for name in ("jobs.db-wal", "jobs.db-shm"):
            (state / name).unlink(missing_ok=True)
        shutil.copy(backup, state / "jobs.db")
        trainings = find_processes(state)
        last = Up(state, "--virtual-gpus", 1)
        try:
            last.ready()
            last.until(lambda: stamped(state) == 4)
            last.until_phase("stays", "Running")
            assert last.backend.about()["epoch"] == 4
            assert status(last, "stays").get("restarts", 0) == 0
            assert set(trainings) <= set(find_processes(state))
        finally:
            last.process.kill()
            last.process.wait()


def is_told(up: Up, name: str) -> bool:
    return any(each["reason"] == "SideCarUntrusted" for each in up.backend.list_events(name))


def stamp(state: Path, epoch: int) -> None:
    """Have one more controller in this epoch, and its SideCar obey it."""
    again = Up(state, "--virtual-gpus", 1)
    again.ready()
    again.until(lambda: stamped(state) == epoch)
    assert again.end() == 0


def stamped(state: Path) -> int:
    """Under which epoch the only SideCar obeys."""
    (socket,) = sockets(state)

    async def ask() -> State:
        line = Line(Address(socket=str(socket)), PATIENT, credentials=None)
        try:
            return await line.read_state(None)
        finally:
            await line.close()

    return asyncio.run(ask()).epoch


@pytest.mark.slow
@pytest.mark.parametrize("kinds", BATCHES)
def test_what_a_hostile_training_says_for_its_sidecar_harms_no_other_job(
    root: Path, kinds: list[str], monkeypatch: pytest.MonkeyPatch
):
    for name, value in QUICK.items():
        monkeypatch.setenv(name, value)
    state = root / "state"
    with going(state, "--virtual-gpus", 8) as up:
        for name in ("beside", *kinds):
            assert up.submit(job(name, root, kind=name if name in kinds else "")).status == 0
        for name in ("beside", *kinds):
            up.until_phase(name, "Running")
        # The connections of this controller lead to the true SideCars; those of the next one do not.
        assert up.end() == 0
        again = Up(state, "--virtual-gpus", 8)
        try:
            again.ready()
            hear_out(again, root, kinds)
        finally:
            again.process.kill()
            again.process.wait()


def hear_out(up: Up, root: Path, kinds: list[str]) -> None:
    """See that those that lie are found out, and that honest jobs go on, come and end."""
    for kind in kinds:
        if KINDS[kind].is_exposed:
            up.until(partial(is_told, up, kind))
            up.until_phase(kind, "Failed")
    before = status(up, "beside")["progress"]["iteration"]
    assert up.submit(job("visits", root, iterations=50)).status == 0
    up.until_phase("visits", "Completed")
    up.until(lambda: status(up, "beside")["progress"]["iteration"] > before)
    for name in ("visits", "beside"):
        found = status(up, name)
        assert found.get("restarts", 0) == found.get("failures", 0) == 0, found
    # A job that lies about its own GPU takes that one out, for as long as it can speak.
    assert up("cancel", "--wait", *kinds, "beside").status == 0
    [node] = up.backend.list_nodes()
    for gpu in range(8):
        up.backend.uncordon(node["name"], gpu)
    assert up.submit(job("all", root, iterations=50, gpus=8)).status == 0
    up.until_phase("all", "Completed")
    words = (up.root / "dljob.log").read_text(encoding="utf-8")
    assert "a cycle failed" not in words
