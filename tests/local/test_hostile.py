"""
A SideCar on one machine that another process of its user commands, and one that outlives its list of jobs.

All kinds of lies are told on a control plane (tests/operator/test_hostile.py), and by `make chaos` here.
"""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from dlcontrol.sidecars.dialing import DialSettings, Line
from dlcontrol.situation.ports import Address
from dllocal.folders import Folders
from dlwire.messages import State, Stop, Target
from tests.ctl.running import LONGEST_S
from tests.local.ups import Up, find_processes, going, replay

pytestmark = [pytest.mark.processes]

PATIENT = DialSettings(silence_seconds=60.0, dial_seconds=60.0)
"""A SideCar answers also where it stands still for some seconds."""


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


def job(name: str, root: Path) -> Any:
    """A job that replays on one GPU, for longer than the test lasts."""
    return replay(name, root, iterations=100_000, faster=20.0, gpus={"options": [1]})


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
            last.process.wait(LONGEST_S)


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
