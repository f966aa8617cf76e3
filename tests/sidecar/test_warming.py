"""A spare interpreter becomes a training that looks like a cold start."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import uuid
from pathlib import Path

import pytest

from dljob_sidecar.linux.spawning import Reaper
from dljob_sidecar.observing.rank_outputs import Outputs
from dljob_sidecar.warm.budgets import Budget
from dljob_sidecar.warm.warming import SparePool
from tests.sidecar.clients import lived
from tests.sidecar.drivers import find_children, wait_until
from tests.sidecar.sidecars import TRAINER

pytestmark = pytest.mark.processes

# Prints everything that a script can see of its start.
TELL = """
import json, os, sys
import __main__
print("ready", json.dumps({
    "argv": sys.argv, "path": sys.path, "file": __file__, "name": __name__,
    "gpus": os.environ["CUDA_VISIBLE_DEVICES"], "environment": sorted(os.environ),
    "preloaded": "colorsys" in sys.modules, "is_main": __main__.__dict__.get("marker") == 1,
}) if (marker := 1) else "", flush=True)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "code" / "train.py"
    path.parent.mkdir()
    path.write_text(TELL)
    return path


def drive_warm(drive, command, preload=("colorsys",), count=1, **training):
    driver = drive(command=command, preload=list(preload), **training)
    driver.wait_for_fact(lambda facts: facts["warmth"]["ready"] == count, "a spare")
    return driver


def run_once(driver, attempt=1):
    driver.start(attempt)
    driver.wait_for("Started", attempt=attempt)
    ended = driver.wait_for("RankEnded", attempt=attempt)
    driver.wait_for("Gone", attempt=attempt)
    return ended["exit_code"]


def read_report(driver):
    lines = [line for line in driver.read_log().splitlines() if line.startswith("ready ")]
    return json.loads(lines[-1][6:])


@pytest.mark.parametrize("form", [pytest.param("script", marks=pytest.mark.story), "module"])
def test_warm_start_equals_a_cold_one(drive, token, script, form, monkeypatch):
    monkeypatch.chdir(script.parent)
    part = ["train.py"] if form == "script" else ["-m", "train"]
    command = [sys.executable, *part, "7", token]
    driver = drive_warm(drive, command)
    assert run_once(driver) == 7
    warm = read_report(driver)
    assert driver.facts()["processes"][0]["warm"]
    assert warm.pop("preloaded")
    driver.close()

    cold_driver = drive(command=command)
    assert run_once(cold_driver) == 7
    cold = read_report(cold_driver)
    assert not cold.pop("preloaded")
    assert warm == cold


@pytest.mark.parametrize("compiler", ["LOADED = True", "raise OSError('not here')"])
def test_lazy_imports_of_pytorch_are_preloaded(drive, token, script, compiler):
    # A package with the name and layout of PyTorch, imported by a module of the user.
    package = script.parent / "torch"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "_dynamo.py").write_text(compiler)
    (script.parent / "vision.py").write_text("import torch")
    script.write_text("import sys; sys.exit('torch._dynamo' in sys.modules)")
    command = [sys.executable, str(script), token]
    driver = drive_warm(drive, command, preload=["vision"], extra_path=str(script.parent))
    assert run_once(driver) == compiler.startswith("LOADED")
    assert driver.facts()["processes"][0]["warm"]


def test_spares_are_limited_by_processes_and_gpus(drive, token, monkeypatch):
    command = [sys.executable, TRAINER, token]
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
    driver = drive_warm(drive, command, count=2, processes="perGpu", most_spares=2)
    assert driver.facts()["warmth"]["wanted"] == 2


# A slow import that writes a file at its beginning.
SLOW = """
import os, sys, time
from pathlib import Path
folder = Path(__file__).parent
(folder / f"begun-{os.getpid()}").touch()
while not (folder / "go").exists():
    time.sleep(0.01)
"""


def test_spares_for_the_coming_width_are_made_early(drive, token):
    driver = drive_warm(drive, [sys.executable, TRAINER, token], processes="perGpu")
    driver.start()
    driver.wait_for_log("ready")
    driver.call("prepare", processes=4)
    facts = driver.wait_for_fact(lambda facts: facts["warmth"]["ready"] == 4, "three more")
    assert facts["processes"][0]["exit_code"] is None
    assert facts["warmth"]["limit_bytes"] > 0
    driver.stop_all()
    driver.start(2, gpus=4, processes=4)
    driver.wait_for("Started", attempt=2)
    assert [one["warm"] for one in driver.facts()["processes"]] == [True] * 4
    driver.stop_all(2)
    driver.start(3)
    driver.wait_for("Started", attempt=3)
    # As many spares as processes are kept.
    facts = driver.wait_for_fact(lambda facts: facts["warmth"]["ready"] == 1, "one")
    assert facts["warmth"]["wanted"] == 1
    driver.stop_all(3)


def make_spare_pool(on_problem, on_change=lambda: None):
    return SparePool(
        command=[sys.executable, "train.py"],
        preload=["colorsys"],
        environment=os.environ,
        outputs=Outputs((1, 2), by_rank=False),
        reaper=Reaper(),
        on_problem=on_problem,
        on_relief=lambda _: None,
        on_change=on_change,
    )


class Room(Budget):
    """Memory for a number of spares."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.asked = 0

    def allow(self, count: int, *, ready: int) -> tuple[int, str]:
        self.asked += 1
        return min(count, self.most), "" if count <= self.most else "too little"


@lived
async def test_spares_yield_memory_to_the_training():
    reported = []
    spares = make_spare_pool(lambda name, _: reported.append(name))
    spares.budget = room = Room(3)
    spares.review_seconds = 0.01

    async def see(is_so) -> None:
        while not is_so():
            await asyncio.sleep(0.01)

    spares.want(1)
    spares.expect(3)
    await see(lambda: spares.ready == 3)
    made = spares.pids()
    room.most = 1
    await see(lambda: spares.pids() == made[:1])
    # There are as many as processes, so there is no problem.
    assert reported == []
    room.most = 0
    await see(lambda: not spares.pids())
    # Freed memory is left to the training until its next start.
    room.most, asked = 3, room.asked
    await see(lambda: room.asked > asked + 1)
    assert (spares.wanted, spares.pids()) == (0, [])
    spares.close()
    for pid in made:
        os.waitpid(pid, 0)
    assert reported == ["SparesLimited"]


@pytest.mark.parametrize("breaks", [False, True])
def test_importing_spare_is_used_unless_it_breaks(drive, token, script, breaks):
    (script.parent / "slow.py").write_text(SLOW + "raise OSError('no such data')\n" * breaks)
    command = [sys.executable, str(script), "7", token]
    driver = drive(command=command, preload=["slow"], extra_path=str(script.parent))
    wait_until(lambda: list(script.parent.glob("begun-*")), what="the import")
    driver.start()
    (script.parent / "go").touch()
    driver.wait_for("Started")
    assert driver.wait_for("RankEnded")["exit_code"] == 7
    facts = driver.facts()
    assert facts["processes"][0]["warm"] != breaks
    assert [one for one in facts["problems"] if "no such data" in one["message"]] or not breaks
    driver.wait_for("Gone")


def test_killed_spare_is_replaced(drive, token):
    driver = drive_warm(drive, [sys.executable, TRAINER, token])
    # Without a trainer each child of the harness is a spare.
    spare = min(find_children(driver.pid))
    os.kill(spare, signal.SIGKILL)
    facts = driver.wait_for_fact(
        lambda facts: facts["warmth"]["ready"] == 1 and find_children(driver.pid) != {spare},
        "another spare",
    )
    # The lack of a spare is no problem any more.
    assert facts["problems"] == []


@lived
async def test_next_spare_waits_for_the_start():
    """Imports during a start would slow it down."""
    ready = asyncio.Event()
    spares = make_spare_pool(lambda name, text: pytest.fail(f"{name}: {text}"), ready.set)
    spares.refill_seconds = 3600.0
    spares.want(1)
    await ready.wait()
    taken = spares.take(os.environ, lambda _: None)
    assert taken is not None
    spares.want(1)
    assert spares.pids() == []
    spares.close()
    os.kill(taken, signal.SIGKILL)
    os.waitpid(taken, 0)


def test_spare_that_touched_a_gpu_is_dropped(drive, token, tmp_path, script):
    device = Path(f"/dev/nvidia-test-{uuid.uuid4().hex}")
    try:
        device.write_text("")
    except OSError as error:
        pytest.skip(f"no device file can be made here: {error}")
    try:
        (tmp_path / "touching.py").write_text(f"file = open({str(device)!r})")
        command = ["python3", "-X", "utf8", str(script), "0", token]
        driver = drive(command=command, preload=["touching"], extra_path=str(tmp_path))
        assert "GPU" in driver.wait_for_problem("NoWarmStart")["message"]
        assert run_once(driver) == 0
        assert not driver.facts()["processes"][0]["warm"]
    finally:
        device.unlink()
