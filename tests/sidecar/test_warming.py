"""A spare interpreter becomes the training, which cannot be distinguished from a cold start."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
import uuid
from pathlib import Path

import pytest

from dlsidecar.linux.spawning import Reaper
from dlsidecar.observing.rank_outputs import Outputs
from dlsidecar.warm import spare
from dlsidecar.warm.budgets import Budget
from dlsidecar.warm.scripts import Script, take_apart
from dlsidecar.warm.warming import Nursery
from tests.sidecar.drivers import LIMIT_SECONDS, find_processes, wait_until

pytestmark = pytest.mark.processes

# Tells what a script can see of its own start.
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


def read_told(driver):
    lines = [line for line in driver.read_log().splitlines() if line.startswith("ready ")]
    return json.loads(lines[-1][6:])


@pytest.mark.parametrize("form", ["script", "module"])
def test_a_warm_start_looks_like_a_cold_one(drive, token, script, form, monkeypatch):
    monkeypatch.chdir(script.parent)
    part = ["train.py"] if form == "script" else ["-m", "train"]
    command = [sys.executable, *part, "7", token]
    driver = drive_warm(drive, command)
    assert run_once(driver) == 7
    warm = read_told(driver)
    assert driver.facts()["processes"][0]["warm"]
    assert warm.pop("preloaded")
    driver.close()

    cold_driver = drive(command=command)
    assert run_once(cold_driver) == 7
    cold = read_told(cold_driver)
    assert not cold.pop("preloaded")
    assert warm == cold


@pytest.mark.parametrize(
    ("compiler", "has_it"),
    [("LOADED = True", True), (None, False), ("raise OSError('not here')", False)],
    ids=["PyTorch 2", "PyTorch 1", "broken"],
)
def test_what_pytorch_imports_with_its_first_optimizer_is_imported_as_well(
    drive, token, script, compiler, has_it
):
    # A package that is named and built like PyTorch, and that another module of the user imports.
    package = script.parent / "torch"
    package.mkdir()
    (package / "__init__.py").touch()
    if compiler is not None:
        (package / "_dynamo.py").write_text(compiler)
    (script.parent / "vision.py").write_text("import torch")
    script.write_text("import sys; sys.exit(7 if 'torch._dynamo' in sys.modules else 8)")
    command = [sys.executable, str(script), token]
    driver = drive_warm(drive, command, preload=["vision"], extra_path=str(script.parent))
    assert run_once(driver) == (7 if has_it else 8)
    assert driver.facts()["processes"][0]["warm"]


def test_spares_survive_the_stop_and_are_made_anew(drive, token):
    driver = drive_warm(drive, [sys.executable, trainer(), token], count=1)
    driver.start()
    driver.wait_for_log("ready")
    facts = driver.wait_for_fact(lambda facts: facts["warmth"]["ready"] == 1, "the next spare")
    assert facts["warmth"]["memory_bytes"] > 1 << 20
    driver.stop_all()
    assert driver.facts()["warmth"]["ready"] == 1
    driver.start(2)
    driver.wait_for("Started", attempt=2)
    assert driver.facts()["processes"][0]["warm"]
    driver.stop_all(2)


def test_one_spare_per_gpu_waits_before_anybody_said_how_many(drive, token, monkeypatch):
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "0,1,2")
    drive_warm(drive, [sys.executable, trainer(), token], count=3, split="perGpu")


def test_no_more_spares_wait_than_the_job_can_have_processes(drive, token, monkeypatch):
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
    command = [sys.executable, trainer(), token]
    driver = drive_warm(drive, command, count=2, split="perGpu", most_spares=2)
    assert driver.facts()["warmth"]["wanted"] == 2


def test_spares_for_the_widest_start_wait_also_while_fewer_processes_run(drive, token, monkeypatch):
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "0,1,2")
    driver = drive_warm(drive, [sys.executable, trainer(), token], count=3, split="perGpu")
    driver.start()
    driver.wait_for("Started")
    facts = driver.wait_for_fact(lambda facts: facts["warmth"]["ready"] == 3, "three spares")
    assert (facts["warmth"]["wanted"], len(facts["processes"])) == (3, 1)
    # Nothing said that three are coming, and all of them start warm.
    driver.stop_all()
    driver.start(2, gpus=3, processes=3)
    driver.wait_for("Started", attempt=2)
    assert [one["warm"] for one in driver.facts()["processes"]] == [True] * 3
    driver.stop_all(2)


# Takes a while, as PyTorch does, and says in a file that it was begun.
SLOW = """
import os, sys, time
from pathlib import Path
folder = Path(__file__).parent
(folder / f"begun-{os.getpid()}").touch()
while not (folder / "go").exists():
    time.sleep(0.01)
"""


def test_those_for_the_coming_width_are_made_while_the_training_still_runs(drive, token):
    driver = drive_warm(drive, [sys.executable, trainer(), token], split="perGpu")
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
    # As many as run are kept, and no more.
    assert (
        driver.wait_for_fact(lambda facts: facts["warmth"]["ready"] == 1, "one")["warmth"]["wanted"]
        == 1
    )
    driver.stop_all(3)


@pytest.fixture
def nursery(tmp_path):
    """Return a way to make a nursery of our own, inside a loop."""

    def make(on_problem=lambda name, text: pytest.fail(f"{name}: {text}")):
        return Nursery(
            command=[sys.executable, str(tmp_path / "train.py")],
            preload=["colorsys"],
            environment=os.environ,
            outputs=Outputs((1, 2), by_rank=False),
            passed=(),
            reaper=Reaper(),
            on_problem=on_problem,
            on_relief=lambda _: None,
        )

    return make


class Room(Budget):
    """Memory for as many spares as the test says."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.asked = 0

    def allow(self, count: int, *, ready: int) -> tuple[int, str]:
        self.asked += 1
        return min(count, self.most), "" if count <= self.most else "too little"


def test_spares_make_room_for_the_memory_that_the_training_takes(nursery):
    told = []

    async def story() -> None:
        spares = nursery(lambda name, _: told.append(name))
        spares.budget = room = Room(3)
        spares.review_seconds = 0.01

        async def see(is_so) -> None:
            end = asyncio.get_running_loop().time() + LIMIT_SECONDS
            while not is_so():
                assert asyncio.get_running_loop().time() < end
                await asyncio.sleep(0.01)

        spares.want(1)
        spares.expect(3)
        await see(lambda: spares.ready == 3)
        made = spares.pids()
        room.most = 1
        await see(lambda: spares.pids() == made[:1])
        # As many are left as processes run, so that there is nothing to complain of.
        assert told == []
        room.most = 0
        await see(lambda: not spares.pids())
        # Memory that becomes free is left to the training until it starts again.
        room.most, asked = 3, room.asked
        await see(lambda: room.asked > asked + 1)
        assert (spares.wanted, spares.pids()) == (0, [])
        spares.close()
        for pid in made:
            os.waitpid(pid, 0)

    asyncio.run(story())
    assert told == ["SparesLimited"]


@pytest.mark.parametrize("is_open", [True, False])
def test_a_warm_rank_begins_without_a_connection_that_the_first_one_could_take_for_a_peer(
    drive, token, script, is_open
):
    driver = drive_warm(
        drive,
        [sys.executable, str(script), "7", token],
        count=1,
        framework="pytorch",
        split="perGpu",
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if not is_open:
            server.close()
        driver.call("start", gpus=["0"], processes=1, attempt=1, port=port, rank=1)
        driver.wait_for("Started")
        # If the port stays closed, the rank begins all the same.
        assert driver.wait_for("RankEnded")["exit_code"] == 7
        driver.wait_for("Gone")
        if is_open:
            server.setblocking(False)
            with pytest.raises(BlockingIOError):
                server.accept()


@pytest.mark.parametrize(
    ("environment", "is_behind"),
    [
        ({"MASTER_PORT": "1", "NODE_RANK": "1", "RANK": "1"}, True),
        ({"MASTER_PORT": "1", "NODE_RANK": "0", "RANK": "0"}, False),
        ({"NODE_RANK": "1", "RANK": "1"}, False),
    ],
    ids=["on another node", "first", "without a meeting"],
)
def test_a_warm_rank_on_another_node_stays_behind_the_first_one(
    environment, is_behind, monkeypatch
):
    # The pauses, and not the time that passes: a busy machine adds to that.
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    spare.await_first_rank(environment)
    assert pauses == ([spare.ELSEWHERE_SECONDS] if is_behind else [])


def test_one_that_still_imports_is_taken_when_its_start_comes(drive, token, script):
    (script.parent / "slow.py").write_text(SLOW)
    command = [sys.executable, str(script), "7", token]
    driver = drive(command=command, preload=["slow"], extra_path=str(script.parent))
    wait_until(lambda: list(script.parent.glob("begun-*")), what="the import")
    driver.start()
    (script.parent / "go").touch()
    driver.wait_for("Started")
    assert driver.wait_for("RankEnded")["exit_code"] == 7
    assert driver.facts()["processes"][0]["warm"]
    driver.wait_for("Gone")


def test_one_that_breaks_while_its_start_waits_for_it_is_replaced_by_a_cold_one(
    drive, token, script
):
    (script.parent / "slow.py").write_text(SLOW + "raise OSError('no such data')\n")
    command = [sys.executable, str(script), "7", token]
    driver = drive(command=command, preload=["slow"], extra_path=str(script.parent))
    wait_until(lambda: list(script.parent.glob("begun-*")), what="the import")
    driver.start()
    (script.parent / "go").touch()
    driver.wait_for("Started")
    assert driver.wait_for("RankEnded")["exit_code"] == 7
    facts = driver.facts()
    assert not facts["processes"][0]["warm"]
    assert "no such data" in facts["problems"][0]["message"]
    driver.wait_for("Gone")


def test_memory_for_too_few_is_told(drive, token):
    command = [sys.executable, trainer(), token]
    driver = drive(
        command=command, preload=["colorsys"], split="perGpu", spare_memory_bytes=300 << 20
    )
    driver.wait_for_fact(lambda facts: facts["warmth"]["ready"] == 1, "a spare")
    driver.start(gpus=3, processes=3)
    driver.wait_for("Started")
    # Until one was measured, it is taken to be large.
    assert driver.wait_for_fact(lambda facts: facts["warmth"]["ready"] == 3, "all")
    driver.stop_all()
    tight = drive(command=command, preload=["colorsys"], spare_memory_bytes=1 << 20)
    assert "0 fit into 1 MiB" in tight.wait_for_problem("SparesLimited")["message"]
    assert tight.facts()["warmth"]["wanted"] == 0


def test_what_cannot_be_imported_is_named_and_the_start_is_cold(drive, token, script):
    driver = drive(command=[sys.executable, str(script), "0", token], preload=["no_such_module"])
    assert "no_such_module" in driver.wait_for_problem("NoWarmStart")["message"]
    # A controller would wait for each that is wanted and not ready.
    assert driver.facts()["warmth"]["wanted"] == 0
    assert run_once(driver) == 0
    assert not driver.facts()["processes"][0]["warm"]


def test_a_killed_spare_is_replaced(drive, token):
    driver = drive_warm(drive, [sys.executable, trainer(), token])
    # No trainer runs, so each child of the harness is its spare.
    spare = children_of(driver.pid)[0]
    os.kill(spare, signal.SIGKILL)
    facts = driver.wait_for_fact(
        lambda facts: facts["warmth"]["ready"] == 1 and children_of(driver.pid) != [spare],
        "another spare",
    )
    # That there was none for a moment is over.
    assert facts["problems"] == []


def test_a_large_environment_keeps_nobody_from_a_warm_start(drive, token, script, monkeypatch):
    for number in range(3):
        monkeypatch.setenv(f"LARGE_{number}", "x" * 100_000)
    driver = drive_warm(drive, [sys.executable, str(script), "0", token])
    assert run_once(driver) == 0
    assert driver.facts()["processes"][0]["warm"]
    assert "LARGE_2" in read_told(driver)["environment"]


def test_the_next_spare_waits_until_the_start_had_its_time(nursery):
    """All users wait for a start; imports at the same time would make it slower."""

    async def story() -> None:
        ready = asyncio.Event()
        spares = nursery()
        spares.refill_seconds = 3600.0
        spares.on_change = ready.set
        spares.want(1)
        await asyncio.wait_for(ready.wait(), LIMIT_SECONDS)
        taken = spares.take(os.environ, lambda _: None)
        assert taken is not None
        spares.want(1)
        assert spares.pids() == []
        spares.close()
        os.kill(taken, signal.SIGKILL)
        os.waitpid(taken, 0)

    asyncio.run(story())


def test_one_that_touched_a_gpu_is_thrown_away(drive, token, tmp_path, script):
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


def test_spares_end_with_the_sidecar(drive, token):
    driver = drive_warm(drive, [sys.executable, trainer(), token])
    spare = children_of(driver.pid)[0]
    driver.close()
    assert spare not in children_of(driver.pid)
    # Its end does not wait for what it kills last, and a busy machine takes its time over that.
    wait_until(lambda: not find_processes(token), what="the end of all processes")
    wait_until(lambda: not Path(f"/proc/{spare}/exe").exists(), what="the end of the spare")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python train.py --lr 1", Script(("python",), "", ("train.py", "--lr", "1"))),
        (
            "/usr/bin/python3.11 -u -O t.py",
            Script(("/usr/bin/python3.11", "-u", "-O"), "", ("t.py",)),
        ),
        ("python -X dev -m train a", Script(("python", "-X", "dev"), "train", ("train", "a"))),
        ("python -c pass", None),
        ("python", None),
        ("python -m", None),
        ("python -i", None),
        ("torchrun train.py", None),
        ("bash python train.py", None),
    ],
)
def test_commands_are_taken_apart(command, expected):
    assert take_apart(command.split()) == expected


def trainer():
    return str(Path(__file__).parent / "trainers.py")


def children_of(pid):
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(one) for one in path.read_text().split()] if path.exists() else []
