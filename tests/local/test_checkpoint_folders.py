"""Each job has a folder of its own for its checkpoints, which goes with it unless its user keeps it."""

import re

import pytest

from dllocal.api import leftovers
from dllocal.folders import Folders
from tests.local.ups import REPLAY, SPEEDS, going, replay

real = pytest.mark.processes

OWN = "$(DLJOB_CHECKPOINT_DIR)"


def small(name, root, **spec):
    """A job that saves itself where DLJob tells it to."""
    job = replay(name, root, iterations=100_000, faster=20.0, **spec)
    job["spec"]["checkpoint"]["path"] = OWN
    trainer = job["spec"]["template"]["spec"]["containers"][0]
    words = trainer["command"]
    assert str(REPLAY) in words
    assert f"--speeds={SPEEDS}" in words
    place = next(i for i, word in enumerate(words) if word.startswith("--checkpoint="))
    words[place] = f"--checkpoint={OWN}/iteration"
    return job


def test_what_was_changed_last_is_found_and_hidden_names_are_not(tmp_path):
    assert leftovers.newest_in(tmp_path / "missing") == ""
    (tmp_path / ".dljob-checkpoints.json").touch()
    assert leftovers.newest_in(tmp_path) == ""
    (tmp_path / "step-1").touch()
    assert re.fullmatch(r"step-1 \(\d{4}-\d\d-\d\d \d\d:\d\d\)", leftovers.newest_in(tmp_path))


def is_under_way(up):
    """Whether the training takes steps, and so can be asked to save itself."""
    return up.backend.get_job("long")["status"].get("progress", {}).get("iteration", 0) > 0


@real
def test_checkpoints_go_with_their_job_unless_its_user_keeps_them(root):
    state = root / "state"
    saved = Folders(state).checkpoints("long") / "iteration"
    with going(state, "--gpus", 1) as up:
        created = up.submit(small("long", root))
        assert (created.status, "former run" in created.stderr) == (0, False)
        up.until_phase("long", "Running")
        seen = up("exec", "long", "--", "sh", "-c", "echo $DLJOB_CHECKPOINT_DIR").stdout.strip()
        assert seen == str(saved.parent)

        # It saves itself there, and what is confirmed there counts.
        up.until(lambda: is_under_way(up))
        up("suspend", "long")
        up.until_phase("long", "Suspended")
        # Its process saves itself and ends after that, which the cancellation waits for.
        up.until(saved.exists)

        # Kept, the next job of this name goes on from there and its user knows.
        assert up("cancel", "--wait", "--keep-checkpoints", "long").status == 0
        first = int(saved.read_text())
        assert first > 0
        again = up.submit(small("long", root))
        assert "long finds iteration (" in again.stderr
        assert f"in {saved.parent}, left by a former run" in again.stderr
        up.until_phase("long", "Running")
        up.until(lambda: up.backend.get_job("long")["status"]["progress"]["iteration"] > first)
        steps = [int(n) for n in re.findall(r"step (\d+)", up("logs", "long").stdout)]
        assert min(steps) > first

        # Not kept, the next one begins anew.
        assert up("cancel", "--wait", "long").status == 0
        assert not saved.parent.exists()
        assert "former run" not in up.submit(small("long", root)).stderr
        up.until_phase("long", "Running")
        up.until(lambda: "step 1\n" in up("logs", "long").stdout)


@real
def test_a_folder_that_the_file_names_is_shown_and_never_removed(root):
    with going(root / "state", "--gpus", 1) as up:
        job = replay("long", root, iterations=100_000, faster=20.0)
        up.submit(job)
        up.until_phase("long", "Running")
        seen = up("exec", "long", "--", "sh", "-c", "echo $DLJOB_CHECKPOINT_DIR").stdout.strip()
        assert seen == job["spec"]["checkpoint"]["path"]
        up.until(lambda: is_under_way(up))
        up("suspend", "long")
        up.until_phase("long", "Suspended")
        assert up("cancel", "--wait", "long").status == 0
        assert (root / "checkpoints" / "long" / "iteration").exists()
