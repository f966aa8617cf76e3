"""The list of jobs: what cannot be read in it, and who else has locked it."""

import asyncio
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from dljob.control.situation.ports import NotKept
from dljob.core.model import JobId, Node, NodeName
from dljob.local.events import Events
from dljob.local.folders import Folders, StateError
from dljob.local.jobs.jobs_file import LOCKED_S
from dljob.local.jobs.registry import Registry
from dljob.local.jobs.rows import read_rows
from dljob.local.machine import Machine
from tests.local.stages import job_document

ODD, FINE = JobId("odd"), JobId("team/fine")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.db"
    with closing(Registry.open(path)) as registry:
        fine = job_document("fine")
        fine["metadata"]["namespace"] = "team"
        registry.submit(job_document("odd"), 1000.0)
        registry.submit(fine, 1000.0)
    return path


def write(path: Path, column: str, text: str, job: JobId = ODD) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"UPDATE jobs SET {column} = ? WHERE name = ?", (text, job))  # noqa: S608


def too_new() -> str:
    document = job_document("odd")
    document["spec"]["gpus"] = {"options": "as many as there are"}
    return json.dumps(document)


def test_a_spec_that_cannot_be_read_is_that_jobs_trouble_alone(path):
    for text, why in {
        "{half of it": "Expecting property name",
        too_new(): "spec.gpus.options: ",
        "[]": "the document is a list, not a DLJob",
    }.items():
        write(path, "document", text)
        with closing(Registry.open(path)) as registry:
            odd, fine = registry.entries[ODD], registry.entries[FINE]
            assert odd.problem.startswith(f"its spec can no longer be read ({why}")
            assert odd.problem.endswith("; cancel it, and submit it again")
            assert odd.status.submitted_at == odd.job.submitted_at == 1000.0
            assert (fine.problem, fine.job.id) == ("", FINE)
    with closing(Registry.open(path)) as registry:
        registry.cancel(ODD)
        registry.forget(ODD)
        assert list(registry.entries) == [FINE]


def test_a_hold_is_in_the_list_until_it_is_released(path):
    with closing(Registry.open(path)) as registry:
        registry.hold("team", "the storage is full")
        registry.hold("*", "")
        registry.cordon("n1", 0, "hot")
    with closing(Registry.open(path)) as registry:
        assert registry.holds == {"team": "the storage is full", "*": ""}
        assert registry.cordons() == {("n1", 0): "hot"}
        registry.hold("team", None)
    with closing(Registry.open(path)) as registry:
        assert registry.holds == {"*": ""}


def test_an_unreadable_status_ends_the_start(path):
    write(path, "status", '{"phase": "Dreaming"}', FINE)
    with pytest.raises(StateError, match="the recorded status of job team/fine cannot be read"):
        Registry.open(path)


# --- locked by another process ----------------------------------------------------------------


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


def test_a_list_that_is_locked_while_it_is_read_first_is_waited_for(path, monkeypatch):
    opened = read_rows

    def lock_and_read(db: sqlite3.Connection) -> Any:
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN EXCLUSIVE")
        # Longer than a request waits when the controller runs.
        unlock = threading.Timer(4 * LOCKED_S, other.close)
        unlock.start()
        try:
            return opened(db)
        finally:
            unlock.join()

    monkeypatch.setattr("dljob.local.jobs.registry.read_rows", lock_and_read)
    with closing(Registry.open(path)) as registry:
        assert {*registry.entries} == {ODD, FINE}


def test_a_locked_list_is_reported_without_waiting(path):
    nodes = (Node.of(NodeName("n0"), 2),)
    pods: Any = None
    told = f"{path}: cannot be written (database is locked); end the other process that uses it"
    with closing(Registry.open(path)) as registry:
        machine = Machine(
            Folders(path.parent), registry, pods=pods, nodes=lambda: nodes, events=Events()
        )
        statuses = {ODD: registry.entries[ODD].status}
        # All else that happens in the controller waits for it.
        (patience_ms,) = registry._file.db.execute("PRAGMA busy_timeout").fetchone()
        assert patience_ms <= 100
        with locked(path), pytest.raises(NotKept) as caught:
            asyncio.run(machine.record(statuses))
        assert str(caught.value) == told
        asyncio.run(machine.record(statuses))
