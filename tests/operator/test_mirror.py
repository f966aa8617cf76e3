"""The mirror never goes back, in any order of watch events and answers to writes."""

import asyncio
import itertools
from typing import Any

import pytest

from dljob.kube import names
from dljob.kube.client import ApiServer, Listing
from dljob.kube.names import Name
from dljob.kube.watches.mirror import Mirror, Mirrors, version_of
from dljob.operator.nodes.other_pods import OtherPods
from tests.loops import on_loop
from tests.operator.leaders import Calls

JOB = Name("lab", "job")


def document(version, name="job"):
    return {"metadata": {"namespace": "lab", "name": name, "resourceVersion": str(version)}}


@pytest.fixture
def changes():
    return []


@pytest.fixture
def mirror(changes):
    return Mirror(lambda name, is_news: changes.append(name) if is_news else None)


@pytest.mark.parametrize("order", list(itertools.permutations((3, 5, 9))))
def test_newest_version_stays(mirror, order):
    for version in order:
        mirror.show(document(version))
    assert version_of(mirror.objects[JOB]) == 9


def written(version, **changes):
    """A job after a write, with changes of its metadata and an epoch in its status."""
    job = document(version)
    epoch = changes.pop("epoch", 7)
    job["metadata"] |= {"generation": 1, "uid": "a"} | changes
    return job | {"status": {"phase": f"at {version}", "epoch": epoch}}


@pytest.fixture
def heard():
    """Mirrors that know a job of epoch 7, and the list of their calls."""
    mirrors = Mirrors()
    heard = Calls()
    mirrors.jobs.show(written(3))
    mirrors.collect_changes()
    mirrors.changed_jobs.clear()
    mirrors.listen(heard)
    return mirrors, heard


@pytest.mark.parametrize(
    "ours", [written(4), written(4, finalizers=[names.FINALIZER]), written(9, managedFields=[{}])]
)
def test_own_writes_are_no_news(heard, ours):
    """The watch may show a write before its answer arrives."""
    mirrors, told = heard
    mirrors.jobs.show(ours)
    assert told == []
    assert mirrors.changed_jobs == {JOB}, "it is looked at in any case"


@pytest.mark.parametrize(
    "theirs",
    [
        written(4, generation=2),
        written(4, deletionTimestamp="2026-01-01T00:00:00Z"),
        written(4, finalizers=["example.org/mine"]),
        written(4, annotations={"who": "me"}),
        written(4, uid="b"),
        written(4, epoch=8),
    ],
)
def test_possibly_foreign_writes_are_news(heard, theirs):
    mirrors, told = heard
    mirrors.jobs.show(theirs)
    assert told == ["news, burst=True", f"job {JOB}"]


def test_each_change_is_reported_once(mirror, changes):
    mirror.show(document(3))
    mirror.show(document(3))
    mirror.show_end(document(4))
    mirror.show_end(document(4))
    assert changes == [JOB, JOB]
    assert mirror.get(JOB) is None


def test_older_event_does_not_revive_an_object(mirror):
    mirror.show(document(3))
    mirror.show_end(document(7))
    mirror.show(document(6))
    assert mirror.get(JOB) is None
    mirror.show(document(8))
    assert mirror.get(JOB) is not None


def test_older_end_does_not_remove_a_newer_object(mirror):
    mirror.show(document(8))
    mirror.show_end(document(7))
    assert mirror.get(JOB) is not None


def test_list_removes_older_objects_it_does_not_name(mirror, changes):
    mirror.show(document(3))
    mirror.show(document(9, "later"))
    mirror.show_all([document(4, "other")], version=6)
    assert {name.name for name in mirror.objects} == {"other", "later"}
    assert changes[-1] == JOB
    mirror.show(document(5))
    assert mirror.get(JOB) is None, "an event from before the list"
    mirror.show(document(7))
    assert mirror.get(JOB) is not None


def test_answer_and_event_of_an_own_write_are_no_news(mirror, changes):
    mirror.show(document(3))
    mirror.show(document(5), is_ours=True)
    mirror.show(document(5))
    assert changes == [JOB]
    assert version_of(mirror.objects[JOB]) == 5


def test_waiting_operator_collects_no_changes():
    mirrors = Mirrors()
    for version in range(1, 4):
        for mirror in (mirrors.jobs, mirrors.pods):
            mirror.show(document(version, name=f"job-{version}"))
    mirrors.jobs.show_end(document(4, name="job-1"))
    assert (mirrors.changed_jobs, mirrors.changed_pods) == (set(), set())
    mirrors.collect_changes()
    assert mirrors.changed_jobs == mirrors.jobs.objects.keys()
    assert mirrors.changed_pods == mirrors.pods.objects.keys()
    mirrors.changed_jobs.clear()
    mirrors.jobs.show(document(5, name="late"))
    assert mirrors.changed_jobs == {Name("lab", "late")}


def foreign(name, version, cpu):
    container = {"name": "c", "resources": {"requests": {"cpu": str(cpu)}}}
    metadata = {"namespace": "else", "name": name, "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"containers": [container], "nodeName": "n1"}}


class PodServer(ApiServer):
    """An API server with a delayed list of pods, and a watch that the test fills."""

    def __init__(self) -> None:
        self.listing = Listing([], "10")
        self.listed, self.may_answer = asyncio.Event(), asyncio.Event()
        self.may_answer.set()
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        self.watched_from: list[str] = []

    async def pages(self, resource, namespace="", *, labels="", fields=""):
        listing = self.listing
        if resource.plural != "pods":
            yield Listing([], listing.version)
            return
        self.listed.set()
        await self.may_answer.wait()
        yield listing

    async def watch(self, resource, namespace="", *, version, labels="", fields=""):
        if resource.plural != "pods":
            await asyncio.Event().wait()
        self.watched_from.append(version)
        while (event := await self.events.get()) is not None:
            yield {"type": event[0], "object": event[1]}


class Followed:
    """Other owners' pods on one node, watched while they are listed again."""

    def __init__(self) -> None:
        self.server = PodServer()
        self.mirrors = Mirrors()
        self.other_pods = OtherPods(self.server, self.mirrors)

    async def follow(self, *pods):
        self.server.listing = Listing(list(pods), "10")
        await self.other_pods.list_all()
        return asyncio.create_task(self.other_pods.run())

    async def show(self, *event):
        self.server.events.put_nowait(event or None)
        await self.settle()

    async def settle(self):
        for _ in range(20):
            await asyncio.sleep(0)

    @property
    def cpus(self):
        return self.mirrors.others.pods.on("n1").get("cpu", 0) // 1000


@pytest.mark.parametrize(
    ("event", "cpus"),
    [
        (("MODIFIED", foreign("old", 12, 4)), 4),
        (("ADDED", foreign("new", 12, 2)), 3),
        (("DELETED", foreign("old", 12, 1)), 0),
    ],
)
@on_loop
async def test_list_does_not_undo_a_watch(event, cpus):
    there = Followed()
    following = await there.follow(foreign("old", 5, 1))
    await there.settle()
    there.server.may_answer.clear()
    there.server.listed.clear()
    # A new leader lists them, as of version 10.
    listing = asyncio.create_task(there.other_pods.list_all())
    await there.server.listed.wait()
    await there.show(*event)
    there.server.may_answer.set()
    await listing
    await there.settle()
    assert there.cpus == cpus
    following.cancel()


def test_job_of_another_controller_replaces_an_earlier_one():
    def managed(version, by):
        return {**document(version), "spec": {"managedBy": by} if by else {}}

    jobs = Mirrors().jobs
    jobs.show(managed(3, "kueue.x-k8s.io/multikueue"))
    assert not jobs.objects
    for version, by in ((5, ""), (7, "dljob.io/operator")):
        jobs.show(managed(version, by))
        assert version_of(jobs.objects[JOB]) == version
    # A list may show a new job of this name before the watch shows the end of the former one.
    jobs.show_all([managed(9, "kueue.x-k8s.io/multikueue")], 9)
    assert not jobs.objects
