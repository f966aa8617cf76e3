"""The whole of it on this machine: the real ``dljob up``, real SideCars, real processes."""

import re
import signal

import pytest

from dljob.local.folders import Folders
from dljob.local.state_folder import make_folders
from tests.ctl.running import Command, run_apart
from tests.local.ups import find_processes, going, replay

real = pytest.mark.processes


@pytest.mark.story
@real
def test_a_job_from_its_submission_to_its_end(root):
    state = root / "state"
    with going(state, "--virtual-gpus", 4) as up:
        assert up.submit(replay("long", root, iterations=10**6, faster=20.0)).status == 0

        # It gets GPUs and trains, and every verb shows the same.
        job = up.until_phase("long", "Running")
        gpus = job["status"]["allocation"]["nodes"][0]["gpuIds"]
        # It may get more GPUs at any time, and then does something else for a moment.
        up.until(lambda: "Phase:         Running\n" in up("describe", "long").stdout)
        up.until(lambda: up("why", "long").stdout.startswith("trains on"))
        seen = up("exec", "long", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES").stdout.strip()
        assert seen in (",".join(map(str, gpus)), "0,1,2,3")
        assert {row["job"] for row in rows_of(up) if row["state"] == "in use"} == {"long"}
        with up.live("logs", "long", "-f") as log:
            assert re.fullmatch(r"step \d+\n", log.line())

        # Suspended it gives everything back, having saved itself.
        assert up("suspend", "long").stdout == "long suspended\n"
        up.until_phase("long", "Suspended")
        up.until(lambda: {gpu["state"] for gpu in rows_of(up)} == {"free"})
        saved = int((root / "checkpoints" / "long" / "iteration").read_text())
        assert saved > 0
        assert "it is suspended" in up("why", "long").stdout

        # Resumed it goes on from there.
        assert up("resume", "long").stdout == "long resumed\n"
        up.until_phase("long", "Running")
        up.until(lambda: up.backend.get_job("long")["status"]["progress"]["iteration"] > saved)
        up.until(lambda: kinds_of(up, "long").count("start") == 2)
        kinds = kinds_of(up, "long")
        assert kinds.index("start") < kinds.index("stop") < len(kinds) - 1

        # Cancelled nothing is left of it.
        cancelled = up("cancel", "--wait", "long").stdout
        assert cancelled.startswith("long cancelled; its checkpoints are kept in ")
        assert up("get").stderr == "There are no jobs.\n"
        assert [pid for pid in find_processes(root) if pid != up.process.pid] == []
        assert up.end() == 0


@pytest.mark.parametrize(
    "mechanism", [pytest.param("in-place", marks=pytest.mark.story), "recreate"]
)
@real
def test_a_job_makes_room_for_another_and_every_view_shows_the_same_cost(root, mechanism):
    options = ("--virtual-gpus", 2, "--mechanism", mechanism, "--policy", "max-min")
    with going(root / "state", *options) as up:
        spec = {"gpus": {"options": [1, 2]}}
        assert up.submit(replay("long", root, iterations=10**6, faster=20.0, **spec)).status == 0

        def costs():
            entries = up.backend.list_history("long", 100)
            return [each.get("costSeconds") for each in entries if each["kind"] == "reshape"]

        def known(count):
            return len(costs()) >= count and None not in costs()

        up.until_phase("long", "Running")
        # It gives a GPU to another one, and takes it back.
        assert up.submit(replay("other", root, iterations=60, faster=20.0, **spec)).status == 0
        up.until_phase("other", "Completed")
        assert up("wait", "other", "--for", "condition=Complete", "--timeout", 0).status == 0
        up.until(lambda: known(2))
        # No decision from here on, so that all answers are of one moment.
        assert up("suspend", "long").status == 0
        up.until_phase("long", "Suspended")
        assert min(costs()) > 0.0

        def counted():
            # Repeated work counts as well, where a training was stopped before it had saved itself.
            status = up.backend.get_job("long")["status"]
            return status["reshapeSeconds"] + status["checkpoint"].get("lostSeconds", 0.0)

        # The history of a change may be written a moment before the status of its job.
        up.until(lambda: known(2) and counted() == pytest.approx(sum(costs()), abs=0.01))
        status = up.backend.get_job("long")["status"]
        assert status["reshapes"] == len(costs())
        told = f"{len(costs())}, {status['reshapeSeconds']:.1f} s without training"
        assert told in up("describe", "long").stdout
        why = [each for each in up.backend.list_history("long", 100) if each.get("forJob")]
        assert {each["forJob"] for each in why} == {"other"}
        assert up("cancel", "--wait", "long").status == 0
        assert up.end() == 0


def kinds_of(up, name):
    return [entry["kind"] for entry in up.backend.list_history(name, 100)]


def rows_of(up):
    (node,) = up.backend.list_nodes()
    return node["gpus"]


@pytest.mark.story
@real
def test_training_outlives_its_controller(root):
    state = root / "state"
    with going(state, "--virtual-gpus", 1) as killed:
        one = {"gpus": {"options": [1]}}
        killed.submit(replay("long", root, iterations=10**6, faster=20.0, **one))
        killed.until_phase("long", "Running")
        trainings = set(find_processes(root)) - {killed.process.pid}
        killed.end(signal.SIGKILL)
        before = count_steps(state)
        with going(state, "--virtual-gpus", 1) as up:
            up.until(lambda: count_steps(state) > before)
            up.until_phase("long", "Running")
            # The same processes: none of them was started again.
            assert trainings <= set(find_processes(root))
            assert up("cancel", "--wait", "long").status == 0
            assert up.end(signal.SIGTERM) == 0


@real
def test_a_start_without_the_nodes_of_training_jobs_is_refused(root):
    state = root / "state"
    with going(state, "--cluster", "2x1") as first:
        first.submit(replay("long", root, iterations=100_000, faster=20.0))
        first.until_phase("long", "Running")
        assert first.end(signal.SIGTERM) == 0
        refused = run_apart("up", "--virtual-gpus", 2, "--state", state)
        assert refused.status == 1
        assert "jobs train on nodes that this start does not have (long on node-" in refused.stderr
        assert "start it with the same --virtual-gpus or --cluster" in refused.stderr
        with going(state, "--cluster", "2x1") as again:
            assert again("cancel", "--wait", "long").status == 0
            assert again.end() == 0
        with going(state, "--virtual-gpus", 2) as other:
            assert other.end() == 0


def test_a_name_that_a_start_has_not_written_to_its_end_is_written_again(root, monkeypatch):
    folders = Folders(root / "state")
    make_folders(folders)
    monkeypatch.setattr("socket.gethostname", lambda: "host")
    # As a start leaves it that is killed in between, or whose disk is full; as the other of two first starts finds it.
    (folders.root / "machine").touch()
    assert folders.machine_name() == "host"
    monkeypatch.setattr("socket.gethostname", lambda: "renamed")
    assert folders.machine_name() == "host"
    assert (folders.root / "machine").read_text() == "host\n"
    assert [*folders.root.glob(".machine*")] == []


def count_steps(state):
    return sum(path.read_text().count("step ") for path in (state / "jobs").glob("*/*.log"))


@pytest.mark.story
@real
def test_a_job_whose_command_fails_is_failed_with_the_end_of_its_log(root):
    state = root / "state"
    broken = replay("broken", root, iterations=10, faster=1.0, backoffLimit=0)
    (trainer,) = broken["spec"]["template"]["spec"]["containers"]
    trainer["command"] = ["sh", "-c", "echo no data here >&2; exit 7"]
    with going(state, "--virtual-gpus", 1) as up:
        up.submit(broken)
        up.until_phase("broken", "Failed")
        text = up("describe", "broken").stdout
        assert "exited with status 7" in text
        assert "Log, its last lines:\n  no data here\n" in text
        assert {gpu["state"] for gpu in rows_of(up)} == {"free"}
        assert up.end() == 0


def test_wrong_options_are_refused_before_anything_runs(root, capsys, monkeypatch):
    monkeypatch.chdir(root)
    (root / "settings.yaml").write_text("pace: {perod: 5}\n", encoding="utf-8")
    one = ("--virtual-gpus", 1)
    for options, status, error in (
        (("--virtual-gpus", 0), 2, "0 GPUs train nothing; give at least 1"),
        (("--cluster", "2x"), 2, "'2x' is not NODESxGPUS[:TYPE]; write for example 4x8"),
        ((*one, "--cluster", "1x1"), 2, "--gpus, --virtual-gpus and --cluster exclude each other"),
        (
            (*one, "--policy", "adaptif"),
            2,
            "no policy is named 'adaptif'; did you mean",
        ),
        ((*one, "--mechanism", "magic"), 2, "'magic' is not one of 'in-place', 'recreate'"),
        ((*one, "--metrics", "9400x"), 1, "serving.metrics: 9400x is not an address with"),
        ((*one, "--config", "settings.yaml"), 1, "pace.perod: there is no such setting"),
        ((*one, "--store", "redis://x"), 1, "redis://x: "),
    ):
        result = Command(capsys)("up", "--state", root / "state", *options)
        assert (result.status, result.stdout) == (status, ""), options
        assert error in result.stderr, options


@real
def test_settings_come_from_options_environment_and_file_in_that_order(root, monkeypatch):
    (root / "settings.yaml").write_text(
        "policy: fifo\nseed: 1\npace: {periodSeconds: 3}\n", encoding="utf-8"
    )
    monkeypatch.setenv("DLJOB_SEED", "2")
    monkeypatch.setenv("DLJOB_POLICY", "srsf")
    options = ("--virtual-gpus", 1, "--policy", "max-min", "--config", root / "settings.yaml")
    with going(root / "state", *options) as up:
        told = {each["name"]: each for each in up("config", "show", "-o", "json").data}
        assert (told["policy"]["value"], told["policy"]["origin"]) == ("max-min", "--policy")
        assert (told["seed"]["value"], told["seed"]["origin"]) == (2, "DLJOB_SEED")
        period = told["pace.periodSeconds"]
        assert (period["value"], period["origin"]) == (3.0, str(root / "settings.yaml"))
        assert up.end() == 0
