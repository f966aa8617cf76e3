"""The mirror only goes forward, in every order of watch events and answers to writes."""

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
def test_the_newest_version_stays_in_whatever_order_they_come(mirror, order):
    for version in order:
        mirror.show(document(version))
    assert version_of(mirror.objects[JOB]) == 9


def written(version, **changes):
    """
    Return a job as it is after a write, with these changes in its metadata and an epoch in its
    status.
    """
    job = document(version)
    epoch = changes.pop("epoch", 7)
    job["metadata"] |= {"generation": 1, "uid": "a"} | changes
    return job | {"status": {"phase": f"at {version}", "epoch": epoch}}


@pytest.fixture
def heard():
    """Return mirrors that know a job with a status in the epoch 7, and the list of their calls."""
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
def test_what_only_we_write_is_no_news_whoever_tells_of_it_first(heard, ours):
    """The watch may show what we have written before we are answered."""
    mirrors, told = heard
    mirrors.jobs.show(ours)
    assert told == []
    assert mirrors.changed_jobs == {JOB}, "it is looked at all the same"


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
def test_what_anybody_else_may_have_written_is_news(heard, theirs):
    mirrors, told = heard
    mirrors.jobs.show(theirs)
    assert told == ["news, burst=True", f"job {JOB}"]


def test_who_is_told_is_told_once_of_each_change(mirror, changes):
    mirror.show(document(3))
    mirror.show(document(3))
    mirror.show_end(document(4))
    mirror.show_end(document(4))
    assert changes == [JOB, JOB]
    assert mirror.get(JOB) is None


def test_an_event_of_before_its_end_does_not_bring_an_object_back(mirror):
    mirror.show(document(3))
    mirror.show_end(document(7))
    mirror.show(document(6))
    assert mirror.get(JOB) is None
    mirror.show(document(8))
    assert mirror.get(JOB) is not None


def test_the_end_of_an_object_that_was_made_anew_meanwhile_is_no_end(mirror):
    mirror.show(document(8))
    mirror.show_end(document(7))
    assert mirror.get(JOB) is not None


def test_what_a_list_does_not_name_is_deleted_unless_it_is_newer(mirror, changes):
    mirror.show(document(3))
    mirror.show(document(9, "later"))
    mirror.show_all([document(4, "other")], version=6)
    assert {name.name for name in mirror.objects} == {"other", "later"}
    assert changes[-1] == JOB
    mirror.show(document(5))
    assert mirror.get(JOB) is None, "an event from before the list"
    mirror.show(document(7))
    assert mirror.get(JOB) is not None


def test_the_answer_to_our_own_write_is_no_news_and_neither_is_the_event_of_it(mirror, changes):
    mirror.show(document(3))
    mirror.show(document(5), is_ours=True)
    mirror.show(document(5))
    assert changes == [JOB]
    assert version_of(mirror.objects[JOB]) == 5


def test_who_only_waits_to_lead_collects_nothing_and_begins_with_all_there_is():
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


# --- pods of other owners, of which no version is remembered --------------------------------


def foreign(name, version, cpu):
    container = {"name": "c", "resources": {"requests": {"cpu": str(cpu)}}}
    metadata = {"namespace": "else", "name": name, "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"containers": [container], "nodeName": "n1"}}


class PodServer(ApiServer):
    """An API server whose list of pods waits for a gate, and whose watch of pods shows what a test puts there."""

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
    """Other owners' pods on one node, which are followed while they are listed again."""

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
async def test_a_list_takes_back_nothing_that_a_watch_shows_meanwhile(event, cpus):
    there = Followed()
    following = await there.follow(foreign("old", 5, 1))
    await there.settle()
    there.server.may_answer.clear()
    there.server.listed.clear()
    # As a new leader does it; the list is as of version 10.
    listing = asyncio.create_task(there.other_pods.list_all())
    await there.server.listed.wait()
    await there.show(*event)
    there.server.may_answer.set()
    await listing
    await there.settle()
    assert there.cpus == cpus
    following.cancel()


def test_a_job_of_another_controller_is_in_no_mirror_and_replaces_an_earlier_one():
    def managed(version, by):
        return {**document(version), "spec": {"managedBy": by} if by else {}}

    jobs = Mirrors().jobs
    jobs.show(managed(3, "kueue.x-k8s.io/multikueue"))
    assert not jobs.objects
    for version, by in ((5, ""), (7, "dljob.io/operator")):
        jobs.show(managed(version, by))
        assert version_of(jobs.objects[JOB]) == version
    # A list shows a job of the same name before a watch shows the end of the former one.
    jobs.show_all([managed(9, "kueue.x-k8s.io/multikueue")], 9)
    assert not jobs.objects
