"""Pods that live and that the list of jobs does not know: they keep their GPUs, and are listed again."""

import asyncio
import os
import signal
import sqlite3
import time
from typing import Any

import pytest

from dljob.control.sidecars.dialing import DialSettings
from dljob.control.situation.ports import PodKey
from dljob.control.situation.status import Booking
from dljob.core.model import JobId, Node
from dljob.local.events import Events
from dljob.local.folders import Folders, StateError
from dljob.local.jobs import relisting as relistings
from dljob.local.jobs.registry import Registry
from dljob.local.jobs.relisting import Relisting
from dljob.local.jobs.unlisted import Unlisted, find_unlisted
from dljob.local.state_folder import LOCK_BYTES, make_folders
from dljob_wire.messages import Phase, State
from tests.ctl.running import run_apart
from tests.local.ups import find_processes, going, replay

real = pytest.mark.processes


def lose_the_list(state):
    """Delete the list of jobs, as a user does whose disk is full."""
    for path in state.glob("jobs.db*"):
        path.unlink()


def gpus_of(up, name):
    (node,) = up.backend.get_job(name)["status"]["allocation"]["nodes"]
    return set(node["gpuIds"])


def used(up):
    (node,) = up.backend.list_nodes()
    return {gpu["index"] for gpu in node["gpus"] if gpu["state"] != "free"}


@real
def test_trainings_keep_their_gpus_though_the_list_of_jobs_is_lost(root):
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


@real
def test_pods_of_a_server_of_all_users_are_not_taken_over_by_one_of_one_user(root):
    state = root / "state"
    (state / "pods" / "ada__job" / "0001-n0").mkdir(parents=True)
    (state / "shared").touch()
    state.chmod(0o700)
    refused = run_apart("up", "--virtual-gpus", 1, "--state", state)
    assert "has jobs of a server of all users" in refused.stderr


def test_names_that_are_no_pods_are_left_alone(tmp_path):
    folders = Folders(tmp_path)
    make_folders(folders)
    for name in ("0001-n0", "x-n0", "0001-", "0001-..", "../0001-n0"):
        (folders.job("job") / name).mkdir(parents=True, exist_ok=True)
    (folders.job("job") / "0002-n0").write_text("no folder")
    (folders.root / "jobs" / ".removed-12" / "0001-n0").mkdir(parents=True)
    registry = Registry.open(folders.registry)
    assert find_unlisted(folders, registry.entries) == []
    registry.close()


def lost_jobs(folders, count):
    make_folders(folders)
    node = Node.of("n0", 2)
    registry = Registry.open(folders.registry)
    relisting = Relisting(folders, time.time, dialing=DialSettings())
    found = [
        Unlisted(PodKey(JobId(f"j{number}"), node.name), Booking(node.name, 1), ())
        for number in range(count)
    ]
    for pod in found:
        folders.job(pod.key.job).mkdir(parents=True)
    return registry, relisting, found, (node,)


def lock(registry, path):
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    return other


def test_all_lost_jobs_are_asked_at_once_and_a_lock_on_the_list_is_waited_for(
    tmp_path, monkeypatch
):
    registry, relisting, found, nodes = lost_jobs(Folders(tmp_path), 3)
    monkeypatch.setattr(relistings, "find_unlisted", lambda *_: found)
    monkeypatch.setattr(relistings, "LOCKED_STEP_S", 0.0)
    other, record, tries = lock(registry, tmp_path / "jobs.db"), registry.record, []
    with pytest.raises(StateError, match=r"jobs\.db: cannot be written .*locked.*; end the other"):
        relisting.adopt(registry, nodes, events=Events())
    other.close()
    relisting.adopt(registry, nodes, events=Events())
    other = lock(registry, tmp_path / "jobs.db")

    def record_and_unlock(statuses):
        tries.append(len(statuses))
        try:
            record(statuses)
        finally:
            other.close()

    monkeypatch.setattr(registry, "record", record_and_unlock)

    async def narrow() -> None:
        all_are_asked = asyncio.Barrier(3)

        async def ask(*_: object) -> None:
            await all_are_asked.wait()

        monkeypatch.setattr(relisting, "_ask_one", ask)
        async with asyncio.timeout(240):
            await relisting.narrow(registry, None, nodes=nodes)

    asyncio.run(narrow())
    assert tries == [3, 3]
    registry.close()


def test_a_start_after_one_with_a_full_disk_asks_lost_jobs_for_their_gpus_again(
    tmp_path, monkeypatch
):
    folders = Folders(tmp_path)
    registry, first, found, nodes = lost_jobs(folders, 1)
    monkeypatch.setattr(relistings, "find_unlisted", lambda *_: found)
    first.adopt(registry, nodes, events=Events())

    async def answer(*_):
        return State(
            *("first", 1, Phase.RUNNING),
            released=False,
            epoch=1,
            generation=1,
            held=("1",),
            held_generation=1,
        )

    def refuse(_):
        raise sqlite3.OperationalError("database or disk is full")

    no_pods: Any = None  # Its answers are not asked for here.
    monkeypatch.setattr(registry, "record", refuse)
    monkeypatch.setattr(first, "_ask_one", answer)
    with pytest.raises(StateError, match=r"is full\); make room on its disk"):
        asyncio.run(first.narrow(registry, no_pods, nodes=nodes))
    registry.close()

    registry, second = (
        Registry.open(folders.registry),
        Relisting(folders, time.time, dialing=DialSettings()),
    )
    monkeypatch.setattr(relistings, "find_unlisted", lambda *_: [])
    monkeypatch.setattr(second, "_ask_one", answer)
    second.adopt(registry, nodes, events=Events())
    asyncio.run(second.narrow(registry, no_pods, nodes=nodes))
    (entry,) = registry.entries.values()
    assert entry.status.placement is not None
    assert [ref.number for ref in entry.status.placement.refs()] == [1]
    registry.close()


@real
def test_an_impossible_epoch_in_the_lock_is_ignored(root):
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
