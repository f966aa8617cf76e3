"""The effects of a newcomer are the differences between the decisions with it and without it."""

from dataclasses import replace
from typing import Any

import pytest

from dljob.control.deciding.futures import joined
from dljob.control.situation.ports import Entry
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import Status
from dljob.core import policies
from dljob.core.foreseeing import preview
from dljob.core.model import NodeName
from dljob.core.planning import Reshape, Start, Wait
from dljob.core.recording.expecting import expect
from tests.builders import (
    make_cluster,
    make_job,
    make_node,
    make_profile,
    make_snapshot,
    make_state,
)

FLAT = make_profile({1: 1.0, 2: 1.1, 4: 1.2}, model="flat")
STEEP = make_profile(model="steep")


def effects(old, new, *, policy="adaptive", **nodes) -> list[Any]:
    """Return the changes that a newcomer would cause to these jobs on nodes of these sizes."""
    cluster = make_cluster(**(nodes or {"n1": 4}))
    states = [replace(state, order=order) for order, state in enumerate((*old, new))]
    known = (FLAT, STEEP)
    before = make_snapshot(cluster, *states[:-1], profiles=known)
    after = make_snapshot(cluster, *states, profiles=known)
    return [*preview(before, after, policies.make(policy))]


def test_newcomer_with_room_changes_no_job():
    old = make_state("old", options=(2,), holds={"n1": (0, 1)}, model="flat")
    (own,) = effects([old], make_state("new", options=(2,), model="steep"))
    assert (own.job, own.is_new, type(own.step)) == ("new", True, Start)
    assert own.new.gpus == 2
    assert own.speed.confidence == 1.0
    assert own.seconds_before is None
    assert own.seconds_after == pytest.approx(1000 / own.speed.value)


def test_job_that_makes_room_is_shown_with_its_cost():
    old = make_state("old", options=(2, 4), holds={"n1": (0, 1, 2, 3)}, model="flat")
    own, other = effects([old], make_state("new", options=(2,), model="steep"))
    assert own.is_new
    assert (other.job, other.is_new, type(other.step)) == ("old", False, Reshape)
    assert (other.old.gpus, other.new.gpus) == (4, 2)
    assert other.seconds_before < other.seconds_after
    assert other.speed is None


def test_unmeasured_job_has_no_expected_end():
    old = make_state("old", options=(2, 4), holds={"n1": (0, 1, 2, 3)}, model="unheard-of")
    _, other = effects([old], make_state("new", options=(2,), model="steep"), policy="max-min")
    assert (other.job, type(other.step)) == ("old", Reshape)
    assert (other.seconds_before, other.seconds_after) == (None, None)
    snapshot = make_snapshot(make_cluster(n1=4), old)
    assert expect(snapshot, [other.step])[old.id].remaining_seconds is None


def test_job_that_no_longer_starts_is_shown_with_its_loss():
    waits = make_state("waits", options=(4,), model="flat")
    found = effects([waits], make_state("new", options=(1,), model="steep"), policy="srsf")
    by_job = {effect.job: effect for effect in found}
    assert isinstance(by_job["new"].step, Start)
    assert isinstance(by_job["waits"].step, Wait)
    assert by_job["waits"].seconds_before == pytest.approx(1000 / 1.2)
    assert by_job["waits"].seconds_after is None
    # It waits for the GPUs that the newcomer leaves.
    assert by_job["waits"].sentence.endswith("needs 4 GPUs; 3 are free, and 1 more when new ends")


def test_changes_without_the_newcomer_are_omitted():
    grows = make_state("grows", options=(1, 2), holds={"n1": (0,)}, model="steep")
    (own,) = effects([grows], make_state("new", options=(1,), model="flat"), n1=4)
    assert own.job == "new"


def test_newcomers_come_last():
    there = Entry(make_job("there"), 7, Status())
    scene = Scene(5.0, 1, {there.job.id: there}, {}, {NodeName("n1"): make_node("n1")})
    names = [make_job("first"), make_job("second")]
    after = joined(scene, names)
    assert [(entry.job.id, entry.order) for entry in after.entries.values()] == [
        ("there", 7),
        ("first", 8),
        ("second", 9),
    ]
    assert after.entries[names[0].id].status.submitted_at == 5.0
    assert list(scene.entries) == ["there"]
