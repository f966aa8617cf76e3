"""No decision is lost although answers to status writes come late, in any order, or for another job."""

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
    metadata = {"namespace": NAME.namespace, "name": NAME.name, "uid": uid, "generation": 1}
    metadata |= {"creationTimestamp": "2026-01-01T00:00:00Z", "finalizers": [names.FINALIZER]}
    template = {"spec": {"containers": [{"name": "trainer", "image": "x"}]}}
    spec = {"gpus": {"options": [1]}, "training": {"iterations": 10}, "template": template}
    return {"metadata": metadata, "spec": spec}


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
    """An API server with one job, and a watch that is faster than its answers."""

    def __init__(self, mirror):
        self.document = {}
        self.version = 100
        self.mirror = mirror
        self.gates = []
        """The next writes whose answers wait."""

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
    """All writers of statuses, and one job that was listed and written once."""

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
        return self.mirror.get(NAME)

    @property
    def is_whole(self):
        """Whether the leader, its mirror and the API server agree."""
        recorded = self.jobs.as_recorded(self.api.document)["status"]
        return self.api.status == recorded == self.shown["status"]


async def until_written(api, version):
    while api.version < version:
        await asyncio.sleep(0)


@pytest.mark.parametrize("figure", ["queue", "progress"])
@on_loop
async def test_figures_keep_a_decision_whose_answer_is_late(figure):
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
    # Later figures are shown as usual.
    await office.figures.show_queue(JOB, QUEUE)
    assert (office.api.status["podsBooked"], office.api.status["queue"]) == (1, QUEUE)


@on_loop
async def test_expected_end_goes_with_the_gpus():
    office = Office()
    had = (await office.open()).decided(Placement.of({NodeName("n1"): (0,)}), now=1.0)
    await office.decide(had)
    await office.figures.publish(JOB, had, remaining=Span(3.0, 3.0, 3.0))
    assert office.api.status["progress"]["etaSeconds"] == 3
    await office.decide(had.decided(None, now=2.0))
    assert "etaSeconds" not in office.api.status["progress"]


@on_loop
async def test_overtaken_answer_keeps_the_decision():
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
async def test_decision_is_not_written_to_a_new_job_of_the_name(is_seen):
    office = Office()
    before = await office.open()
    # Its user deletes it and submits it again between the look and the write.
    office.api.put(job_document("second"))
    if is_seen:
        office.api.show()
    await office.decide(before.with_pods([NodeName("n1")], 5.0))
    await office.figures.show_queue(JOB, QUEUE)
    assert "status" not in office.api.document
    # The next look reads the new job, and its decision is written.
    office.api.show()
    first = office.jobs.read(office.shown).status
    await office.decide(first)
    assert office.api.status["revision"] == 1


@on_loop
async def test_figures_are_not_shown_on_a_new_job_of_the_name():
    office = Office()
    await office.open()
    office.reader.read()
    await office.figures.show_queue(JOB, QUEUE)
    assert office.api.status["queue"] == QUEUE
    office.api.put(job_document("second"))
    office.api.show()
    office.reader.read()
    assert not office.reader.entries, "readers see that the former job is gone"
    office.reader.read()
    await office.decide(office.reader.entries[JOB].status)
    assert office.api.document["metadata"]["uid"] == "second"
    assert "queue" not in office.api.status
