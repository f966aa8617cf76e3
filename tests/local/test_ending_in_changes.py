"""
A training that ends by itself and well while something is asked of it is done, and is not done again.

The journal of each training (:mod:`tests.local.evaluator`) says how often it began, and how often it was done.
"""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.local.histories import read
from tests.local.ups import Up, going

pytestmark = pytest.mark.processes

EVALUATOR = Path(__file__).with_name("evaluator.py")


def evaluating(
    name: str, root: Path, *, iterations: int, manner: str = "evaluates", each: int = 1, **spec: Any
) -> dict[str, Any]:
    folder = root / name / "checkpoints"
    folder.mkdir(parents=True)
    words = [manner, folder / "state.json", journal_of(name, root), iterations, each]
    by_file = {"confirm": "file", "path": str(folder), "complete": "rename"}
    how = {"confirm": "exit"} if manner in ("exits", "closes") else by_file
    command = [sys.executable, "-S", str(EVALUATOR), *map(str, words)]
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": name},
        "spec": {
            "gpus": {"options": [1, 2]},
            "training": {"iterations": iterations},
            "processes": "perNode",
            "progress": {"log": r"step (?P<iteration>\d+)"},
            # An evaluation ignores the request for longer than any machine is slow.
            "checkpoint": {"signal": "SIGUSR1", "shared": True, "timeoutSeconds": 240, **how},
            "template": {"spec": {"containers": [{"name": "trainer", "command": command}]}},
            **spec,
        },
    }


def journal_of(name: str, root: Path) -> Path:
    return root / f"{name}.journal"


def until_it_says(up: Up, name: str, root: Path, word: str) -> None:
    up.until(lambda: any(line.split()[0] == word for line in read(journal_of(name, root))))


def set_suspended(up: Up, name: str, *, suspended: bool) -> None:
    """Suspend or resume it at once: a command would take a second to start."""
    document = up.backend.get_job(name)
    up.backend.replace_job({**document, "spec": {**document["spec"], "suspend": suspended}})


def sidecars_of(root: Path) -> list[Path]:
    """The sockets of the SideCars that have not left."""
    found = (root / "state" / "run").glob("*.sock")
    return [path for path in found if path.name != "dljob.sock"]


def are_free(up: Up) -> bool:
    [node] = up.backend.list_nodes()
    return {gpu["state"] for gpu in node["gpus"]} == {"free"}


def assert_it_was_done_once(up: Up, name: str, root: Path) -> list[str]:
    """Wait for the end of the job; return what its journal says."""
    job = up.until_phase(name, "Completed")
    lines = read(journal_of(name, root))
    events = [f"{event['reason']}: {event['message']}" for event in up.backend.list_events(name)]
    assert lines.count("done") == 1, (lines, events)
    assert lines[-1] == "done", (lines, events)
    status = job["status"]
    assert [status.get(what, 0) for what in ("restarts", "failures")] == [0, 0], status
    assert not any(each.startswith("CheckpointNotConfirmed:") for each in events), events
    return lines


@pytest.mark.story
@pytest.mark.parametrize("manner", ["evaluates", "closes"])
def test_a_job_that_has_to_make_room_during_its_evaluation_is_done_once(root, manner):
    with going(root / "state", "--virtual-gpus", 2, "--policy", "max-min") as up:
        up.backend.create_jobs([evaluating("first", root, iterations=150, manner=manner)])
        until_it_says(up, "first", root, "evaluates")
        up.backend.create_jobs([evaluating("other", root, iterations=20, manner="saves")])
        assert_it_was_done_once(up, "first", root)
        assert_it_was_done_once(up, "other", root)
        assert up.end() == 0


@pytest.mark.parametrize("resumed", ["during its evaluation", "after its end"])
def test_a_job_that_is_suspended_during_its_evaluation_is_done_once(root, resumed):
    with going(root / "state", "--virtual-gpus", 2, "--policy", "max-min") as up:
        up.backend.create_jobs([evaluating("first", root, iterations=150)])
        until_it_says(up, "first", root, "evaluates")
        set_suspended(up, "first", suspended=True)
        word = "asked" if resumed == "during its evaluation" else "done"
        until_it_says(up, "first", root, word)
        if word == "done":
            phases = ("Suspended", "Completed")
            up.until(lambda: up.backend.get_job("first")["status"]["phase"] in phases)
            up.until(lambda: are_free(up))
        set_suspended(up, "first", suspended=False)
        assert_it_was_done_once(up, "first", root)
        assert up.end() == 0


@pytest.mark.story
@pytest.mark.parametrize("mechanism", ["in-place", "recreate"])
def test_a_job_that_is_done_while_no_controller_lives_is_done_once(root, mechanism):
    options = ("--virtual-gpus", 2, "--policy", "max-min", "--mechanism", mechanism)
    with going(root / "state", *options) as up:
        up.backend.create_jobs([evaluating("first", root, iterations=150)])
        until_it_says(up, "first", root, "evaluates")
        set_suspended(up, "first", suspended=True)
        # It is asked when the stop is under way.
        until_it_says(up, "first", root, "asked")
        up.kill()
        up.until(lambda: not sidecars_of(root))
        up.begin()
        up.ready()
        assert_it_was_done_once(up, "first", root)
        assert up.end() == 0


def test_a_job_that_ends_in_its_trial_between_two_lines_of_its_log_is_done_once(root):
    with going(root / "state", "--virtual-gpus", 2, "--policy", "max-min") as up:
        job = evaluating("first", root, iterations=100, manner="unread", each=40)
        up.backend.create_jobs([job])
        assert_it_was_done_once(up, "first", root)
        assert up.end() == 0


def test_a_training_that_exits_when_it_has_saved_itself_is_reshaped_before_it_is_done_once(root):
    with going(root / "state", "--virtual-gpus", 2, "--policy", "max-min") as up:
        up.backend.create_jobs([evaluating("first", root, iterations=1000, manner="exits")])
        up.until_phase("first", "Running")
        up.backend.create_jobs([evaluating("other", root, iterations=20, manner="saves")])
        lines = assert_it_was_done_once(up, "first", root)
        saves = [line.split()[1] for line in lines if line.startswith("saves")]
        begins = [line.split()[1] for line in lines if line.startswith("begins")]
        assert saves
        assert begins == ["0", *saves]
        assert_it_was_done_once(up, "other", root)
        assert up.end() == 0


def test_a_training_that_exits_when_it_has_saved_itself_is_not_done_where_nothing_confirms_that(
    root,
):
    unconfirmed = {"signal": "SIGUSR1", "confirm": "log", "confirmLog": "^never", "trusted": True}
    checkpoint = {**unconfirmed, "shared": True, "timeoutSeconds": 240}
    with going(root / "state", "--virtual-gpus", 2, "--policy", "max-min") as up:
        first = evaluating("first", root, iterations=1000, manner="exits", checkpoint=checkpoint)
        up.backend.create_jobs([first])
        up.until_phase("first", "Running")
        up.backend.create_jobs([evaluating("other", root, iterations=20, manner="saves")])
        up.until_phase("first", "Completed")
        lines = read(journal_of("first", root))
        begins = [line.split()[1] for line in lines if line.startswith("begins")]
        assert lines.count("done") == 1, lines
        assert len(begins) > 1, lines
        assert up.end() == 0
