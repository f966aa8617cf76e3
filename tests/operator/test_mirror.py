"""Whatever the order in which watches and answers to writes come, the mirror goes forward only."""

import itertools

import pytest

from dlkube import names
from dlkube.mirror import (
    Mirror,
    Mirrors,
    version_of,
)
from dlkube.names import Name

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


def test_who_has_written_which_field_is_not_remembered(mirror):
    shown = document(3)
    shown["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    mirror.show(shown)
    assert mirror.get(JOB) == document(3)


def test_a_job_is_met_when_it_comes_and_not_when_we_write():
    mirrors = Mirrors()
    met: list[Name] = []
    mirrors.meet = met.append
    mirrors.jobs.show(document(3))
    mirrors.jobs.show(document(4), is_ours=True)
    mirrors.pods.show(document(5))
    assert met == [JOB]


def written(version, **changes):
    """A job as it is after a write; what is named stands in its metadata, an epoch in its status."""
    job = document(version)
    epoch = changes.pop("epoch", 7)
    job["metadata"] |= {"generation": 1, "uid": "a"} | changes
    return job | {"status": {"phase": f"at {version}", "epoch": epoch}}


@pytest.fixture
def heard():
    """What is told of a job that is known, with a status in the epoch 7."""
    mirrors = Mirrors()
    heard: list[str] = []
    mirrors.jobs.show(written(3))
    mirrors.attend()
    mirrors.changed_jobs.clear()
    mirrors.meet = lambda _: heard.append("met")
    mirrors.wake = lambda _: heard.append("woken")
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
    assert told == ["woken", "met"]


def test_versions_are_numbers(mirror):
    mirror.show(document(99))
    mirror.show(document(100))
    assert version_of(mirror.objects[JOB]) == 100


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
    mirrors.attend()
    assert mirrors.changed_jobs == mirrors.jobs.objects.keys()
    assert mirrors.changed_pods == mirrors.pods.objects.keys()
    mirrors.changed_jobs.clear()
    mirrors.jobs.show(document(5, name="late"))
    assert mirrors.changed_jobs == {Name("lab", "late")}
