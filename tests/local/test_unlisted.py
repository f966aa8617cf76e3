"""Pods that live and that the list of jobs does not know: they keep their GPUs, and are listed again."""

import os
import signal

import pytest

from dllocal.folders import LOCK_BYTES, Folders
from dllocal.jobs.registry import Registry
from dllocal.jobs.unlisted import find_unlisted
from tests.ctl.running import run_apart
from tests.local.ups import find_processes, going, replay

pytestmark = pytest.mark.processes


def lose_the_list(state):
    """Do what somebody does whose disk was full."""
    for path in state.glob("jobs.db*"):
        path.unlink()


def gpus_of(up, name):
    (node,) = up.backend.get_job(name)["status"]["allocation"]["nodes"]
    return set(node["gpuIds"])


def used(up):
    (node,) = up.backend.list_nodes()
    return {gpu["index"] for gpu in node["gpus"] if gpu["state"] != "free"}


def test_what_trains_keeps_its_gpus_though_the_list_of_jobs_is_lost(root):
    state, one = root / "state", {"gpus": {"options": [1]}}
    with going(state, "--virtual-gpus", 3) as first:
        for name in ("a", "b"):
            first.submit(replay(name, root, iterations=100_000, faster=20.0, **one))
            first.until_phase(name, "Running")
        held = {name: gpus_of(first, name) for name in ("a", "b")}
        first.end(signal.SIGKILL)
        lose_the_list(state)
        with going(state, "--virtual-gpus", 3) as up:
            assert "a on " in up.log.read_text(encoding="utf-8")
            assert "lives, and was not in the list of jobs; it keeps its GPUs" in up.log.read_text()
            # Once its SideCar has said which GPUs it has, the third is free, and no other.
            up.submit(replay("c", root, iterations=100_000, faster=20.0, **one))
            up.until_phase("c", "Running")
            assert gpus_of(up, "c") == {0, 1, 2} - held["a"] - held["b"]
            for verb in ("get", "top --once", "gpu list"):
                assert up(*verb.split()).status in (0, 2), verb
            for verb in ("describe", "why"):
                assert "the list of jobs lost it" in up(verb, "a").stdout
            # No other job takes its name before it has ended.
            assert (
                "is a job already" in up.submit(replay("a", root, iterations=1, faster=1.0)).stderr
            )
            for name in ("a", "b", "c"):
                assert up("cancel", "--wait", name).status == 0
            assert used(up) == set()
            assert up.end() == 0
    assert [pid for pid in find_processes(root) if pid != os.getpid()] == []


def test_a_pod_that_died_meanwhile_is_proven_to_be_gone(root):
    state, one = root / "state", {"gpus": {"options": [1]}}
    with going(state, "--virtual-gpus", 1) as first:
        first.submit(replay("a", root, iterations=100_000, faster=20.0, **one))
        first.until_phase("a", "Running")
        first.end(signal.SIGKILL)
        lose_the_list(state)
        for pid in find_processes(state):
            os.kill(pid, signal.SIGKILL)
        with going(state, "--virtual-gpus", 1) as up:
            up.until(lambda: used(up) == set())
            assert up("cancel", "--wait", "a").status == 0
            assert up.end() == 0


def test_pods_of_a_server_of_all_users_are_not_taken_over_by_one_of_one_user(root):
    state = root / "state"
    (state / "pods" / "ada__job" / "0001-n0").mkdir(parents=True)
    (state / "shared").touch()
    state.chmod(0o700)
    refused = run_apart("up", "--virtual-gpus", 1, "--state", state)
    assert "has jobs of a server of all users" in refused.stderr


def test_names_that_are_no_pods_are_left_alone(tmp_path):
    folders = Folders(tmp_path)
    folders.make()
    for name in ("0001-n0", "x-n0", "0001-", "0001-..", "../0001-n0"):
        (folders.job("job") / name).mkdir(parents=True, exist_ok=True)
    (folders.job("job") / "0002-n0").write_text("no folder")
    (folders.root / "jobs" / ".removed-12" / "0001-n0").mkdir(parents=True)
    registry = Registry.open(folders.registry)
    assert find_unlisted(folders, registry.entries) == []
    registry.close()


def test_a_lock_that_tells_of_an_epoch_that_cannot_be_is_not_believed(root):
    state = root / "state"
    with going(state, "--virtual-gpus", 1) as first:
        assert first.end() == 0
    (state / "lock").write_text(f"1 {2**53 - 1}".ljust(LOCK_BYTES - 1) + "\n", encoding="utf-8")
    with going(state, "--virtual-gpus", 1) as up:
        up.submit(replay("a", root, iterations=10, faster=20.0, gpus={"options": [1]}))
        up.until_phase("a", "Completed")
        assert up.backend.about()["epoch"] == 2
        assert f"epoch {2**53 - 1}" in up.log.read_text(encoding="utf-8")
        assert up.end() == 0
