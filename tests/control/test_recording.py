"""When a controller records statuses, and how it detects another leader."""

import asyncio
from dataclasses import replace

import pytest

from dljob.control.acting.recording import Records
from dljob.control.situation.ports import Fenced
from dljob.core.model import JobId, NodeName
from tests.builders import make_placement
from tests.control.scenes import cast, make_scene

A, B = JobId("a"), JobId("b")


class Book:
    """Keeps records; may fail after the first status."""

    def __init__(self):
        self.writes = []
        self.fails = False

    async def record(self, statuses):
        for job, status in statuses.items():
            self.writes.append((job, status))
            if self.fails:
                raise OSError("the disk is full")


@pytest.fixture
def book():
    return Book()


def read(records, book, scene, **changed):
    """Look at a scene, change some statuses, and record them."""
    entries = records.recall(scene.entries)
    seen = replace(scene, entries=entries)
    asyncio.run(records.keep(seen.with_statuses({JobId(n): s for n, s in changed.items()})))
    return entries


def written(scene, book):
    """The scene as the next cycle finds it."""
    return scene.with_statuses(dict(book.writes))


def test_unchanged_status_is_not_written(book):
    scene = make_scene(cast("a", {"n0": (0,)}), cast("b"))
    records = Records(book)
    for _ in range(3):
        read(records, book, scene)
    assert book.writes == []


def test_progress_is_written_with_important_changes(book):
    scene = make_scene(cast("a", {"n0": (0,)}))
    records, status = Records(book), scene.entries[A].status
    farther = replace(status, iteration=5)
    read(records, book, scene, a=farther)
    assert book.writes == []
    assert read(records, book, scene, a=replace(farther, failures=1))[A].status == farther
    assert book.writes == [(A, replace(status, iteration=5, failures=1))]


def test_remembered_progress_is_the_same_object_each_time(book):
    scene = make_scene(cast("a", {"n0": (0,)}))
    records = Records(book)
    farther = replace(scene.entries[A].status, iteration=5)
    read(records, book, scene, a=farther)
    first, second = (read(records, book, scene)[A] for _ in range(2))
    assert first.status is farther
    assert first is second
    other = replace(scene, entries={A: replace(scene.entries[A], spec_generation=9)})
    assert read(records, book, other)[A].spec_generation == 9


def test_progress_is_written_with_gpu_seconds(book):
    scene = make_scene(cast("a", {"n0": (0,)}))
    counted = replace(scene.entries[A].status, iteration=5, service=9.0, counted_at=30.0)
    read(Records(book), book, scene, a=counted)
    assert book.writes == [(A, counted)]


def test_gpu_seconds_alone_are_written_rarely(book):
    scene = make_scene(cast("a", {"n0": (0,)}))
    records, status = Records(book, seconds=600.0), scene.entries[A].status
    begin = status.counted_at
    soon = replace(status, iteration=5, service=9.0, counted_at=begin + 599.0)
    read(records, book, scene, a=soon)
    assert book.writes == []
    assert read(records, book, scene)[A].status is soon
    later = replace(soon, service=10.0, counted_at=begin + 600.0)
    read(records, book, scene, a=later)
    assert book.writes == [(A, later)]


def test_memory_is_void_after_a_foreign_write(book):
    scene = make_scene(cast("a", {"n0": (0,)}))
    records, status = Records(book), scene.entries[A].status
    read(records, book, scene, a=replace(status, iteration=5))
    scene = scene.with_statuses({A: replace(status, message="by hand")})
    assert read(records, book, scene)[A].status.iteration == 0


@pytest.mark.parametrize("change", ["decided", "with_pods"])
def test_foreign_decision_means_another_leader(book, change):
    scene = make_scene(cast("a", {"n0": (0,)}))
    records = Records(book)
    read(records, book, scene)
    status = scene.entries[A].status
    theirs = (
        status.decided(None, now=3.0)
        if change == "decided"
        else status.with_pods([NodeName("n1")], now=3.0)
    )
    with pytest.raises(Fenced, match="another controller has decided about job a"):
        records.recall(scene.with_statuses({A: theirs}).entries)


def test_earlier_decisions_are_accepted(book):
    scene = make_scene(cast("a", {"n0": (0,)}, generation=7))
    assert Records(book).recall(scene.entries)[A].status.generation == 7


def test_new_job_with_a_decision_means_another_leader(book):
    records = Records(book)
    read(records, book, make_scene(cast("a", {"n0": (0,)})))
    records.recall(make_scene(cast("a", {"n0": (0,)}), cast("b", generation=0)).entries)
    with pytest.raises(Fenced):
        records.recall(make_scene(cast("a", {"n0": (0,)}), cast("c", generation=1)).entries)


def test_after_a_failed_write_either_status_is_ours(book):
    scene = make_scene(cast("a"), cast("b"))
    records = Records(book)
    book.fails = True
    new = {
        "a": scene.entries[A].status.decided(make_placement(n0=(0,)), now=3.0),
        "b": scene.entries[B].status.decided(make_placement(n0=(1,)), now=3.0),
    }
    with pytest.raises(OSError, match="full"):
        read(records, book, scene, **new)
    scene = written(scene, book)
    assert scene.entries[A].status.generation == 2
    assert scene.entries[B].status.generation == 1
    assert records.recall(scene.entries)[B].status.generation == 1
