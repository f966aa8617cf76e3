"""Answers to writes of statuses come late, in any order, and perhaps about another job; nothing decided is lost by that."""

import asyncio
import copy
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dljob.control.situation.status import Status
from dljob.core.model import JobId, NodeName, Placement
from dljob.core.predicting.predictor import Span
from dljob.kube import names
from dljob.kube.client import Conflict
from dljob.kube.names import Name
from dljob.kube.watches.mirror import Mirrors
from dljob.operator.jobs.entries import Specs
from dljob.operator.jobs.epochs import Term
from dljob.operator.jobs.status_writing import FigureWriter, StatusDocuments, StatusWriter
from dljob.operator.jobs.trusted_jobs import TrustedJobs
from dljob.operator.observing import JobReader
from tests.loops import on_loop

NAME, JOB = Name("team", "job"), JobId("team/job")
QUEUE = {"ahead": 3}


def job_document(uid):
    return {
        "metadata": {
            "namespace": NAME.namespace,
            "name": NAME.name,
            "uid": uid,
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": [names.FINALIZER],
        },
        "spec": {
            "gpus": {"options": [1]},
            "training": {"iterations": 10},
            "template": {"spec": {"containers": [{"name": "trainer", "image": "x"}]}},
        },
    }


def merged(target, patch):
    result = dict(target)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            result[name] = merged(result.get(name) or {}, value)
        else:
            result[name] = value
    return result


class Api:
    """An API server with one job, whose watch is faster than its answers."""

    def __init__(self, mirror):
        self.document = {}
        self.version = 100
        self.mirror = mirror
        self.gates = []
        """Of the next writes, those whose answers wait."""

    def put(self, document):
        self.version += 1
        document["metadata"]["resourceVersion"] = str(self.version)
        self.document = document

    def show(self):
        self.mirror.show(copy.deepcopy(self.document))

    def hold_answer(self):
        gate = asyncio.Event()
        self.gates.append(gate)
        return gate

    async def get(self, *_):
        return copy.deepcopy(self.document)

    async def merge(self, _resource, _name, *, changes, namespace, sub):
        assert (namespace, sub) == (NAME.namespace, "status")
        version = self.document["metadata"]["resourceVersion"]
        if changes["metadata"]["resourceVersion"] != version:
            raise Conflict(409, {"message": "another version"})
        document = copy.deepcopy(self.document)
        document["status"] = merged(document.get("status") or {}, copy.deepcopy(changes["status"]))
        self.put(document)
        answer = copy.deepcopy(document)
        if self.gates:
            gate = self.gates.pop(0)
            self.show()
            await gate.wait()
        return answer

    @property
    def status(self):
        return self.document["status"]


class Office:
    """Everything that writes statuses, and the one job that is in the list and was written once."""

    def __init__(self):
        async def is_over():
            return False

        self.warnings: list[object] = []
        mirrors = Mirrors()
        self.mirror = mirrors.jobs
        self.api = Api(self.mirror)
        self.trusted = TrustedJobs(
            mirrors,
            Specs(),
            term=Term(5, lambda: True, is_over),
            warn=lambda *what: self.warnings.append(what),
        )
        self.jobs = self.trusted.records
        documents = StatusDocuments(5, lambda _: "")
        self.writer = StatusWriter(
            cast("Any", self.api), mirrors, trusted=self.trusted, documents=documents
        )
        self.figures = FigureWriter(mirrors, self.writer)
        mirrors.collect_changes()
        dry_runs: Any = SimpleNamespace(
            news=set, begin=lambda _: None, result=lambda _: "", forget=lambda _: None
        )
        orphans: Any = SimpleNamespace(note_end=lambda _: None)
        self.reader = JobReader(mirrors, dry_runs=dry_runs, orphans=orphans, writer=self.writer)

    async def open(self) -> Status:
        self.api.put(job_document("first"))
        self.api.show()
        status = self.jobs.read(self.shown).status
        await self.writer.write_all({JOB: status})
        return status

    async def decide(self, status):
        await self.writer.write_all({JOB: status})

    @property
    def shown(self):
        document = self.mirror.get(NAME)
        assert document is not None
        return document

    @property
    def is_whole(self):
        """Whether the leader, its mirror and the API server say the same."""
        recorded = self.jobs.as_recorded(self.api.document)["status"]
        return self.api.status == recorded == self.shown["status"]


async def until_written(api, version):
    while api.version < version:
        await asyncio.sleep(0)


@pytest.mark.parametrize("figure", ["queue", "progress"])
@on_loop
async def test_figures_take_back_no_decision_whose_answer_is_on_its_way(figure):
    office = Office()
    before = await office.open()
    gate = office.api.hold_answer()
    decided = before.with_pods([NodeName("n1")], 5.0)
    deciding = asyncio.create_task(office.decide(decided))
    await until_written(office.api, 103)
    if figure == "queue":
        await office.figures.show_queue(JOB, QUEUE)
    else:
        await office.figures.publish(JOB, before, remaining=None)
    assert office.api.status["podsBooked"] == 1
    gate.set()
    await deciding
    assert office.jobs.status(NAME) == decided
    assert office.is_whole
    # Afterwards figures are shown as ever.
    await office.figures.show_queue(JOB, QUEUE)
    assert (office.api.status["podsBooked"], office.api.status["queue"]) == (1, QUEUE)


@on_loop
async def test_the_expected_end_goes_with_the_gpus_of_a_job():
    office = Office()
    had = (await office.open()).decided(Placement.of({NodeName("n1"): (0,)}), now=1.0)
    await office.decide(had)
    await office.figures.publish(JOB, had, remaining=Span(3.0, 3.0, 3.0))
    assert office.api.status["progress"]["etaSeconds"] == 3
    await office.decide(had.decided(None, now=2.0))
    assert "etaSeconds" not in office.api.status["progress"]


@on_loop
async def test_an_answer_that_was_overtaken_takes_back_no_decision():
    office = Office()
    before = await office.open()
    gate = office.api.hold_answer()
    showing = asyncio.create_task(office.figures.show_queue(JOB, QUEUE))
    await until_written(office.api, 103)
    decided = before.with_pods([NodeName("n1")], 5.0)
    await office.decide(decided)
    gate.set()
    await showing
    assert office.jobs.status(NAME) == decided
    assert office.is_whole
    assert not office.trusted.is_doubted(office.shown)


@pytest.mark.parametrize("is_seen", [True, False])
@on_loop
async def test_what_was_decided_about_a_job_is_not_written_to_the_next_one_of_its_name(is_seen):
    office = Office()
    before = await office.open()
    # Its user deletes it and submits it again between the look and the write.
    office.api.put(job_document("second"))
    if is_seen:
        office.api.show()
    await office.decide(before.with_pods([NodeName("n1")], 5.0))
    await office.figures.show_queue(JOB, QUEUE)
    assert "status" not in office.api.document
    # The next look reads it, and then it is decided about as any other.
    office.api.show()
    first = office.jobs.read(office.shown).status
    await office.decide(first)
    assert office.api.status["revision"] == 1


@on_loop
async def test_figures_of_a_job_are_not_shown_of_the_next_one_of_its_name():
    office = Office()
    await office.open()
    office.reader.read()
    await office.figures.show_queue(JOB, QUEUE)
    assert office.api.status["queue"] == QUEUE
    office.api.put(job_document("second"))
    office.api.show()
    office.reader.read()
    assert not office.reader.entries, "readers shall see that the former one is gone"
    office.reader.read()
    await office.decide(office.reader.entries[JOB].status)
    assert office.api.document["metadata"]["uid"] == "second"
    assert "queue" not in office.api.status
