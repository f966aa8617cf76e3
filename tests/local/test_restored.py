"""Trainings that outlive the list of jobs, which is restored from an older copy: the controller believes them."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from dljob.control.sidecars.dialing import DialSettings, Line
from dljob.control.situation.ports import Address
from dljob.local.folders import Folders
from dljob_wire.messages import State
from tests.ctl.running import LONGEST_S
from tests.local.ups import Up, find_processes, going, replay

pytestmark = pytest.mark.processes

PATIENT = DialSettings(silence_seconds=60.0, dial_seconds=60.0)
"""A SideCar answers also where it stands still for some seconds."""
NEW = ("new-0", "new-1", "new-2")


def sockets(state: Path) -> set[Path]:
    return set(Folders(state).sockets.glob("*.sock")) - {Folders(state).socket}


def test_sidecars_that_outlive_a_restored_list_of_jobs_are_believed(root: Path):
    state = root / "state"
    backup, one = root / "backup.db", {"gpus": {"options": [1]}}
    with going(state, "--virtual-gpus", 1) as up:
        assert up.submit(replay("stays", root, iterations=10**6, faster=20.0, **one)).status == 0
        up.until_phase("stays", "Running")
        assert up.end() == 0
        shutil.copy(state / "jobs.db", backup)
        for epoch in (2, 3):
            stamp(state, epoch)
        shutil.copy(backup, state / "jobs.db")
        trainings = find_processes(state)
        last = Up(state, "--virtual-gpus", 1)
        try:
            last.ready()
            last.until(lambda: stamped(state) == 4)
            last.until_phase("stays", "Running")
            assert last.backend.about()["epoch"] == 4
            assert last.backend.get_job("stays")["status"].get("restarts", 0) == 0
            assert set(trainings) <= set(find_processes(state))
        finally:
            last.process.kill()
            last.process.wait(LONGEST_S)


def test_folders_of_jobs_complete_a_list_that_its_copy_replaces(root: Path):
    state, options = root / "state", ("--virtual-gpus", 4)
    with going(state, *options) as up:
        up.submit(
            endless("shrinks", root, [1, 2]),
            waiting("ends", root),
            endless("gone", root, [1]),
        )
        for name in ("shrinks", "ends", "gone"):
            up.until_phase(name, "Running")
        assert up.end() == 0
        older = (state / "jobs.db.copy").read_bytes()
        up.begin()
        up.ready()
        (root / "ends.go").touch()
        up.until_phase("ends", "Completed")
        assert up("cancel", "--wait", "gone").status == 0
        up.submit(*(endless(name, root, [1]) for name in NEW))
        for name in NEW:
            up.until_phase(name, "Running")
        trainings = set(find_processes(root / "checkpoints" / "shrinks"))
        up.kill()
        (state / "jobs.db.copy").write_bytes(older)
        (state / "jobs.db").write_bytes(b"not a list")
        up.begin()
        up.ready()
        up.until_phase("shrinks", "Running")
        phases = {"shrinks": "Running", "ends": "Completed", **dict.fromkeys(NEW, "Running")}
        up.until(lambda: read_phases(up) == phases)
        assert trainings <= set(find_processes(root / "checkpoints" / "shrinks"))
        up.until(lambda: sorted(held(up)) == [*NEW, "shrinks"])
        said = up.log.read_text(encoding="utf-8")
        assert "jobs.db: is damaged (file is not a database); its copy of " in said
        assert "the damaged file is jobs.db.damaged" in said
        assert (root / "ends.starts").read_text() == "x"
        assert up("cancel", "--wait", *phases).status == 0
        assert up.end() == 0


def endless(name: str, root: Path, gpus: list[int]) -> dict[str, Any]:
    return replay(name, root, iterations=10**6, faster=20.0, gpus={"options": gpus})


def waiting(name: str, root: Path) -> dict[str, Any]:
    document = replay(name, root, iterations=10, faster=1.0, gpus={"options": [1]})
    (trainer,) = document["spec"]["template"]["spec"]["containers"]
    script = "printf x >> {0}.starts; until test -e {0}.go; do sleep 0.1; done; echo step 10"
    trainer["command"] = ["sh", "-c", script.format(root / name)]
    return document


def read_phases(up: Up) -> dict[str, str]:
    jobs = up.backend.list_jobs().items
    return {each["metadata"]["name"]: each["status"]["phase"] for each in jobs}


def held(up: Up) -> list[str]:
    """Return the job of each GPU in use."""
    (node,) = up.backend.list_nodes()
    return [gpu["job"] for gpu in node["gpus"] if gpu.get("job")]


def stamp(state: Path, epoch: int) -> None:
    """Have one more controller in this epoch, and its SideCar obey it."""
    again = Up(state, "--virtual-gpus", 1)
    again.ready()
    again.until(lambda: stamped(state) == epoch)
    assert again.end() == 0


def stamped(state: Path) -> int:
    (socket,) = sockets(state)

    async def ask() -> State:
        line = Line(Address(socket=str(socket)), PATIENT, credentials=None)
        try:
            return await line.read_state(None)
        finally:
            await line.close()

    return asyncio.run(ask()).epoch
