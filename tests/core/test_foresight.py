"""A whole decision of ``foresight``, and its memory."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pytest

from dljob.core import cycle
from dljob.core.contract import Decision, View
from dljob.core.model import Cluster, JobId, JobState, Snapshot
from dljob.core.planning import Start, Step, Wait
from dljob.core.policies.foresight import Foresight
from dljob.core.policies.foresight.bids import (
    FEWEST_SAMPLES,
    MOST_SAMPLES,
    OVERDUE_SHARE,
    Bid,
    Bidders,
)
from dljob.core.policies.foresight.lengths import Experience
from dljob.core.policies.foresight.memory import FORM, Memory, State
from dljob.core.policies.foresight.policy import _kept
from dljob.core.predicting.conclusions import Kept
from dljob.core.profiles import Costs
from dljob.sim import policies
from dljob_wire.messages import Shape
from tests.builders import decide, make_cluster, make_profile, make_snapshot, make_state, make_view

UNKNOWN = math.inf


def allocate(snapshot: Snapshot, **options: float) -> Decision:
    return Foresight(**options).allocate(make_view(snapshot))


def count_gpus(decision: Decision) -> dict[str, int]:
    return {str(job): share.gpus for job, share in decision.shares.items()}


def recall(decision: Decision) -> Memory:
    assert isinstance(decision.state, State)
    return decision.state.memory


def test_first_size_leaves_gpus_for_later_jobs():
    """At a known price it does not take all GPUs only because they are idle now."""
    options = tuple(range(1, 9))
    profiles = [make_profile({gpus: math.sqrt(gpus) for gpus in options})]

    def start(levels: Mapping[str, float], *, keeps_first: bool) -> int:
        state = make_state(options=options, iterations_total=1e5, keeps_first=keeps_first)
        memory = State(Memory(0.0, levels))
        cluster = make_cluster(n1=8)
        snapshot = make_snapshot(cluster, state, profiles=profiles, policy_state=memory)
        return count_gpus(allocate(snapshot))["job"]

    assert start({}, keeps_first=True) == 8
    assert start({"": 1.0}, keeps_first=False) == 8
    assert 1 <= start({"": 1.0}, keeps_first=True) < 4


def make_busy() -> Snapshot:
    states = [
        make_state("runs", holds={"n1": range(4)}, iterations_total=1e5),
        make_state("unknown", holds={"n2": range(2)}, iterations_total=UNKNOWN),
        *(
            make_state(f"new{n}", iterations_total=total, submitted_at=float(n))
            for n, total in enumerate((100.0, UNKNOWN, 5000.0, UNKNOWN))
        ),
    ]
    costs = Costs(process_initialization=10, checkpoint=5)
    return make_snapshot(make_cluster(n1=4, n2=4), *states, now=100.0, costs=costs)


def test_decision_depends_only_on_the_view():
    first = allocate(make_busy())
    _kept.latest.clear()
    second = allocate(make_busy())
    assert first.shares == second.shares
    assert list(first.shares) == list(second.shares)
    assert first.state == second.state


def test_shorter_job_gets_more_gpus():
    root = make_profile({gpus: math.sqrt(gpus) for gpus in range(1, 9)})
    short = make_state("short", options=tuple(range(1, 9)), iterations_total=100.0)
    long = make_state("long", options=tuple(range(1, 9)), iterations_total=10_000.0)
    snapshot = make_snapshot(make_cluster(n1=8), long, short, profiles=[root])
    # Shares go with the squares of the prices, and those with the root of 3 and 1.
    assert count_gpus(allocate(snapshot, ageing=0.0)) == {"short": 6, "long": 2}


def share_out(scale: float) -> dict[str, int]:
    options = tuple(range(1, 17))
    old = make_state("old", options=options, iterations_total=1e4 * scale)
    young = make_state("young", options=options, iterations_total=1e2 * scale,
                       submitted_at=1e4 * scale)  # fmt: skip
    snapshot = make_snapshot(make_cluster(n1=16), old, young, now=1e4 * scale)
    return count_gpus(allocate(snapshot, ageing=1.0))


def test_ageing_is_independent_of_the_time_scale():
    assert share_out(0.01) == share_out(1.0) == share_out(1000.0)


TYPES = [
    make_profile({Shape(n, 1, kind): factor * n**0.8 for n in (1, 2, 4) for kind, factor in
                  (("V100", 4.0), ("T4", 1.0))})
]  # fmt: skip


def decide_on_types(*states: JobState, **sizes: tuple[int, str]) -> dict[str, Step]:
    return decide(make_snapshot(make_cluster(**sizes), *states, profiles=TYPES))


def test_job_takes_second_choice_of_type():
    states = [make_state(f"job{n}", options=(4,)) for n in range(2)]
    steps = decide_on_types(*states, n1=(4, "T4"), n2=(4, "V100"))
    kinds = {step.placement.gpu_type for step in steps.values() if isinstance(step, Start)}
    assert kinds == {"T4", "V100"}


def test_mixed_job_starts_on_several_types():
    steps = decide_on_types(make_state(options=(4,), mixed=True), n1=(2, "T4"), n2=(2, "V100"))
    assert isinstance(steps["job"], Start)
    assert steps["job"].placement.gpu_type == "T4+V100"


def test_mixed_running_job_keeps_its_gpus():
    held = make_cluster(n1=(2, "T4"), n2=(2, "V100"))
    mixed = make_state(
        "mixed", options=(3,), mixed=True, holds={"n1": (0, 1), "n2": (0,)}, gpu_type="T4+V100"
    )
    new = make_state("new", options=(1, 2))
    steps = decide(make_snapshot(held, mixed, new, profiles=TYPES))
    assert "mixed" not in steps
    assert isinstance(steps["new"], Start)
    assert steps["new"].placement.gpus == 1


def remember(decision: Decision, cluster: Cluster, *states: JobState, now: float) -> Decision:
    return allocate(make_snapshot(cluster, *states, now=now, policy_state=decision.state))


CLUSTER = make_cluster(n1=4)
LONG = make_state("long", options=(1,), holds={"n1": (0,)}, iterations_total=UNKNOWN)


def test_lengths_are_normalized_to_one_type():
    # A V100 is four times as fast as a T4, which is the type that lengths are in.
    cluster = make_cluster(n1=(4, "T4"), n2=(4, "V100"))
    jobs = [
        make_state(kind, options=(1,), holds={node: (0,)}, gpu_type=kind, speed=speed,
                   iterations_total=UNKNOWN, iterations_done=400.0)
        for kind, node, speed in (("T4", "n1", 1.0), ("V100", "n2", 4.0))
    ]  # fmt: skip
    first = allocate(make_snapshot(cluster, *jobs, profiles=TYPES))
    ended = make_snapshot(cluster, now=100.0, profiles=TYPES, policy_state=first.state)
    assert recall(allocate(ended)).lengths == pytest.approx({"T4": 500.0, "V100": 800.0})


def test_stopped_job_has_not_ended():
    first = allocate(make_snapshot(CLUSTER, LONG))
    waits = make_state("long", options=(1,), iterations_total=UNKNOWN, iterations_done=100.0)
    second = remember(first, CLUSTER, waits, now=100.0)
    assert recall(second).lengths == {}
    third = remember(second, CLUSTER, now=200.0)
    assert recall(third).lengths == {"long": 100.0}
    assert recall(third).spans == {"long": 200.0}


def test_suspended_job_has_not_ended():
    first = allocate(make_snapshot(CLUSTER, LONG))
    suspended = replace(LONG, job=replace(LONG.job, suspend=True), placement=None)
    snapshot = make_snapshot(CLUSTER, suspended, now=100.0, policy_state=first.state)
    plan = cycle.schedule(snapshot, Foresight())
    again = cycle.schedule(
        replace(snapshot, now=300.0, policy_state=plan.policy_state), Foresight()
    )
    assert isinstance(again.policy_state, State)
    assert again.policy_state.memory.lengths == {}
    ended = allocate(make_snapshot(CLUSTER, now=500.0, policy_state=again.policy_state))
    assert recall(ended).lengths == {"long": 100.0}


def test_job_that_is_not_asked_about_goes_on():
    """Of a job that keeps its GPUs in any case, the whole length is learnt at its end."""
    first = allocate(make_snapshot(CLUSTER, replace(LONG, speed=1.0)))
    snapshot = make_snapshot(CLUSTER, now=100.0, policy_state=first.state)
    view = make_view(replace(snapshot, whole=make_snapshot(CLUSTER, LONG)))
    second = Foresight().allocate(replace(view, beside=(LONG,)))
    ended = allocate(make_snapshot(CLUSTER, now=500.0, policy_state=second.state))
    assert recall(ended).lengths == {"long": 500.0}


def test_paused_job_has_not_ended():
    first = allocate(make_snapshot(CLUSTER, LONG))
    paused = make_snapshot(CLUSTER, now=5.0, policy_state=first.state)
    second = allocate(replace(paused, paused=frozenset({LONG.id})))
    assert recall(second).lengths == {}


def test_jobs_of_other_users_have_not_ended():
    first = allocate(make_snapshot(CLUSTER, LONG))
    all_jobs = make_snapshot(CLUSTER, LONG, now=100.0, policy_state=first.state)
    alone = allocate(replace(all_jobs, running=(), whole=all_jobs))
    assert recall(alone).lengths == {}


@pytest.mark.parametrize(("priority", "starts"), [(0, 0), (1, 4)])
@pytest.mark.parametrize(
    ("options", "holds"),
    [((1,), [(0,), (1,), (2,), (3,)]), ((1, 2, 4), [(0, 1), (2,), (3,)]), ((1, 4), [range(4)])],
)
def test_job_in_its_first_start_gives_way_only_to_a_more_important_one(
    options, holds, priority, starts
):
    held = [
        make_state(f"old{n}", model=f"old{n}", options=options, holds={"n1": gpus}, adjusting=True)
        for n, gpus in enumerate(holds)
    ]
    new = [
        make_state(f"new{n}", model=f"new{n}", options=(1, 2, 4), priority=priority)
        for n in range(12)
    ]
    costs = Costs(process_initialization=2.0, checkpoint=0.1)
    snapshot = make_snapshot(make_cluster(n1=4), *held, *new, now=2.0, costs=costs)
    plan = cycle.schedule(snapshot, Foresight())
    changes = [step for step in plan.steps if not isinstance(step, Wait)]
    assert sum(isinstance(step, Start) for step in changes) >= min(starts, 1)
    assert bool(changes) == bool(starts)


def test_memory_survives_a_restart():
    seen = make_state("seen", options=(1, 2), holds={"n1": (0, 1)}, speed=0.7)
    young = make_state("young", options=(1,), holds={"n1": (2,)}, speed=0.7)
    decision = allocate(make_snapshot(CLUSTER, LONG))
    decision = remember(decision, CLUSTER, seen, now=100.0)
    decision = remember(decision, CLUSTER, seen, young, now=130.0)
    written = json.loads(json.dumps(decision.state))
    later = 160.0
    third = remember(decision, CLUSTER, seen, young, now=later)
    restarted = remember(replace(decision, state=written), CLUSTER, seen, young, now=later)
    assert recall(decision).lengths
    assert recall(decision).tenures
    assert (restarted.shares, restarted.state) == (third.shares, third.state)


@pytest.mark.parametrize(
    "state",
    [
        None,
        "text",
        {},
        {"form": FORM + 1},
        {"form": FORM},
        {"form": FORM, "at": None},
        {**State(Memory(0.0)), "progress": {"job": [1.0]}},
        {**State(Memory(0.0)), "jobs": {"job": ["one", 1, "", 1.0, None]}},
        {**State(Memory(0.0)), "types": 3},
    ],
)
def test_unreadable_memory_is_reset(state):
    snapshot = make_snapshot(CLUSTER, LONG, policy_state=state)
    assert allocate(snapshot).state == allocate(make_snapshot(CLUSTER, LONG)).state


def test_price_level_decays():
    busy = allocate(make_snapshot(CLUSTER, *(make_state(f"job{n}") for n in range(8))))
    (before,) = recall(busy).levels.values()
    levels = [recall(remember(busy, CLUSTER, now=now)).levels[""] for now in (0.0, 30_000.0, 1e6)]
    assert levels[0] == pytest.approx(before)
    assert before > levels[1] > levels[2]


def collect(snapshot: Snapshot) -> list[Bid]:
    view = make_view(snapshot)
    return Bidders(view).collect(view, Experience())


def test_overdue_job_has_a_little_left():
    overdue = make_state(iterations_total=1000.0, iterations_done=1200.0)
    (bid,) = collect(make_snapshot(CLUSTER, overdue))
    assert bid.left == pytest.approx(OVERDUE_SHARE * 1200.0)


def test_unknown_length_has_samples_within_the_time_limit():
    (few,) = collect(make_snapshot(CLUSTER, LONG))
    assert len(few.lefts) == MOST_SAMPLES
    for jobs, lengths in ((500, 4), (1200, FEWEST_SAMPLES)):
        many = [make_state(f"job{n}", iterations_total=UNKNOWN) for n in range(jobs)]
        assert len(collect(make_snapshot(CLUSTER, *many))[0].lefts) == lengths


def show(cluster: Cluster, *states: JobState) -> View:
    return make_view(make_snapshot(cluster, *states))


def test_bidders_are_reused_while_profiles_and_cluster_stay():
    view = show(CLUSTER, LONG)
    Foresight().allocate(view)
    bidders = _kept.latest[0]
    Foresight().allocate(replace(view, now=9.0))
    assert _kept.latest[0] is bidders
    Foresight().allocate(show(CLUSTER, LONG))
    assert _kept.latest[0] is not bidders
    for _ in range(8):
        Foresight().allocate(show(CLUSTER, LONG))
    assert len(_kept.latest) == 4


def test_recall_tolerates_additions_by_another_thread():
    """The other thread may add a conclusion between two steps of a search."""
    kept: Kept[str] = Kept(most=3)
    for name in ("oldest", "older", "new"):
        kept.recall(lambda _: False, partial(str, name))
    later = ["newest"]

    def suits(known: str) -> bool:
        if later:
            kept.recall(lambda _: False, later.pop)
        return known == "oldest"

    assert kept.recall(suits, lambda: "concluded once more") == "oldest"
    assert kept.latest == ["newest", "new", "older"]


def test_concurrent_decision_changes_no_bid():
    """A forecast runs with the same profiles and cluster while the loop decides."""
    states = [make_state(f"job{n}", iterations_total=UNKNOWN) for n in range(600)]
    view = make_view(make_snapshot(CLUSTER, *states, costs=Costs(process_initialization=10)))
    other = make_view(make_snapshot(CLUSTER, LONG, costs=Costs(process_initialization=90)))
    bidders, others = Bidders(view), [other]

    class Interrupted(Experience):
        def expect_left(self, attained: float, share: float) -> float:
            if others:
                bidders.collect(others.pop(), Experience())
            return super().expect_left(attained, share)

    alone = Bidders(view).collect(view, Experience())
    bids = bidders.collect(view, Interrupted())
    assert not others
    assert [bid.lefts for bid in bids] == [bid.lefts for bid in alone]
    assert [bid.change_costs for bid in bids] == [bid.change_costs for bid in alone]


def test_live_change_costs_its_pause_and_the_wait_for_newcomers():
    costs = Costs(process_initialization=30.0, checkpoint=5.0, live_shrink=0.5, live_grow=2.0)
    profiles = [make_profile({1: 1.0, 2: 2.0, 4: 3.0})]
    runs = make_state("runs", options=(1, 2, 4), holds={"n1": (0, 1)}, is_live=True)
    waits = make_state("waits", options=(1, 2, 4), order=1)
    snapshot = make_snapshot(make_cluster(n1=4), runs, waits, profiles=profiles, costs=costs)
    view = make_view(snapshot)
    live, other = Bidders(view).collect(view, Experience())
    assert live.cost_of(1) == 0.5
    # For 30 s it does two of the three iterations a second that it could do.
    assert live.cost_of(4) == pytest.approx(2.0 + 30.0 * (1.0 - 2.0 / 3.0))
    assert live.restart_cost_of(4) == other.restart_costs[4] == 35.0


def test_cache_of_waiting_jobs_is_bounded():
    view = show(CLUSTER, *(make_state(f"job{n}") for n in range(1100)))
    bidders = Bidders(view)
    assert len(bidders.collect(view, Experience())) == 1100
    assert len(bidders._waiting) == 1100
    few = show(CLUSTER, make_state(JobId("new")))
    bidders.collect(few, Experience())
    assert len(bidders._waiting) == 1


def weigh(*states: JobState) -> Mapping[JobId, float]:
    """Return the worths after a decision that changes nothing."""
    plan = cycle.schedule(
        make_snapshot(make_cluster(n1=4), *states, costs=Costs(process_initialization=30.0)),
        policies.make("foresight"),
    )
    assert all(isinstance(step, Wait) for step in plan.steps)
    return plan.worths


def test_running_job_values_a_gpu_more_than_a_waiting_one():
    runs = make_state("runs", options=(4,), holds={"n1": (0, 1, 2, 3)}, iterations_total=100.0)
    worths = weigh(runs, make_state("waits", options=(4,), iterations_total=9000.0))
    assert worths[JobId("runs")] > worths[JobId("waits")] > 0.0
    assert sorted(worths) == ["runs", "waits"]
    assert len(worths) == 2
