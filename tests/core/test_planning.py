"""
From a decision to steps: their kinds, order and reasons.

Each plan comes from the whole cycle with a fixed policy, so it has passed the laws as well.
"""

from typing import Any

import pytest

from dljob.core import contract, model, planning
from dljob.core.checking import Law
from dljob.core.model import BatchRange, CauseCode
from dljob.core.planning import Move, Reshape
from tests.builders import make_cluster, make_placement, make_snapshot, make_state, make_steps

# Jobs and nodes are plain strings here.
Cause: Any = model.Cause
Start: Any = planning.Start
Stop: Any = planning.Stop
Wait: Any = planning.Wait
share: Any = contract.Share

NO_ROOM = Cause(CauseCode.NO_ROOM)
BEHIND = Cause(CauseCode.BEHIND)
ELASTIC = BatchRange(elastic=True, maximum=512)


def test_pending_job_with_share_starts():
    snapshot = make_snapshot(make_cluster(n1=4), make_state("new"))
    because = Cause(CauseCode.IDLE_GPUS)
    steps = make_steps(snapshot, {"new": share(2, because)})
    assert steps == [Start("new", make_placement(n1=(0, 1)), because)]


def test_running_job_without_share_stops_for_another():
    old = make_state("old", holds={"n1": (0, 1, 2, 3)})
    steps = make_steps(make_snapshot(make_cluster(n1=4), old, make_state("new")), {"new": 4})
    assert steps == [
        Stop("old", old.placement, Cause(CauseCode.OUTRANKED, job="new")),
        Start("new", make_placement(n1=(0, 1, 2, 3)), Cause(CauseCode.MAKES_ROOM), after=("old",)),
    ]


def test_newcomer_waits_only_for_holders_of_its_gpus():
    states = [make_state(name, holds={"n1": (gpu,)}) for gpu, name in enumerate("abcd")]
    snapshot = make_snapshot(make_cluster(n1=4), *states, make_state("new"))
    *_, start = make_steps(snapshot, {"b": 1, "d": 1, "new": 2})
    assert (start.placement, start.after) == (make_placement(n1=(0, 2)), ("a", "c"))


def test_gpus_are_freed_before_they_are_given():
    shrinks = make_state("shrinks", holds={"n1": (0, 1, 2, 3)})
    grows = make_state("grows", holds={"n1": (4, 5)})
    stops = make_state("stops", holds={"n1": (6, 7)})
    cluster = make_cluster(n1=8)
    snapshot = make_snapshot(cluster, grows, shrinks, stops, make_state("new", options=(1, 2)))
    steps = make_steps(snapshot, {"new": 2, "grows": 4, "shrinks": 2})
    assert [(type(step), step.job) for step in steps] == [
        (Stop, "stops"),
        (Reshape, "shrinks"),
        (Start, "new"),
        (Reshape, "grows"),
    ]


def test_shrinking_job_names_the_job_that_gains():
    old = make_state("old", holds={"n1": (0, 1, 2, 3)})
    snapshot = make_snapshot(make_cluster(n1=4), old, make_state("new", options=(2,)))
    shrink, start = make_steps(snapshot, {"old": 2, "new": 2})
    assert shrink.cause == Cause(CauseCode.MAKES_ROOM, job="new")
    assert shrink.new == make_placement(n1=(0, 1))
    assert start.after == ("old",)


def test_job_that_shrinks_for_itself_names_no_other():
    because = Cause(CauseCode.FASTER_WITH_FEWER)
    old = make_state("old", holds={"n1": (0, 1)})
    snapshot = make_snapshot(make_cluster(n1=2), old, make_state("new", options=(1,)))
    shrink, _ = make_steps(snapshot, {"old": share(1, because), "new": 1})
    assert shrink.cause == because


@pytest.mark.parametrize(
    ("nodes", "kind"), [({"n1": 4}, Reshape), ({"n1": 2, "n2": 2}, Reshape), ({"n2": 4}, Move)]
)
def test_change_is_reshape_if_it_keeps_a_node_else_move(nodes: Any, kind: Any):
    old = make_state("old", holds={"n1": (0, 1)})
    snapshot = make_snapshot(make_cluster(n1=4, n2=4), old)
    (step,) = make_steps(snapshot, {"old": share(4, nodes=nodes)})
    assert type(step) is kind
    assert step.old == old.placement
    assert {part.node: len(part.gpus) for part in step.new.slices} == nodes


def test_job_gets_gpus_released_in_the_same_plan():
    moves = make_state("moves", holds={"n1": (0, 1)})
    follows = make_state("follows", holds={"n1": (2, 3)})
    snapshot = make_snapshot(make_cluster(n1=4, n2=2), moves, follows)
    packing = Cause(CauseCode.PACKING)
    shares = {"moves": share(2, packing, nodes={"n2": 2}), "follows": share(4, nodes={"n1": 4})}
    move, grow = make_steps(snapshot, shares)
    assert (type(move), type(grow)) == (Move, Reshape)
    assert grow.after == ("moves",)


def test_new_batch_size_alone_is_a_change():
    old = make_state("old", holds={"n1": (0,)}, batch_size=128, batch=ELASTIC)
    snapshot = make_snapshot(make_cluster(n1=1), old)
    (step,) = make_steps(snapshot, {"old": share(1, batch_size=256)})
    assert (step.batch_size, step.old, step.new) == (256, old.placement, old.placement)
    assert make_steps(snapshot, {"old": share(1, batch_size=128)}) == []
    (again,) = make_steps(snapshot, {"old": share(1, nodes={"n1": 1}, batch_size=256)})
    assert again == step


def test_batch_size_respects_the_limits_of_the_job():
    old = make_state("old", holds={"n1": (0,)})
    fixed, elastic = make_state("fixed"), make_state("elastic", batch=ELASTIC)
    snapshot = make_snapshot(make_cluster(n1=3), old, fixed, elastic)
    shares = dict.fromkeys(("old", "fixed", "elastic"), share(1, batch_size=1024))
    steps = make_steps(snapshot, shares)
    assert [(step.job, step.batch_size) for step in steps] == [("fixed", None), ("elastic", 512)]


def test_wait_is_repeated_only_with_a_new_reason():
    states = [
        make_state("new"),
        make_state("known", waiting=NO_ROOM),
        make_state("equal", waiting=Cause(CauseCode.NO_ROOM)),
        make_state("other", waiting=BEHIND),
        make_state("own", waiting=NO_ROOM),
        make_state("own-known", waiting=BEHIND),
    ]
    steps = make_steps(
        make_snapshot(make_cluster(n1=1), *states),
        {},
        waits={"own": BEHIND, "own-known": BEHIND},
        wait=NO_ROOM,
    )
    assert set(steps) == {Wait("new", NO_ROOM), Wait("other", NO_ROOM), Wait("own", BEHIND)}


def test_partial_gang_has_its_size():
    snapshot = make_snapshot(make_cluster(n1=2, n2=2), make_state("new", options=(4,)))
    part = share(1, gang=4, nodes={"n1": 1})
    (step,) = make_steps(snapshot, {"new": part}, breaks=[Law.WHOLE_GANG])
    assert (step.placement.gpus, step.gang) == (1, 4)
