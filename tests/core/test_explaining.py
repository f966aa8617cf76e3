"""The sentences for users: true numbers of the moment, and a sentence for every cause."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from dljob.core.explaining.phrases import between
from dljob.core.explaining.sentences import (
    sentence_for_step,
    sentence_for_training,
    sentence_for_wait,
    sentences_for,
)
from dljob.core.model import (
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
from dljob.core.planning import Move, Plan, Reshape, Start, Stop, Wait
from dljob.core.profiles import Costs, CostSeen, CostTerm, JobType, Profile, Speed, fold
from dljob_wire.messages import Shape

NOW = 1000.0
N1, N2 = NodeName("n1"), NodeName("n2")
RESNET = JobType("resnet18")
COSTS = Costs(process_initialization=20.0, checkpoint=5.0, process_termination=2.0)


def job(name: str, *options: int, **demand: Any) -> Job:
    gpus = GpuDemand(options=options or (1,), requested=(options or (1,))[-1], **demand)
    return Job(id=JobId(name), gpus=gpus, training=Training(iterations=10**6), type=RESNET)


def running(name: str, nodes: dict[NodeName, list[int]], *, minutes: float) -> JobState:
    return JobState(
        job(name, 1, 2, 4, 8),
        order=int(name[-1]),
        placement=Placement.of(nodes),
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


def wait(code: CauseCode, state: JobState, *others: JobState, ahead: str = "", **more: Any) -> str:
    cause = Cause(code, job=JobId(ahead) if ahead else None)
    return sentence_for_wait(snapshot(*others, state, **more), state, cause=cause)


def test_wait_on_one_node_names_the_job_to_end():
    text = wait(
        CauseCode.NO_ROOM_ON_ONE_NODE,
        pending("new", 4, max_nodes=1),
        running("job-6", {N1: [0, 1, 2]}, minutes=50),
        running("job-7", {N2: [0, 1]}, minutes=12),
    )
    assert text == (
        "waits: needs 4 GPUs on one node; the most free on one node is 2,"
        " and 2 more when job-7 ends"
    )


def test_jobs_that_end_first_are_counted():
    others = [running(f"job-{n}", {N1: [n]}, minutes=10 * (n + 1)) for n in range(4)]
    others.append(running("job-9", {N2: [0, 1, 2, 3]}, minutes=180))
    text = wait(CauseCode.NO_ROOM, pending("new", 2), *others)
    assert text == "waits: needs 2 GPUs; none is free until job-0 and job-1 end"
    assert wait(CauseCode.NO_ROOM, pending("new", 8), *others).endswith(
        "none is free until job-0 and 4 others end"
    )


def test_unpredictable_end_is_omitted():
    unknown = JobState(
        job("job-1", 8), order=1, placement=Placement.of({N1: range(4), N2: range(4)}),
        iterations_total=float("inf"), speed=1.0,
    )  # fmt: skip
    text = wait(CauseCode.NO_ROOM, pending("new", 1), unknown)
    assert text == "waits: needs 1 GPU; none is free"


def test_out_of_service_gpus_are_named_with_reason():
    broken = Node(N1, (*Node.of("n1", 3).gpus, Gpu(3, unavailable_because="it reported Xid 79")))
    taken = tuple(Gpu(n, unavailable_because="others have it") for n in range(4))
    some = Cluster([broken, Node.of("n2", 0)])
    all_of_it = Cluster([Node(N1, taken)])
    assert wait(CauseCode.NO_ROOM, pending("new", 4), cluster=some) == (
        "waits: needs 4 GPUs; 3 are free; 1 is out of service (n1/3: it reported Xid 79)"
    )
    assert wait(CauseCode.TOO_LARGE, pending("new", 4), cluster=all_of_it) == (
        "waits: needs at least 4 GPUs; even empty, this cluster could give it none;"
        " 4 are out of service (n1: others have it)"
    )


def test_queued_job_names_the_job_ahead():
    ahead = pending("big", 8)
    text = wait(
        CauseCode.BEHIND,
        pending("new", 1),
        ahead,
        running("job-1", {N1: [0]}, minutes=30),
        ahead="big",
    )
    assert text == (
        "waits: big is ahead of it in the queue and needs 8 GPUs; 7 are free, and 1 more when job-1 ends"
    )
    nameless = wait(CauseCode.BEHIND, pending("new", 8), running("job-1", {N1: [0]}, minutes=30))
    assert nameless == (
        "waits: another job is ahead of it in the queue; needs 8 GPUs; 7 are free, and 1 more when job-1 ends"
    )
    gone = wait(CauseCode.BEHIND, pending("new", 1), ahead="gone")
    assert gone.startswith("waits: another job is ahead of it in the queue; needs 1 GPU; ")


@pytest.mark.parametrize(
    ("demand", "text"),
    [
        ({}, "needs at least 16 GPUs; even empty, this cluster could give it 8"),
        ({"max_nodes": 1}, "needs at least 16 GPUs; even empty, this cluster could give it 4 on one node"),
        ({"max_nodes": 2}, "needs at least 16 GPUs; even empty, this cluster could give it 8 on 2 nodes"),
        ({"types": ("A100", "V100")}, "needs GPUs of type A100 or V100; this cluster has P100"),
        ({"types": ("P100",)}, "needs at least 16 GPUs of type P100; even empty, this cluster could give it 8"),
    ],
)  # fmt: skip
def test_too_large_job_names_the_limit(demand: dict[str, Any], text: str):
    cluster = Cluster([Node.of("n1", 4, "P100"), Node.of("n2", 4, "P100")])
    assert (
        wait(CauseCode.TOO_LARGE, pending("new", 16, **demand), cluster=cluster) == f"waits: {text}"
    )


def test_bound_job_names_the_node_of_its_checkpoint():
    bound = pending("new", 4, bound_to=(N1,))
    text = wait(CauseCode.CHECKPOINT_ELSEWHERE, bound, running("job-1", {N1: [0]}, minutes=30))
    assert text == (
        "waits: needs 4 GPUs on n1, where its checkpoint is;"
        " the most free on one node is 3, and 1 more when job-1 ends"
    )
    unbound = wait(CauseCode.CHECKPOINT_ELSEWHERE, pending("new", 1))
    assert "on a node that is gone, where its checkpoint is" in unbound


RELEASE = (
    "or set spec.checkpoint.shared to true, and the job begins on another node with the files in its"
    " checkpoint.path there"
)


def test_bound_job_explains_its_cordoned_or_lost_node():
    cordoned = Cluster([replace(Node.of("n1", 4), schedulable=False), Node.of("n2", 4)])
    bound = pending("new", 1, bound_to=(N1,))
    text = "waits: needs 1 GPU on n1, where its checkpoint is"
    assert wait(CauseCode.CHECKPOINT_ELSEWHERE, bound, cluster=cordoned) == (
        f"{text}; n1 is cordoned: uncordon it, {RELEASE}"
    )
    gone = Cluster([Node.of("n2", 4)])
    assert wait(CauseCode.CHECKPOINT_ELSEWHERE, bound, cluster=gone) == (
        f"{text}; n1 is gone or does not answer: bring it back, {RELEASE}"
    )


def test_every_cause_has_a_wait_sentence():
    other = running("job-1", {N1: [0, 1, 2, 3]}, minutes=10)
    for code, ahead in itertools.product(CauseCode, ("", "job-1")):
        text = wait(code, pending("new", 4), other, ahead=ahead)
        assert text.startswith("waits: "), code
        assert text.isprintable(), code
        assert "None" not in text, code


HALF = {RESNET: Profile(RESNET, speeds={Shape(2): Speed(0.5), Shape(4): Speed(1.0)})}
FULL = (
    running("job-1", {N1: [0, 1, 2, 3]}, minutes=10),
    running("job-2", {N2: [0, 1, 2, 3]}, minutes=20),
)


def weighed(state: JobState, *others: JobState, own: float = 1.0, **more: Any) -> str:
    """Return the text after the sentence; a GPU is worth 2 to the first other, 3 to the second …"""
    worths = {other.id: 2.0 + place for place, other in enumerate(others)}
    world = snapshot(*others, state, costs=COSTS, profiles=HALF, **more)
    plain = sentence_for_wait(world, state, cause=Cause(CauseCode.NO_ROOM))
    text = sentence_for_wait(
        world, state, cause=Cause(CauseCode.NO_ROOM), worths={**worths, state.id: own}
    )
    assert text.startswith(plain)
    return text.removeprefix(plain)


def test_wait_compares_gain_and_cost_of_a_start_now():
    # On two GPUs job-1 needs 20 min instead of 10, and 27 s for the change.
    assert weighed(pending("new", 2), *FULL) == (
        "; a start now would save it up to 10 min of waiting and cost job-1 up to 10 min"
    )


def test_cost_for_a_stopped_job_is_its_delay():
    takes = replace(pending("new", 4), iterations_total=300.0)
    (whole, other) = FULL
    whole = replace(whole, job=replace(whole.job, gpus=GpuDemand(options=(4,), requested=4)))
    assert weighed(takes, whole, other) == (
        "; a start now would save it up to 10 min of waiting and cost job-1 up to 6 min"
    )
    # Eight GPUs take both.
    everything = replace(pending("new", 8), iterations_total=300.0)
    assert weighed(everything, *FULL).endswith(
        "save it up to 20 min of waiting and cost job-1 and job-2 up to 7 min together"
    )


def test_unknown_cost_is_omitted():
    endless = replace(FULL[0], iterations_total=float("inf"))
    assert weighed(pending("new", 2), endless, FULL[1]) == ""
    assert weighed(pending("new", 8), *FULL) == ""


def test_figures_from_guesses_are_omitted():
    def unmeasured(state: JobState) -> JobState:
        return replace(state, job=replace(state.job, type=JobType("new")))

    new, (first, second) = pending("new", 2), FULL
    assert weighed(unmeasured(new), *FULL) == ""
    assert weighed(new, unmeasured(first), second) == ""
    # The waiting time rests on the ends of both, and only the first would lose GPUs.
    all_of_one = replace(pending("new", 8), iterations_total=300.0)
    first = replace(first, job=replace(first.job, gpus=GpuDemand(options=(4,), requested=4)))
    assert weighed(all_of_one, first, unmeasured(second)) == ""
    assert weighed(new, second, unmeasured(replace(FULL[0], iterations_total=60.0))) == (
        "; a start now would cost job-2 up to 20 min"
    )
    step = Reshape(
        JobId("job-1"),
        Placement.of({N1: range(4)}),
        Placement.of({N1: range(2)}),
        Cause(CauseCode.MAKES_ROOM, JobId("new")),
    )
    for states in ((unmeasured(FULL[0]), second, new), (*FULL, unmeasured(new))):
        text = sentence_for_step(snapshot(*states, costs=COSTS, profiles=HALF), step)
        assert text == "goes from 4 to 2 GPUs on n1: it makes room for new"


def test_higher_priority_is_named():
    first = replace(FULL[0], job=replace(FULL[0].job, priority=3))
    assert "cost job-1 (priority 3) up to 10 min" in weighed(pending("new", 2), first, FULL[1])


def test_wait_explains_that_no_exchange_pays():
    assert weighed(pending("new", 2), *FULL, own=2.6).endswith(
        "up to 10 min, but no exchange that gives it enough GPUs pays as a whole"
    )


def test_shrink_states_gain_of_other_and_own_delay():
    new = pending("new", 2)
    old, less = Placement.of({N1: range(4)}), Placement.of({N1: range(2)})
    step = Reshape(JobId("job-1"), old, less, Cause(CauseCode.MAKES_ROOM, JobId("new")))
    done = "goes from 4 to 2 GPUs on n1: it makes room for new"

    def text(*states: JobState, profiles: dict[JobType, Profile] = HALF) -> str:
        return sentence_for_step(snapshot(*states, costs=COSTS, profiles=profiles), step)

    assert text(*FULL, new) == (
        f"{done}, which starts up to 10 min sooner, and this job ends up to 10 min later"
    )
    urgent = replace(new, job=replace(new.job, priority=10))
    assert text(*FULL, urgent).startswith(f"{done} (priority 10), which starts ")
    endless = [replace(each, iterations_total=float("inf")) for each in FULL]
    assert text(*endless, new) == done
    # A job that has GPUs gets more of them and does not start.
    assert text(FULL[0], running("new-2", {N2: [0]}, minutes=5)) == (
        f"{done}, and this job ends up to 10 min later"
    )


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


def test_every_cause_has_a_sentence_for_every_step():
    world = snapshot(STATE, pending("new", 4))
    for code, other in itertools.product(CauseCode, (None, JobId("job-9"))):
        for step in steps(Cause(code, job=other)):
            text = sentence_for_step(world, step)
            assert text.split()[0] in {"starts", "goes", "moves", "gives", "waits:"}, code
            assert text.isprintable(), code
            assert "None" not in text, code


def test_start_names_nodes_and_predecessors():
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


def test_unmeasured_cost_of_a_change_is_not_zero():
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


def test_change_for_speed_compares_the_ends():
    speeds = {Shape(2): Speed(1.0), Shape(4): Speed(2.0)}
    world = snapshot(STATE, costs=COSTS, profiles={RESNET: Profile(RESNET, speeds=speeds)})
    faster = Reshape(JobId("job-1"), OLD, WIDE, Cause(CauseCode.FASTER_WITH_MORE))
    assert sentence_for_step(world, faster) == (
        "goes from 2 to 4 GPUs on n1: it is done sooner with more GPUs,"
        " in about 10 min instead of about 18 min; the change takes about 27 s"
    )
    pauses = replace(COSTS, live_grow=2.0)
    live = snapshot(replace(STATE, is_live=True), costs=pauses, profiles=world.profiles)
    assert sentence_for_step(live, faster).endswith("; its processes stay, and pause for about 2 s")
    recreated = snapshot(STATE, costs=COSTS, profiles=world.profiles, mechanism=Mechanism.RECREATE)
    assert "the change takes about 27 s" in sentence_for_step(recreated, faster)
    assert sentence_for_step(snapshot(STATE, costs=COSTS), faster).endswith("with more GPUs")


def test_change_of_the_batch_is_named():
    state = replace(STATE, job=replace(STATE.job, training=Training(iterations=9, batch_size=64)))
    grows = Reshape(JobId("job-1"), OLD, WIDE, Cause(CauseCode.FASTER_WITH_MORE), batch_size=128)
    done = "goes from 2 to 4 GPUs on n1"
    assert sentence_for_step(snapshot(state), grows).startswith(
        f"{done} with batches of 128 instead of 64: it is done"
    )
    doubled = replace(state, batch_size=128)
    assert sentence_for_step(snapshot(doubled), grows).startswith(f"{done}: it is done")
    assert sentence_for_training(snapshot(doubled), doubled).startswith(
        "trains on 2 GPUs on n1 with batches of 128 instead of 64"
    )


def test_wait_counts_gpus_after_the_other_steps():
    turn = Cause(CauseCode.ITS_TURN)
    first, second = pending("first", 4), pending("second", 4)
    second = replace(second, order=101)
    world = snapshot(first, second, cluster=Cluster([Node.of(N1, 4)]))
    start = Start(first.id, Placement.of({N1: (0, 1, 2, 3)}), turn)
    wait = Wait(second.id, Cause(CauseCode.NO_ROOM))
    text = sentences_for(world, Plan((start, wait)), {})
    assert text[first.id] == "starts on 4 GPUs on n1: it is its turn"
    assert text[second.id].startswith("waits: needs 4 GPUs; none is free")


def test_training_sentence_names_the_gpus_that_an_unsaved_job_keeps():
    unsaved = replace(STATE, unsaved_from=0.0)
    world = snapshot(unsaved)
    assert "; it keeps these GPUs as long as no checkpoint saves its work" in sentence_for_training(
        world, unsaved
    )
    live = sentence_for_training(world, replace(unsaved, is_live=True))
    assert "; it keeps some of these GPUs, and may lose or get others live, as long as" in live
    wide = replace(unsaved, is_live=True, placement=Placement.of({N1: [0], N2: [0]}))
    told = sentence_for_training(world, wide)
    assert "may lose others live, but on several nodes get none, as long as" in told


def test_training_sentence_has_speed_progress_and_rest():
    state = running("job-0", {N1: [0, 1]}, minutes=10)
    state = replace(state, iterations_done=150.0)
    text = "trains on 2 GPUs on n1 at 1 iterations/s; 25 % is done"
    assert sentence_for_training(snapshot(state, profiles=HALF), state) == (
        f"{text}, and about 7 to 8 min is left"
    )
    assert sentence_for_training(snapshot(state), state) == text


def test_job_past_its_expected_end_says_so():
    state = replace(running("job-0", {N1: [0]}, minutes=10), iterations_done=1880.0)
    assert sentence_for_training(snapshot(state), state) == (
        "trains on 1 GPU on n1 at 1 iterations/s; it has done 1,880 iterations and goes on, where"
        " 600 were expected"
    )


@pytest.mark.parametrize(
    ("low", "high", "text"),
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
def test_bounds_are_readable(low, high, text):
    assert between(low, high) == text
