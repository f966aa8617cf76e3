"""A clock that is set by hours and years while trainings go on under a real ``dljob up``, and while none runs."""

import os
import shutil

import pytest

from tests.attack.clocks import Clock
from tests.local.ups import Up, going, replay

pytestmark = pytest.mark.processes

HOUR, YEAR = 3600, 365 * 86400
LIVES: tuple[tuple[int, ...], ...] = ((-HOUR, HOUR),)
"""The steps of the clock under each controller, in seconds."""
if os.environ.get("DLJOB_ATTACK"):
    LIVES = ((-HOUR, HOUR, HOUR), (-10, 60, -86400), (YEAR, -10 * YEAR, 5 * HOUR))
SAID = "the clock of this machine was set"
ONE = {"gpus": {"options": [1]}}


@pytest.fixture
def clock(tmp_path, monkeypatch) -> Clock:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler (cc)")
    made = Clock(tmp_path, compiler)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


def test_jobs_complete_under_any_clock(root, clock):
    with going(root / "state", "--virtual-gpus", 2) as first:
        # A job without new iterations for a minute would be started again.
        progress = {"log": r"step (?P<iteration>\d+)", "stallSeconds": 30, "restartSeconds": 60}
        long = replay("long", root, iterations=10**7, faster=20.0, progress=progress, **ONE)
        assert first.submit(long).status == 0
        first.until_phase("long", "Running")
        assert first.end() == 0
        for number, jumps in enumerate(LIVES):
            live(root, clock, jumps, number)
            # And once while no controller runs.
            clock.set(-jumps[-1])


def live(root, clock: Clock, jumps: tuple[int, ...], number: int) -> None:
    up = Up(root / "state", "--virtual-gpus", 2)
    try:
        up.ready()
        for place, jump in enumerate(jumps):
            set_clock(up, root, clock, jump, f"new-{number}-{place}")
        assert up.end() == 0
    finally:
        up.process.kill()
        up.process.wait(60.0)


def set_clock(up: Up, root, clock: Clock, jump: int, name: str) -> None:
    """Set the clock, and check that everything goes on."""
    at, said = iteration(up), up.log.read_text(encoding="utf-8").count(SAID)
    clock.set(jump)
    up.until(lambda: iteration(up) > at + 5)
    up.until(lambda: up.log.read_text(encoding="utf-8").count(SAID) > said)
    up.submit(replay(name, root, iterations=5, faster=20.0, **ONE))
    up.until_phase(name, "Completed")
    status = up.backend.get_job("long")["status"]
    found = status["phase"], status.get("restarts", 0), status.get("failures", 0)
    assert found == ("Running", 0, 0), f"the clock was set by {jump} s: {status.get('message')}"
    assert len([*(up.root / "jobs" / "long").glob("*-*/launched")]) == 1


def iteration(up: Up) -> int:
    progress = up.backend.get_job("long")["status"].get("progress", {})
    return int(progress.get("iteration", 0))
