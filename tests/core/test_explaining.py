"""The sentences that people read: true numbers of the moment, and one for every cause there is."""

from dataclasses import replace
from typing import Any

import pytest

from dlcore.explaining.phrases import between
from dlcore.explaining.sentences import (
    sentence_for_step,
    sentence_for_training,
    sentence_for_wait,
    sentences_for,
)
from dlcore.model import (
    Cause,
    CauseCode,
    Checkpoint,
    Cluster,
    Gpu,
    GpuDemand,
    Job,
    JobId,
    JobState,
    Mechanism,
    Node,
    NodeName,
    Placement,
    Snapshot,
    Training,
)
from dlcore.planning import Move, Reshape, Start, Stop, Wait
from dlcore.profiles import Costs, CostSeen, CostTerm, JobType, Profile, Speed, fold
from dlwire.messages import Shape
from tests.builders import make_cluster, make_snapshot, make_state

NOW = 1000.0
N1, N2, N3 = NodeName("n1"), NodeName("n2"), NodeName("n3")
RESNET = JobType("resnet18")
COSTS = Costs(process_initialization=20.0, checkpoint=5.0, process_termination=2.0)


def job(name: str, *options: int, **demand: Any) -> Job:
    gpus = GpuDemand(options=options or (1,), requested=(options or (1,))[-1], **demand)
    return Job(id=JobId(name), gpus=gpus, training=Training(iterations=10**6), type=RESNET)


def running(
    name: str, nodes: dict[NodeName, list[int]], *, minutes: float, kind: str = ""
) -> JobState:
    """A job that is predicted to end in this number of minutes."""
    return JobState(
        job(name, 1, 2, 4, 8),
        order=int(name[-1]),
        placement=Placement.of(nodes, kind),
        iterations_total=minutes * 60.0,
        observed_at=NOW,
        speed=1.0,
    )


def pending(
    name: str, *options: int, bound_to: tuple[NodeName, ...] = (), **demand: Any
) -> JobState:
    return JobState(job(name, *options, **demand), order=100, bound_to=bound_to)


def snapshot(*states: JobState, cluster: Cluster | None = None, **more: Any) -> Snapshot:
    return Snapshot(
        now=NOW,
        cluster=cluster or Cluster([Node.of("n1", 4), Node.of("n2", 4)]),
        running=tuple(state for state in states if state.placement is not None),
        pending=tuple(state for state in states if state.placement is None),
        **more,
    )


def wait(
    code: CauseCode, state: JobState, *others: JobState, ahead: str = "", gpus: int = 0, **more: Any
) -> str:
    cause = Cause(code, job=JobId(ahead) if ahead else None, gpus=gpus)
    return sentence_for_wait(snapshot(*others, state, **more), state, cause)


# --- waiting --------------------------------------------------------------------------------


def test_a_job_that_needs_gpus_on_one_node_hears_who_releases_them_and_when():
    told = wait(
        CauseCode.NO_ROOM_ON_ONE_NODE,
        pending("new", 4, max_nodes=1),
        running("job-6", {N1: [0, 1, 2]}, minutes=50),
        running("job-7", {N2: [0, 1]}, minutes=12),
    )
    assert told == (
        "waits: needs 4 GPUs on one node; the most free on one node is 2,"
        " job-7 releases 2 more in about 12 min"
    )


def test_a_job_that_may_spread_is_told_of_one_node_only_where_the_policy_wants_that():
    others = (running("job-6", {N1: [0, 1]}, minutes=50), running("job-7", {N2: [2]}, minutes=12))
    told = wait(CauseCode.NO_ROOM_ON_ONE_NODE, pending("new", 4), *others, gpus=4)
    assert told == (
        "waits: needs 4 GPUs on one node; the most free on one node is 3,"
        " job-7 releases 1 more in about 12 min"
    )


def test_several_jobs_that_release_together_are_counted():
    others = [running(f"job-{n}", {N1: [n]}, minutes=10 * (n + 1)) for n in range(4)]
    others.append(running("job-9", {N2: [0, 1, 2, 3]}, minutes=180))
    told = wait(CauseCode.NO_ROOM, pending("new", 2), *others)
    assert told == (
        "waits: needs 2 GPUs; none is free, job-0 and job-1 release 2 more in about 20 min"
    )
    assert wait(CauseCode.NO_ROOM, pending("new", 8), *others).endswith(
        "job-0 and 4 others release 8 more in about 3.0 h"
    )


def test_a_job_that_releases_nothing_of_use_is_not_named():
    told = wait(
        CauseCode.NO_ROOM,
        pending("new", 2, max_nodes=1),
        running("job-5", {N1: [0]}, minutes=5),
        running("job-6", {N2: [0, 1, 2]}, minutes=10),
        running("job-7", {N1: [1, 2, 3]}, minutes=20),
    )
    assert told.endswith("the most free on one node is 1, job-6 releases 3 more in about 10 min")


def test_where_types_do_not_mix_the_most_of_one_type_counts():
    cluster = Cluster([Node.of("n1", 4, "V100"), Node.of("n2", 4, "P100")])
    others = (
        running("job-1", {N1: [0, 1]}, minutes=1, kind="V100"),
        running("job-2", {N2: [0]}, minutes=2 * 24 * 60, kind="P100"),
    )
    told = wait(CauseCode.NO_ROOM, pending("new", 4), *others, cluster=cluster)
    assert told == (
        "waits: needs 4 GPUs of one type; the most free of one type is 3,"
        " job-1 releases 1 more in about 60 s"
    )
    mixed = wait(CauseCode.NO_ROOM, pending("new", 6, mixed=True), *others, cluster=cluster)
    assert mixed == "waits: needs 6 GPUs; 5 are free, job-1 releases 2 more in about 60 s"
    picky = wait(CauseCode.NO_ROOM, pending("new", 4, types=("P100",)), *others, cluster=cluster)
    assert picky == "waits: needs 4 GPUs; 3 are free, job-2 releases 1 more in about 2 days"


def test_a_limit_on_nodes_is_told():
    cluster = Cluster([Node.of(f"n{n}", 2) for n in (1, 2, 3)])
    state = pending("new", 4, max_nodes=2)
    one_each = running("job-1", {N1: [0], N2: [0], N3: [0]}, minutes=30)
    assert wait(CauseCode.NO_ROOM, state, one_each, cluster=cluster) == (
        "waits: needs 4 GPUs on at most 2 nodes; the most free on at most 2 nodes is 2,"
        " job-1 releases 2 more in about 30 min"
    )


def test_a_job_whose_smallest_option_would_fit_waits_for_what_it_requested():
    told = wait(CauseCode.NO_ROOM, pending("new", 1, 8), running("job-1", {N1: [0]}, minutes=30))
    assert told == "waits: needs 8 GPUs; 7 are free, job-1 releases 1 more in about 30 min"


def test_a_reason_that_has_passed_says_so():
    assert wait(CauseCode.NO_ROOM, pending("new", 4)) == "waits: needs 4 GPUs; 8 are free already"


def test_an_end_that_nobody_can_predict_is_not_made_up():
    unknown = JobState(
        job("job-1", 8), order=1, placement=Placement.of({N1: range(4), N2: range(4)}),
        iterations_total=float("inf"), speed=1.0,
    )  # fmt: skip
    told = wait(CauseCode.NO_ROOM, pending("new", 1), unknown)
    assert told == (
        "waits: needs 1 GPU; none is free, and it is not known when there will be enough"
    )


def test_gpus_of_lost_nodes_and_cordoned_ones_are_released_to_nobody():
    on_a_lost_node = running("job-1", {NodeName("gone"): [0, 1]}, minutes=1)
    cordoned = Node(N1, Node.of("n1", 4).gpus, schedulable=False)
    cluster = Cluster([cordoned, Node.of("n2", 2)])
    there = running("job-2", {N1: [0, 1, 2, 3]}, minutes=2)
    useful = running("job-3", {N2: [1]}, minutes=300)
    told = wait(
        CauseCode.NO_ROOM, pending("new", 2), on_a_lost_node, there, useful, cluster=cluster
    )
    assert told == "waits: needs 2 GPUs; 1 is free, job-3 releases 1 more in about 5.0 h"


def test_what_is_out_of_service_is_told_with_its_reason():
    broken = Node(N1, (*Node.of("n1", 3).gpus, Gpu(3, unavailable_because="it reported Xid 79")))
    taken = tuple(Gpu(n, unavailable_because="others have it") for n in range(4))
    some = Cluster([broken, Node.of("n2", 0)])
    all_of_it = Cluster([Node(N1, taken)])
    lack = "it is not known when there will be enough"
    assert wait(CauseCode.NO_ROOM, pending("new", 4), cluster=some) == (
        f"waits: needs 4 GPUs; 3 are free, and {lack}; 1 is out of service (n1/3: it reported Xid 79)"
    )
    assert wait(CauseCode.TOO_LARGE, pending("new", 4), cluster=all_of_it) == (
        "waits: needs at least 4 GPUs; even empty, this cluster could give it none;"
        " 4 are out of service (n1: others have it)"
    )


def test_who_stands_behind_hears_what_the_one_ahead_needs():
    ahead = pending("big", 8)
    told = wait(
        CauseCode.BEHIND,
        pending("new", 1),
        ahead,
        running("job-1", {N1: [0]}, minutes=30),
        ahead="big",
    )
    assert told == (
        "waits: big is ahead of it in the queue and needs 8 GPUs; 7 are free,"
        " job-1 releases 1 more in about 30 min"
    )
    nameless = wait(CauseCode.BEHIND, pending("new", 8), running("job-1", {N1: [0]}, minutes=30))
    assert nameless == (
        "waits: another job is ahead of it in the queue; needs 8 GPUs; 7 are free,"
        " job-1 releases 1 more in about 30 min"
    )
    gone = wait(CauseCode.BEHIND, pending("new", 1), ahead="gone")
    assert gone.startswith("waits: gone is ahead of it in the queue; needs 1 GPU; ")


@pytest.mark.parametrize(
    ("demand", "told"),
    [
        ({}, "needs at least 16 GPUs; even empty, this cluster could give it 8"),
        ({"max_nodes": 1}, "needs at least 16 GPUs; even empty, this cluster could give it 4 on one node"),
        ({"max_nodes": 2}, "needs at least 16 GPUs; even empty, this cluster could give it 8 on 2 nodes"),
        ({"types": ("A100", "V100")}, "needs GPUs of type A100 or V100; this cluster has P100"),
        ({"types": ("P100",)}, "needs at least 16 GPUs of type P100; even empty, this cluster could give it 8"),
    ],
)  # fmt: skip
def test_a_job_that_is_too_large_hears_what_there_is(demand: dict[str, Any], told: str):
    cluster = Cluster([Node.of("n1", 4, "P100"), Node.of("n2", 4, "P100")])
    assert (
        wait(CauseCode.TOO_LARGE, pending("new", 16, **demand), cluster=cluster) == f"waits: {told}"
    )


def test_a_cluster_without_names_of_types_or_without_nodes_says_so():
    state = pending("new", 1, types=("A100",))
    assert wait(CauseCode.TOO_LARGE, state) == (
        "waits: needs GPUs of type A100; this cluster has none of a known type"
    )
    assert wait(CauseCode.TOO_LARGE, pending("new", 1), cluster=Cluster([])) == (
        "waits: needs at least 1 GPU; no node of this cluster has a GPU to give"
    )


def test_an_incomplete_gang_hears_what_it_has():
    half = JobState(job("new", 4), order=1, placement=Placement.of({N1: [0, 1]}), gang=4)
    full = running("job-1", {N1: [2, 3], N2: [0, 1, 2, 3]}, minutes=30)
    assert wait(CauseCode.GANG_INCOMPLETE, half, full) == (
        "waits: has 2 of the 4 GPUs that it needs to begin;"
        " none is free, job-1 releases 6 more in about 30 min"
    )
    assert wait(CauseCode.GANG_INCOMPLETE, pending("new", 4)).startswith(
        "waits: has 0 of the 4 GPUs that it needs to begin; "
    )


def test_half_a_gang_releases_nothing_to_anybody():
    halves = [
        JobState(job(f"job-{n}", 8), order=n, placement=Placement.of({node: range(4)}), gang=8)
        for n, node in enumerate((N1, N2))
    ]
    told = wait(CauseCode.GANG_INCOMPLETE, halves[0], halves[1])
    assert told == (
        "waits: has 4 of the 8 GPUs that it needs to begin;"
        " none is free, and it is not known when there will be enough"
    )


def test_a_job_bound_to_its_checkpoint_hears_where_that_is():
    bound = pending("new", 4, bound_to=(N1,))
    told = wait(CauseCode.CHECKPOINT_ELSEWHERE, bound, running("job-1", {N1: [0]}, minutes=30))
    assert told == (
        "waits: needs 4 GPUs on n1, where its checkpoint is;"
        " the most free on one node is 3, job-1 releases 1 more in about 30 min"
    )
    lost = pending("new", 1, bound_to=(NodeName("gone"),))
    assert wait(CauseCode.CHECKPOINT_ELSEWHERE, lost).endswith(
        "on gone, where its checkpoint is; none is free,"
        " and it is not known when there will be enough"
    )
    unbound = wait(CauseCode.CHECKPOINT_ELSEWHERE, pending("new", 1))
    assert "on a node that is gone, where its checkpoint is" in unbound


@pytest.mark.parametrize(
    ("code", "until"),
    [
        (CauseCode.NEXT_ROUND, "for the next round, in which the policy shares out all GPUs"),
        (
            CauseCode.NEXT_LEASE,
            "for the end of a lease, when the policy shares out the GPUs of that job",
        ),
    ],
)
def test_a_job_that_waits_for_a_round_hears_what_it_needs_as_well(code: CauseCode, until: str):
    told = wait(code, pending("new", 8), running("job-1", {N1: [0, 1]}, minutes=12))
    assert told == (
        f"waits: {until}; it needs 8 GPUs; 6 are free, job-1 releases 2 more in about 12 min"
    )


@pytest.mark.parametrize("code", CauseCode)
@pytest.mark.parametrize("ahead", ["", "job-1"])
def test_every_cause_has_a_sentence_for_waiting(code: CauseCode, ahead: str):
    other = running("job-1", {N1: [0, 1, 2, 3]}, minutes=10)
    told = wait(code, pending("new", 4), other, ahead=ahead)
    assert told.startswith("waits: ")
    assert told.isprintable()
    assert "None" not in told


# --- what GPUs are worth to others ------------------------------------------------------------


def weighed(state: JobState, *others: JobState, code: CauseCode = CauseCode.NO_ROOM) -> str:
    """Return the text after the sentence, where a GPU is worth 1 to the first, 2 to the second …"""
    worths = {other.id: 1.0 + place for place, other in enumerate(others)}
    world = snapshot(*others, state)
    plain = sentence_for_wait(world, state, Cause(code))
    told = sentence_for_wait(world, state, Cause(code), {**worths, state.id: 1.0})
    assert told.startswith(plain)
    return told.removeprefix(plain)


FULL = (
    running("job-1", {N1: [0, 1]}, minutes=10),
    running("job-2", {N1: [2, 3]}, minutes=10),
    running("job-3", {N2: [0, 1, 2, 3]}, minutes=10),
)


def test_what_a_gpu_is_worth_to_the_others_is_compared_for_those_that_the_job_lacks():
    assert weighed(pending("new", 2), *FULL) == "; a GPU is worth as much to job-1 now, which runs"
    assert weighed(pending("new", 4), *FULL) == (
        "; a GPU is worth 1.5 times as much to job-1 and job-2 now, which run"
    )
    assert weighed(pending("new", 8), *FULL) == (
        "; a GPU is worth 2.2 times as much to job-1 and 2 others now, which run"
    )
    # Two of four are free: those of the first job would do.
    assert weighed(pending("new", 4), FULL[2], FULL[1]) == (
        "; a GPU is worth as much to job-3 now, which runs"
    )


def test_a_job_to_which_gpus_are_worth_more_hears_that_they_cannot_be_exchanged():
    state = pending("new", 2)
    told = sentence_for_wait(
        snapshot(*FULL, state), state, Cause(CauseCode.NO_ROOM), {FULL[0].id: 1.0, state.id: 1.3}
    )
    assert told.endswith(
        "; a GPU is worth 1.3 times as much to it as to job-1, which runs, but no exchange that"
        " gives it enough of them pays as a whole"
    )


def test_nothing_is_compared_where_no_worth_is_known_or_nothing_could_be_taken():
    state = pending("new", 8)
    world, one = snapshot(*FULL, state), {FULL[0].id: 1.0, state.id: 1.0}
    cause = Cause(CauseCode.NO_ROOM)
    assert sentence_for_wait(world, state, cause, one) == sentence_for_wait(world, state, cause)
    assert weighed(pending("new", 2), *FULL, code=CauseCode.SUSPENDED) == ""
    assert weighed(pending("new", 2)) == ""
    picky = pending("new", 2, types=("V100",))
    assert weighed(picky, *FULL) == ""


# --- steps ----------------------------------------------------------------------------------


STATE = running("job-1", {N1: [0, 1]}, minutes=18)
OLD = Placement.of({N1: [0, 1]})
WIDE = Placement.of({N1: [0, 1, 2, 3]})
AWAY = Placement.of({N2: [0, 1]})


def steps(cause: Cause) -> list[Any]:
    me, new = JobId("job-1"), JobId("new")
    return [
        Start(new, AWAY, cause),
        Reshape(me, OLD, WIDE, cause),
        Move(me, OLD, AWAY, cause),
        Stop(me, OLD, cause),
        Wait(new, cause),
        Wait(JobId("gone"), cause),
        Reshape(JobId("gone"), OLD, WIDE, cause),
    ]


def test_a_loss_tells_how_much_more_a_gpu_is_worth_to_the_other_job():
    world = make_snapshot(make_cluster(n1=4), make_state("old", holds={"n1": (0, 1)}))
    cause = Cause(CauseCode.OUTRANKED, JobId("bert"), worth=2.1)
    stop = Stop(JobId("old"), Placement.of({N1: [0, 1]}), cause)
    assert sentence_for_step(world, stop) == (
        "gives back 2 GPUs: bert comes before it, because a GPU is worth 2.1 times as much there now"
    )


@pytest.mark.parametrize("code", CauseCode)
@pytest.mark.parametrize("other", [None, JobId("job-9")])
def test_every_cause_has_a_sentence_in_every_step(code: CauseCode, other: JobId | None):
    world = snapshot(STATE, pending("new", 4))
    for step in steps(Cause(code, job=other)):
        told = sentence_for_step(world, step)
        assert told.split()[0] in {"starts", "goes", "moves", "gives", "waits:"}
        assert told.isprintable()
        assert "None" not in told


def test_a_start_says_where_and_for_whom_it_waits():
    world = snapshot(STATE, pending("new", 2))
    turn = Cause(CauseCode.ITS_TURN)
    assert sentence_for_step(world, Start(JobId("new"), AWAY, turn)) == (
        "starts on 2 GPUs on n2: it is its turn"
    )
    after = (JobId("job-7"), JobId("job-8"))
    assert sentence_for_step(world, Start(JobId("new"), AWAY, turn, after=after[:1])).endswith(
        "it is its turn; it begins once job-7 has released them"
    )
    assert sentence_for_step(world, Start(JobId("new"), AWAY, turn, after=after)).endswith(
        "it is its turn; it begins once job-7 and job-8 have released them"
    )
    assert sentence_for_step(world, Start(JobId("new"), AWAY, turn, gang=4)).endswith(
        "it is its turn; it needs 4 to begin, and they idle until then"
    )


def test_a_stop_names_who_profits():
    world = snapshot(STATE)
    outranked = Cause(CauseCode.OUTRANKED, job=JobId("job-9"))
    assert sentence_for_step(world, Stop(JobId("job-1"), OLD, outranked)) == (
        "gives back 2 GPUs: job-9 comes before it"
    )


def test_what_was_never_measured_of_a_change_is_not_said_to_take_no_time():
    speeds = {Shape(2): Speed(1.0), Shape(4): Speed(2.0)}
    faster = Reshape(JobId("job-1"), OLD, WIDE, Cause(CauseCode.FASTER_WITH_MORE))

    def cost(profile, state=STATE):
        said = sentence_for_step(snapshot(state, profiles={RESNET: profile}), faster)
        return said.rpartition("; ")[2]

    unknown = Profile(RESNET, speeds=speeds)
    assert cost(unknown) == "how long the change takes has not been measured yet"
    started = fold(unknown, CostSeen(CostTerm.PROCESS_INITIALIZATION, 7.0, 2))
    assert cost(started) == "the change takes about 7 s"
    saving = replace(STATE, job=replace(STATE.job, checkpoint=Checkpoint(signal="SIGUSR1")))
    assert cost(started, saving) == (
        "the change takes about 7 s and its checkpoint, which has not been timed yet"
    )
    saved = fold(started, CostSeen(CostTerm.CHECKPOINT, 2.0, 2))
    assert cost(saved, saving) == "the change takes about 9 s"


def test_a_change_for_the_sake_of_speed_compares_the_ends():
    speeds = {Shape(2): Speed(1.0), Shape(4): Speed(2.0)}
    world = snapshot(STATE, costs=COSTS, profiles={RESNET: Profile(RESNET, speeds=speeds)})
    faster = Reshape(JobId("job-1"), OLD, WIDE, Cause(CauseCode.FASTER_WITH_MORE))
    assert sentence_for_step(world, faster) == (
        "goes from 2 to 4 GPUs on n1: it is done sooner with more GPUs,"
        " in about 10 min instead of about 18 min; the change takes about 27 s"
    )
    recreated = snapshot(STATE, costs=COSTS, profiles=world.profiles, mechanism=Mechanism.RECREATE)
    assert "the change takes about 27 s" in sentence_for_step(recreated, faster)


def test_a_comparison_that_the_profile_of_today_does_not_bear_out_is_left_away():
    speeds = {Shape(2): Speed(1.0), Shape(4): Speed(0.5)}
    world = snapshot(STATE, profiles={RESNET: Profile(RESNET, speeds=speeds)})
    step = Reshape(JobId("job-1"), OLD, WIDE, Cause(CauseCode.FASTER_WITH_MORE))
    assert sentence_for_step(world, step) == (
        "goes from 2 to 4 GPUs on n1: it is done sooner with more GPUs"
    )


def test_a_move_says_from_where_to_where():
    step = Move(JobId("job-1"), OLD, AWAY, Cause(CauseCode.PACKING))
    assert sentence_for_step(snapshot(STATE), step) == (
        "moves from 2 GPUs on n1 to 2 GPUs on n2:"
        " it is on fewer nodes then, or leaves one free for others"
    )


def test_a_wait_in_a_plan_reads_as_the_wait_of_the_job():
    state = pending("new", 4)
    world = snapshot(state)
    cause = Cause(CauseCode.NO_ROOM)
    assert sentence_for_step(world, Wait(JobId("new"), cause)) == sentence_for_wait(
        world, state, cause
    )


# --- who waits, waits for what the others leave -------------------------------------------


def test_who_waits_is_told_what_is_left_when_the_others_have_what_was_decided():
    turn = Cause(CauseCode.ITS_TURN)
    first, second = pending("first", 4), pending("second", 4)
    second = replace(second, order=101)
    world = snapshot(first, second, cluster=Cluster([Node.of(N1, 4)]))
    start = Start(first.id, Placement.of({N1: (0, 1, 2, 3)}), turn)
    wait = Wait(second.id, Cause(CauseCode.NO_ROOM))
    told = sentences_for(world, (start, wait))
    assert told[first.id] == "starts on 4 GPUs on n1: it is its turn"
    assert told[second.id].startswith("waits: needs 4 GPUs; none is free, ")


def test_what_a_plan_releases_is_free_for_who_waits():
    old = running("old-0", {N1: [0, 1]}, minutes=10)
    new = pending("new", 4)
    assert old.placement is not None
    stop = Stop(old.id, old.placement, Cause(CauseCode.OUTRANKED))
    world = snapshot(old, new, cluster=Cluster([Node.of(N1, 2)]))
    told = sentences_for(world, (stop, Wait(new.id, Cause(CauseCode.NO_ROOM, gpus=2))))
    assert told[new.id] == "waits: needs 2 GPUs; 2 are free already"


def test_a_plan_of_waiting_alone_is_told_of_the_snapshot_as_it_is():
    old = running("old-0", {N1: [0, 1]}, minutes=10)
    new = pending("new", 2)
    world = snapshot(old, new, cluster=Cluster([Node.of(N1, 2)]))
    wait = Wait(new.id, Cause(CauseCode.NO_ROOM))
    assert sentences_for(world, (wait,))[new.id] == sentence_for_step(world, wait)


# --- who trains ---------------------------------------------------------------------------


def test_who_trains_is_told_how_fast_how_far_and_for_how_long():
    state = running("job-0", {N1: [0, 1]}, minutes=10)
    state = replace(state, iterations_done=150.0)
    assert sentence_for_training(snapshot(state), state) == (
        "trains on 2 GPUs on n1 at 1 iterations/s; 25 % is done, and about 7 to 9 min is left"
    )


def test_nothing_is_all_done_while_it_trains():
    state = replace(running("job-0", {N1: [0]}, minutes=10), iterations_done=599.99)
    told = sentence_for_training(snapshot(state), state)
    assert told.endswith("; 99.9 % is done, and less than 1 s is left")


def test_who_goes_on_beyond_its_end_is_not_said_to_be_nearly_there():
    state = replace(running("job-0", {N1: [0]}, minutes=10), iterations_done=1880.0)
    assert sentence_for_training(snapshot(state), state) == (
        "trains on 1 GPU on n1 at 1 iterations/s; it has done 1,880 iterations and goes on, where"
        " 600 were expected"
    )


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [
        (700.0, 900.0, "about 12 to 15 min"),
        (50.0, 200.0, "about 50 s to 3 min"),
        (610.0, 620.0, "about 10 min"),
        (0.1, 0.2, "less than 1 s"),
        (0.1, 20.0, "at most 20 s"),
        (3000.0, 7200.0, "about 50 min to 2.0 h"),
        (700.0, float("inf"), "about 12 min or more"),
    ],
)
def test_bounds_are_told_as_people_tell_them(low, high, told):
    assert between(low, high) == told


def test_of_a_job_of_unknown_length_only_the_speed_is_told():
    state = replace(running("job-0", {N1: [0]}, minutes=10), iterations_total=float("inf"))
    assert sentence_for_training(snapshot(state), state) == (
        "trains on 1 GPU on n1 at 1 iterations/s; it is not known yet how many iterations it needs"
    )


def test_of_a_job_whose_speed_nobody_knows_no_end_is_told():
    state = replace(running("job-0", {N1: [0]}, minutes=10), speed=0.0)
    told = sentence_for_training(snapshot(state, profiles={}), state)
    assert told == "trains on 1 GPU on n1; 0 % is done"
