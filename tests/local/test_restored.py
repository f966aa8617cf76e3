"""SideCars that outlive the list of jobs, which is restored from an older copy: they are no liars."""

import asyncio
import shutil
from pathlib import Path

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
            assert last.backend.get_job("stays")["status"].get("restarts", 0) == 0
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
    (socket,) = sockets(state)

    async def ask() -> State:
        line = Line(Address(socket=str(socket)), PATIENT, credentials=None)
        try:
            return await line.read_state(None)
        finally:
            await line.close()

    return asyncio.run(ask()).epoch
