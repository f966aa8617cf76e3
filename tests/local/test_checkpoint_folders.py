"""Each job has a folder of its own for its checkpoints, which goes with it unless its user keeps it."""

import json
import re
import sys
from pathlib import Path

import pytest

from dljob.control.situation.ports import PodKey
from dljob.core.model import JobId, NodeName
from dljob.local.api.jobs.intake import newest_in
from dljob.local.folders import Folders
from tests.local.ups import going, replay

real = pytest.mark.processes

SAVER = Path(__file__).with_name("saver.py")
OWN = "$(DLJOB_CHECKPOINT_DIR)"


def small(name, root):
    job = replay(name, root, iterations=10**6, faster=20.0)
    job["spec"]["checkpoint"]["path"] = OWN
    trainer = job["spec"]["template"]["spec"]["containers"][0]
    words = trainer["command"]
    place = next(i for i, word in enumerate(words) if word.startswith("--checkpoint="))
    words[place] = f"--checkpoint={OWN}/iteration"
    return job


def test_latest_change_is_found_without_hidden_names(tmp_path):
    assert newest_in(tmp_path / "missing", "") == ""
    (tmp_path / ".dljob-checkpoints.json").touch()
    assert newest_in(tmp_path, "") == ""
    (tmp_path / "step-1").touch()
    assert re.fullmatch(r"step-1 \(\d{4}-\d\d-\d\d \d\d:\d\d\)", newest_in(tmp_path, ""))
    assert newest_in(tmp_path, "step-*/**").startswith("step-1 (")
    assert newest_in(tmp_path, "*.pt") == ""


def steps_in(folder):
    texts = [path.read_text(encoding="utf-8") for path in folder.glob("*.log")]
    return [int(step) for text in texts for step in re.findall(r"^step (\d+)$", text, re.MULTILINE)]


def is_under_way(up):
    return up.backend.get_job("long")["status"].get("progress", {}).get("iteration", 0) > 0


def in_memory(name, root):
    job = small(name, root)
    job["spec"]["checkpoint"] |= {
        "signal": "SIGUSR1",
        "confirm": "file",
        "complete": "rename",
        "files": "state.json",
        "memory": "64Mi",
    }
    trainer = job["spec"]["template"]["spec"]["containers"][0]
    words = ["good", "-", root / "journal", 100_000]
    trainer["command"] = [sys.executable, "-S", str(SAVER), *map(str, words)]
    return job


@real
def test_checkpoints_in_memory_come_to_the_disk_and_the_memory_goes_with_the_pod(root):
    state = root / "state"
    folders = Folders(state)
    saved = folders.checkpoints("long") / "state.json"
    with going(state, "--gpus", 1) as up:
        assert up.submit(in_memory("long", root)).status == 0
        up.until(lambda: is_under_way(up))
        # By name, because other servers have folders there.
        key = PodKey(JobId("long"), NodeName(folders.machine_name()))
        (own,) = [each for each in (folders.memory(key, n) for n in range(9)) if each.exists()]
        up("suspend", "long")
        up.until_phase("long", "Suspended")
        confirmed = json.loads(saved.read_text())["iteration"]
        assert confirmed > 0
        up("resume", "long")
        journal = root / "journal"
        up.until(lambda: journal.read_text().count("begins") == 2)
        assert int(journal.read_text().rpartition("begins ")[2].split()[0]) >= confirmed
        assert up("cancel", "--wait", "long").status == 0
        up.until(lambda: not own.exists())


@pytest.mark.story
@real
def test_checkpoints_go_with_their_job_unless_its_user_keeps_them(root):
    state = root / "state"
    saved = Folders(state).checkpoints("long") / "iteration"
    with going(state, "--gpus", 1) as up:
        created = up.submit(small("long", root))
        assert (created.status, "former run" in created.stderr) == (0, False)
        # It saves itself there when it is ended, which the cancellation waits for.
        up.until(lambda: is_under_way(up))
        up.until(saved.exists)
        assert up("cancel", "--wait", "--keep-checkpoints", "long").status == 0
        first = int(saved.read_text())
        assert first > 0

        # Kept, the next job of this name goes on from there and its user knows.
        again = up.submit(small("long", root))
        assert "long finds iteration (" in again.stderr
        assert f"in {saved.parent}. If that is a checkpoint of a former run" in again.stderr
        log = state / "jobs" / "long"
        up.until(lambda: steps_in(log))
        assert min(steps_in(log)) > first

        # Without kept checkpoints they go with it.
        assert up("cancel", "--wait", "long").status == 0
        assert not saved.parent.exists()
