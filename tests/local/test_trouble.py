"""Faults around ``dljob up``: each is reported in one line, and nothing is lost."""

import os
import signal
import sqlite3
from contextlib import closing, suppress

import pytest

from tests.local.ups import find_processes, going, replay
from tests.sidecar.drivers import read_proc

pytestmark = pytest.mark.processes

ONE_GPU = {"gpus": {"options": [1]}, "processes": "perNode"}


def job(name, root, command, **spec):
    document = replay(name, root, iterations=10, faster=1.0, **{**ONE_GPU, **spec})
    (trainer,) = document["spec"]["template"]["spec"]["containers"]
    trainer["command"] = ["sh", "-c", command]
    return document


def settings(root, text):
    (root / "settings.yaml").write_text(text, encoding="utf-8")
    return ("--virtual-gpus", 1, "--config", root / "settings.yaml")


def gpus_of(up):
    return up("gpu", "list", "-o", "json").data[0]["gpus"]


def test_a_training_that_hangs_is_started_again_from_its_checkpoint(root):
    saved = root / "saved"
    hangs_once = (
        f"if test -e {saved}; then echo step 2; exit 0; fi; echo step 1; touch {saved}; sleep 1000"
    )
    with going(root / "state", *settings(root, "rules: {retrySeconds: 0.5}\n")) as up:
        # Its SideCar looks every 5 s, and so sees the stall up to 5 s late, and where it stands still later yet.
        progress = {"log": r"step (?P<iteration>\d+)", "stallSeconds": 1, "restartSeconds": 16}
        up.submit(job("hanging", root, hangs_once, progress=progress))
        done = up.until_phase("hanging", "Completed")
        assert done["status"]["failures"] == 1
        told = [each["reason"] for each in up.backend.list_events("hanging")]
        # On a busy machine the first step may come late, and that is a stall before the one that lasts.
        stalls = dict.fromkeys(each for each in told if "Stall" in each)
        assert [*stalls] == ["Stalled", "StalledForTooLong"]
        assert "no iteration came for" in up("describe", "hanging").stdout
        assert up.end() == 0


def test_a_log_that_cannot_be_opened_is_the_reason_why_a_job_does_not_start(root):
    state = root / "state"
    with going(state, *settings(root, "rules: {retrySeconds: 0.5}\n")) as up:
        node = up.backend.list_nodes()[0]["name"]
        # Its user could as well have taken the right to write from it, which root has all the same.
        log = state / "jobs" / "closed" / f"{node}.log"
        log.mkdir(parents=True)
        up.submit(job("closed", root, "echo step 1"))
        # This message appears between two attempts, each of which has another sentence.
        told = "ended before it could be used: LogCannotOpen: [Errno 21] Is a directory"
        up.until(lambda: told in up("why", "closed").stdout)
        log.rmdir()
        up.until_phase("closed", "Completed")
        assert up.end() == 0


@pytest.mark.story
def test_a_held_job_starts_after_the_release(root):
    with going(root / "state", "--virtual-gpus", 1) as up:
        assert up("hold", "--all", "--reason", "an upgrade").status == 0
        document = job("held", root, "echo step 1")
        [notice] = up.backend.create_jobs([document], dry_run=True).notices
        assert notice.startswith("held waits: an administrator holds all jobs (an upgrade)")
        up.submit(document)
        up.until(lambda: "OnHold" in up("describe", "held").stdout)
        assert "an administrator holds all jobs (an upgrade)" in up("why", "held").stdout
        assert up("hold", "--all", "--release").status == 0
        up.until_phase("held", "Completed")
        assert up.end() == 0


def test_a_job_whose_spec_cannot_be_read_any_more_trains_on_until_it_is_cancelled(root):
    state = root / "state"
    with going(state, "--virtual-gpus", 2) as first:
        first.submit(
            replay("odd", root, iterations=100_000, faster=20.0, **ONE_GPU),
            replay("fine", root, iterations=100_000, faster=20.0, **ONE_GPU),
        )
        for name in ("odd", "fine"):
            first.until_phase(name, "Running")
        assert first.end() == 0
        with closing(sqlite3.connect(state / "jobs.db")) as jobs, jobs:
            jobs.execute("UPDATE jobs SET document = '{half of it' WHERE name = 'odd'")
        with going(state, "--virtual-gpus", 2) as up:
            live_with_what_cannot_be_read(up, root)
            assert up.end() == 0


def live_with_what_cannot_be_read(up, root):
    up.until(lambda: "SetAside" in up("describe", "odd").stdout)
    assert "can no longer be read" in up("why", "odd").stdout
    (log,) = (up.root / "jobs" / "odd").glob("*.log")
    size = log.stat().st_size
    up.until(lambda: log.stat().st_size > size)
    # Its SideCar dies: the next one proves that no process is left, and gets no order to run.
    before = find_sidecars(up.root, "odd")
    for pid in before:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    up.until(lambda: set(find_sidecars(up.root, "odd")) - set(before))
    up.until(lambda: not find_trainers(root, "odd"))
    assert up("cancel", "--wait", "odd").status == 0
    up.until(lambda: {gpu.get("job") for gpu in gpus_of(up)} == {"fine", None})
    up.until_phase("fine", "Running")
    assert up.backend.get_job("fine")["status"].get("restarts", 0) == 0
    assert up("cancel", "--wait", "fine").status == 0


def find_sidecars(state, job):
    return [
        pid
        for pid in find_processes(state / "jobs" / job)
        if b"--socket=" in read_proc(pid, "cmdline")
    ]


def find_trainers(root, job):
    return [
        pid
        for pid in find_processes(root / "checkpoints" / job)
        if (command := read_proc(pid, "cmdline")) and b"--socket=" not in command
    ]
