"""
The laws of plans, each broken by plans made by hand.

Each plan breaks one law. It is refused for that law and passes without that law's check, so every
check is needed and no other check does its work.
"""

from dataclasses import replace
from typing import Any

import pytest

from dljob.core import checking
from dljob.core.checking import BrokenLaw, Law
from dljob.core.model import BatchRange, Cause, CauseCode, JobId
from dljob.core.placement.limits import NamespaceLimits
from dljob.core.placement.needs import Needs
from dljob.core.planning import Move, Plan, Reshape, Start, Stop, Wait
from tests.builders import make_cluster, make_node, make_placement, make_snapshot, make_state

TURN = Cause(CauseCode.ITS_TURN)
OUTRANKED = Cause(CauseCode.OUTRANKED)
FOR_NEW = Cause(CauseCode.OUTRANKED, job=JobId("new"))
NO_ROOM = Cause(CauseCode.NO_ROOM)
FEWER = Cause(CauseCode.FASTER_WITH_FEWER)
MAKES_ROOM = Cause(CauseCode.MAKES_ROOM)
FASTER = Cause(CauseCode.FASTER_WITH_MORE)
PACKING = Cause(CauseCode.PACKING)

TWO_TYPES = make_cluster(n1=(4, "A"), n2=(4, "B"))
TWO_NODES = make_cluster(n1=4, n2=4)


def on(gpu_type="", **gpus):
    return make_placement(gpu_type, **gpus)


def new(**known):
    return make_state("new", **known)


def old(**known):
    known.setdefault("holds", {"n1": (0, 1)})
    return make_state("old", **known)


def start(placement, job="new", **rest):
    return Start(JobId(job), placement, TURN, **rest)


def stop(state, cause=FOR_NEW):
    return Stop(state.id, state.placement, cause)


def change(state, placement, cause=TURN, kind=Reshape, **rest):
    return kind(state.id, state.placement, placement, cause, **rest)


WAIT = Wait(JobId("new"), NO_ROOM)
A, B = old(), new()
NEW, OLD = make_snapshot(TWO_NODES, B), make_snapshot(TWO_NODES, A)
HELD_BY_OLD = make_snapshot(TWO_NODES, A, B)
WIDE = old(holds={"n1": (0, 1, 2, 3)})
ALL_OF_N1 = make_snapshot(TWO_NODES, WIDE)
HELD_WHOLLY = make_snapshot(TWO_NODES, WIDE, B)

UNSAVED = make_snapshot(TWO_NODES, old(unsaved_from=0.0), B)
LIVE = make_snapshot(TWO_NODES, old(unsaved_from=0.0, is_live=True), new())
CHANGING = make_snapshot(TWO_NODES, old(unsaved_from=0.0, is_live=True, adjusting=True))

CPU = Needs((("cpu", 4000),))
"""Four CPUs."""
N1_ONLY = Needs((("cpu", 4000),), frozenset({"n1"}))


def counted(**cpus):
    """Nodes of four GPUs, each with this number of CPUs free."""
    return make_cluster(*(make_node(name, 4, free={"cpu": n * 1000}) for name, n in cpus.items()))


def of(namespace, name, **known):
    return make_state(f"{namespace}/{name}", **known)


FEW_CPUS = make_snapshot(counted(n1=6, n2=3), new(needs=CPU), make_state("other", needs=CPU))
HAS_TWO = of("team", "old", holds={"n1": (0, 1)})
LIMITED = replace(
    make_snapshot(TWO_NODES, HAS_TWO, of("team", "new"), of("free", "new")),
    limits=NamespaceLimits(max_gpus={"team": 3}),
)

ELASTIC = BatchRange(elastic=True, maximum=128)

BREAKING: dict[Law, dict[str, Any]] = {
    Law.ALLOWED_BATCH: {
        "a batch changes that is not elastic": (
            make_snapshot(TWO_NODES, old(batch_size=64)),
            [change(A, on(n1=(0, 1)), batch_size=128)],
        ),
        "a newcomer gets a batch beyond its limit": (
            make_snapshot(TWO_NODES, new(batch=ELASTIC)),
            [start(on(n1=(0,)), batch_size=256)],
        ),
    },
    Law.ROOM_FOR_PODS: {
        "a pod comes where there is too little CPU": (FEW_CPUS, [start(on(n2=(0,)))]),
        "two pods come where there is room for one": (
            FEW_CPUS,
            [start(on(n1=(0,))), start(on(n1=(1,)), job="other")],
        ),
        "a pod comes where it may not be": (
            make_snapshot(counted(n1=9, n2=9), new(needs=N1_ONLY)),
            [start(on(n2=(0,)))],
        ),
        "a job spreads to where there is too little": (
            make_snapshot(counted(n1=0, n2=3), old(needs=CPU)),
            [change(old(needs=CPU), on(n1=(0, 1), n2=(0, 1)))],
        ),
    },
    Law.WORK_KEPT: {
        "a job without a checkpoint grows": (
            UNSAVED,
            [change(A, on(n1=(0, 1, 2, 3)), cause=FASTER)],
        ),
        "it is moved to fewer nodes": (UNSAVED, [change(A, on(n2=(0, 1)), PACKING, Move)]),
        "it shrinks for a job that would gain more": (
            UNSAVED,
            [change(A, on(n1=(0,)), FOR_NEW), start(on(n1=(1,)), after=(A.id,))],
        ),
        "it is stopped for one of its own priority": (
            UNSAVED,
            [stop(A), start(on(n1=(0, 1)), after=(A.id,))],
        ),
        "one whose processes stay is stopped": (
            LIVE,
            [stop(A), start(on(n1=(0, 1)), after=(A.id,))],
        ),
        "none of its GPUs is left to it": (LIVE, [change(A, on(n2=(0, 1)), PACKING, Move)]),
        "it exchanges one": (LIVE, [change(A, on(n1=(1, 2)), PACKING)]),
        "it grows during a change": (CHANGING, [change(A, on(n1=(0, 1, 2, 3)), cause=FASTER)]),
    },
    Law.NAMESPACE_LIMIT: {
        "a newcomer gets more than is left": (LIMITED, [start(on(n2=(0, 1)), job="team/new")]),
        "a job grows beyond it": (LIMITED, [change(HAS_TWO, on(n1=(0, 1, 2, 3)))]),
        "a newcomer where there is too much already": (
            replace(LIMITED, limits=NamespaceLimits(max_gpus={"*": 1})),
            [start(on(n2=(0,)), job="team/new")],
        ),
    },
    Law.ONE_MASTER: {
        "two jobs start on one GPU": (
            make_snapshot(TWO_NODES, new(), make_state("other")),
            [start(on(n1=(0, 1))), start(on(n1=(1, 2)), job="other")],
        ),
        "a job starts on what another keeps": (HELD_BY_OLD, [start(on(n1=(1, 2)))]),
        "a job grows into what another keeps": (
            make_snapshot(TWO_NODES, A, make_state("other", holds={"n1": (2, 3)})),
            [change(A, on(n1=(0, 1, 2, 3)))],
        ),
        "a job starts on what another keeps of its own": (
            HELD_WHOLLY,
            [change(WIDE, on(n1=(0, 1)), cause=FOR_NEW), start(on(n1=(1, 2)), after=("old",))],
        ),
        "two jobs have one GPU already, and a third changes": (
            make_snapshot(
                TWO_NODES, A, make_state("twin", holds={"n1": (1, 2)}), new(options=(1,))
            ),
            [start(on(n2=(0,)))],
        ),
    },
    Law.REAL_GPUS: {
        "there is no such GPU": (NEW, [start(on(n1=(3, 4)))]),
        "there is no such node": (NEW, [start(on(n9=(0,)))]),
        "the GPU is broken": (
            make_snapshot(make_cluster(make_node("n1", 4, unavailable=(2,))), new()),
            [start(on(n1=(1, 2)))],
        ),
        "the node is cordoned": (
            make_snapshot(make_cluster(make_node("n1", 4, schedulable=False)), new()),
            [start(on(n1=(0,)))],
        ),
        "the GPU is of another type than the step says": (
            make_snapshot(TWO_TYPES, new()),
            [start(on("A", n2=(0,)))],
        ),
        "one GPU is given twice": (
            make_snapshot(TWO_NODES, new(options=(2,))),
            [start(on(n1=(0, 0)))],
        ),
        "GPUs that it has already are of another type than the step says": (
            make_snapshot(TWO_TYPES, old(gpu_type="A")),
            [change(old(gpu_type="A"), on("B", n1=(0, 1), n2=(0, 1)))],
        ),
        "a job grows onto a broken GPU": (
            make_snapshot(make_cluster(make_node("n1", 4, unavailable=(2,))), A),
            [change(A, on(n1=(0, 1, 2, 3)))],
        ),
    },
    Law.ALLOWED_SHAPE: {
        "three GPUs are no option": (
            make_snapshot(TWO_NODES, new(options=(1, 2, 4))),
            [start(on(n1=(0, 1, 2)))],
        ),
        "no GPU at all": (NEW, [start(on())]),
        "a type that the job cannot run on": (
            make_snapshot(TWO_TYPES, new(types=("A",))),
            [start(on("B", n2=(0,)))],
        ),
        "a mixture that the job cannot run on": (
            make_snapshot(TWO_TYPES, new(options=(2,))),
            [start(on("A+B", n1=(0,), n2=(0,)))],
        ),
        "more nodes than the job may spread over": (
            make_snapshot(TWO_NODES, new(options=(2,), max_nodes=1)),
            [start(on(n1=(0,), n2=(0,)))],
        ),
        "a gang of a size that is no option": (
            make_snapshot(TWO_NODES, new(options=(1, 2))),
            [start(on(n1=(0,)), gang=3)],
            {Law.WHOLE_GANG},
        ),
        "more GPUs than the gang needs": (
            make_snapshot(TWO_NODES, new(options=(1, 2))),
            [start(on(n1=(0, 1)), gang=1)],
            {Law.WHOLE_GANG},
        ),
    },
    Law.WHOLE_GANG: {
        "a job starts with a part of its gang": (
            make_snapshot(TWO_NODES, new(options=(4,))),
            [start(on(n1=(0, 1)), gang=4)],
        ),
        "the part is an option by itself": (
            make_snapshot(TWO_NODES, new(options=(2, 4))),
            [start(on(n1=(0, 1)), gang=4)],
        ),
        "a part grows and is a part still": (
            make_snapshot(TWO_NODES, old(options=(4,), holds={"n1": (0,)}, gang=4)),
            [change(old(holds={"n1": (0,)}), on(n1=(0, 1, 2)), gang=4)],
        ),
    },
    Law.RELEASED_FIRST: {
        "the newcomer waits for one that releases nothing": (
            NEW,
            [start(on(n1=(0, 1)), after=("ghost",))],
        ),
        "the newcomer comes before its victim": (
            HELD_BY_OLD,
            [start(on(n1=(0, 1)), after=("old",)), stop(A)],
        ),
        "the newcomer does not wait for its victim": (HELD_BY_OLD, [stop(A), start(on(n1=(0, 1)))]),
        "the newcomer does not wait for one that shrinks": (
            HELD_WHOLLY,
            [change(WIDE, on(n1=(0, 1)), cause=FOR_NEW), start(on(n1=(2, 3)))],
        ),
        "two swap their GPUs, and each would have to wait for the other": (
            make_snapshot(TWO_NODES, A, make_state("other", holds={"n2": (0, 1)})),
            [
                change(A, on(n2=(0, 1)), PACKING, Move, after=("other",)),
                change(
                    make_state("other", holds={"n2": (0, 1)}),
                    on(n1=(0, 1)),
                    PACKING,
                    Move,
                    after=("old",),
                ),
            ],
        ),
    },
    Law.CHECKPOINT_IN_REACH: {
        "a job starts where its checkpoint is not": (
            make_snapshot(TWO_NODES, new(bound_to=("n2",))),
            [start(on(n1=(0,)))],
        ),
        "a job moves away from its checkpoint": (
            make_snapshot(TWO_NODES, old(bound_to=("n1",))),
            [change(A, on(n2=(0, 1)), PACKING, Move)],
        ),
        "a job spreads beyond its checkpoint": (
            make_snapshot(TWO_NODES, old(bound_to=("n1",))),
            [change(A, on(n1=(0, 1), n2=(0, 1)))],
        ),
    },
    Law.PURPOSE: {
        "a job is stopped for one that gets other GPUs": (
            HELD_BY_OLD,
            [stop(A), start(on(n2=(0, 1)))],
        ),
        "a job is changed into something that is no better for it": (
            OLD,
            [change(A, on(n1=(2, 3)))],
        ),
        "a suspended job is started": (
            make_snapshot(TWO_NODES, new(suspend=True)),
            [start(on(n1=(0, 1)))],
        ),
        "a job is stopped for no other job": (HELD_BY_OLD, [stop(A, OUTRANKED)]),
        "a job is stopped for one that gets nothing": (HELD_BY_OLD, [stop(A)]),
        "a job is stopped for one that loses itself": (
            make_snapshot(TWO_NODES, A, make_state("new", holds={"n2": (0,)})),
            [stop(A), Stop(JobId("new"), on(n2=(0,)), Cause(CauseCode.SUSPENDED))],
        ),
        "a job shrinks for no other job": (
            ALL_OF_N1,
            [change(WIDE, on(n1=(0, 1)), cause=MAKES_ROOM)],
        ),
        "a job is changed into what it is": (OLD, [change(A, on(n1=(0, 1)))]),
        "a job is given the batch size that it has": (
            make_snapshot(TWO_NODES, old(batch_size=64)),
            [change(A, on(n1=(0, 1)), batch_size=64)],
        ),
        "a move that keeps a node": (OLD, [change(A, on(n1=(0, 1, 2, 3)), kind=Move)]),
        "a reshape that keeps no node": (OLD, [change(A, on(n2=(0, 1, 2, 3)))]),
        "a job has two steps": (NEW, [start(on(n1=(0,))), WAIT]),
        "a job is started twice": (NEW, [start(on(n1=(0,))), start(on(n2=(0,)))]),
        "an unknown job starts": (make_snapshot(TWO_NODES), [start(on(n1=(0,)))]),
        "a running job starts": (OLD, [start(on(n2=(0,)), job="old")]),
        "a waiting job stops": (NEW, [Stop(JobId("new"), on(n1=(0,)), OUTRANKED)]),
        "a job is changed from what it has not": (
            OLD,
            [Reshape(JobId("old"), on(n1=(0,)), on(n1=(0, 1)), TURN)],
        ),
        "a job receives the same reason to wait again": (
            make_snapshot(TWO_NODES, new(waiting=NO_ROOM)),
            [WAIT],
        ),
        "a job receives two reasons to wait": (
            NEW,
            [WAIT, Wait(JobId("new"), Cause(CauseCode.BEHIND))],
        ),
        "a running job receives a reason to wait": (OLD, [Wait(JobId("old"), NO_ROOM)]),
        "a job receives the same reason again while another starts": (
            make_snapshot(TWO_NODES, new(), make_state("waits", waiting=NO_ROOM)),
            [start(on(n1=(0,))), Wait(JobId("waits"), NO_ROOM)],
        ),
    },
}


def check(steps, snapshot, breaks=frozenset()) -> None:
    checking.check(Plan(tuple(steps)), snapshot, policy="las", breaks=frozenset(breaks))


@pytest.mark.parametrize("law", Law)
def test_plan_that_breaks_a_law_fails_that_check_only(law):
    for sentence, (snapshot, steps, *rest) in BREAKING[law].items():
        baseline: frozenset[Law] = frozenset(*rest)
        with pytest.raises(BrokenLaw) as error:
            check(steps, snapshot, baseline)
        assert error.value.law is law, sentence
        prefix = (
            f"Policy 'las' broke the law \"{law}\" at t={snapshot.now:g} s: job {error.value.job} "
        )
        assert str(error.value).startswith(prefix), sentence
        assert str(error.value).endswith('. See "Laws" in docs/policies.md.')
        check(steps, snapshot, {law, *baseline})
        with pytest.raises(BrokenLaw):
            check(steps, snapshot, set(Law) - {law})


def test_every_law_has_a_breaking_plan():
    assert set(BREAKING) == set(Law)


KEEPING = {
    "nothing happens": (HELD_BY_OLD, []),
    "a job without a checkpoint goes for a higher priority": (
        make_snapshot(TWO_NODES, old(unsaved_from=0.0), new(priority=1)),
        [stop(A), start(on(n1=(0, 1)), after=(A.id,))],
    ),
    "one whose processes stay shrinks": (
        LIVE,
        [change(A, on(n1=(0,)), FOR_NEW), start(on(n1=(1,)), after=(A.id,))],
    ),
    "one whose processes stay grows": (LIVE, [change(A, on(n1=(0, 1, 2, 3)), cause=FASTER)]),
    "a job without a checkpoint is suspended": (
        make_snapshot(TWO_NODES, old(unsaved_from=0.0, suspend=True)),
        [stop(A, Cause(CauseCode.SUSPENDED))],
    ),
    "a pod comes where it has room": (FEW_CPUS, [start(on(n1=(0,)))]),
    "a job grows where its pod is, although no CPU is free": (
        make_snapshot(counted(n1=0, n2=0), old(needs=CPU)),
        [change(old(needs=CPU), on(n1=(0, 1, 2, 3)))],
    ),
    "a job comes to where it has a pod yet": (
        make_snapshot(counted(n1=0), new(needs=CPU, pods_at=("n1",))),
        [start(on(n1=(0,)))],
    ),
    "a namespace gets what it may have": (LIMITED, [start(on(n2=(0,)), job="team/new")]),
    "another one has no limit": (LIMITED, [start(on(n2=(0, 1, 2, 3)), job="free/new")]),
    "a job shrinks where there is too much": (
        replace(LIMITED, limits=NamespaceLimits(max_gpus={"*": 0})),
        [change(HAS_TWO, on(n1=(0,)), cause=Cause(CauseCode.NAMESPACE_LIMIT))],
    ),
    "a newcomer gets what is free": (HELD_BY_OLD, [start(on(n1=(2, 3)))]),
    "a newcomer gets what its victim had": (
        HELD_BY_OLD,
        [stop(A), start(on(n1=(0, 1)), after=("old",))],
    ),
    "a newcomer gets what one gave up that shrinks": (
        HELD_WHOLLY,
        [change(WIDE, on(n1=(0, 1)), cause=FOR_NEW), start(on(n1=(2, 3)), after=("old",))],
    ),
    "a job moves and loses nothing": (OLD, [change(A, on(n2=(0, 1)), PACKING, Move)]),
    "a job shrinks for its own sake": (ALL_OF_N1, [change(WIDE, on(n1=(0, 1)), cause=FEWER)]),
    "a job is suspended": (OLD, [stop(A, Cause(CauseCode.SUSPENDED))]),
    "a job's node was lost": (
        make_snapshot(make_cluster(n2=4), A),
        [stop(A, Cause(CauseCode.NODE_LOST))],
    ),
    "a job shrinks to what its user allows now": (
        make_snapshot(TWO_NODES, old(options=(1,))),
        [change(A, on(n1=(0,)), cause=MAKES_ROOM)],
    ),
    "only the batch size changes": (
        make_snapshot(TWO_NODES, old(batch_size=64, batch=ELASTIC)),
        [change(A, on(n1=(0, 1)), batch_size=128)],
    ),
    "a mixture that the job can run on": (
        make_snapshot(TWO_TYPES, new(mixed=True, types=("B", "A"))),
        [start(on("A+B", n1=(0,), n2=(0,)))],
    ),
    "a job shrinks and keeps a broken GPU": (
        make_snapshot(make_cluster(make_node("n1", 4, unavailable=(0,))), WIDE),
        [change(WIDE, on(n1=(0, 1)), cause=FEWER)],
    ),
    "jobs receive reasons to wait": (
        make_snapshot(TWO_NODES, new(waiting=NO_ROOM), make_state("other")),
        [Wait(JobId("new"), Cause(CauseCode.BEHIND)), Wait(JobId("other"), NO_ROOM)],
    ),
}


@pytest.mark.parametrize("sentence", KEEPING)
def test_legal_plan_passes(sentence):
    snapshot, steps = KEEPING[sentence]
    check(steps, snapshot)
