"""One decision of ``foresight`` from its beginning to its end, and what it remembers."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pytest

from dljob.core import cycle
from dljob.core.contract import Decision, View
from dljob.core.model import Cluster, JobId, JobState, Snapshot
from dljob.core.planning import Start, Step, Stop, Wait
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
from tests.builders import make_cluster, make_profile, make_snapshot, make_state, make_view

UNKNOWN = math.inf


def decide(snapshot: Snapshot, **options: str) -> dict[str, Step]:
    plan = cycle.schedule(snapshot, policies.make("foresight", options))
    return {str(step.job): step for step in plan.steps}


def allocate(snapshot: Snapshot, **options: float) -> Decision:
    return Foresight(**options).allocate(make_view(snapshot))


def count_gpus(decision: Decision) -> dict[str, int]:
    return {str(job): share.gpus for job, share in decision.shares.items()}


def recall(decision: Decision) -> Memory:
    assert isinstance(decision.state, State)
    return decision.state.memory


# --- options


def test_options_in_range_are_taken():
    options = {"ageing": "2", "arrivals": "0.9", "horizon": "60", "priority_weight": "1"}
    assert policies.make("foresight", options) == Foresight(
        2.0, arrivals=0.9, horizon=60.0, priority_weight=1.0
    )


# --- decisions


def test_a_job_that_keeps_what_it_starts_with_leaves_gpus_for_those_that_came_lately():
    """Once GPUs changed hands at a price, it does not take all of them because they are idle just now."""
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


def test_the_same_view_gives_the_same_decision_whatever_was_decided_before():
    first = allocate(make_busy())
    _kept.latest.clear()
    second = allocate(make_busy())
    assert first.shares == second.shares
    assert list(first.shares) == list(second.shares)
    assert first.state == second.state


def test_the_shorter_job_gets_more_gpus():
    root = make_profile({gpus: math.sqrt(gpus) for gpus in range(1, 9)})
    short = make_state("short", options=tuple(range(1, 9)), iterations_total=100.0)
    long = make_state("long", options=tuple(range(1, 9)), iterations_total=10_000.0)
    snapshot = make_snapshot(make_cluster(n1=8), long, short, profiles=[root])
    # Shares go with the squares of the prices, and those with the root of 3 and 1.
    assert count_gpus(allocate(snapshot, ageing=0.0)) == {"short": 6, "long": 2}


def test_priorities_come_first():
    low = make_state("low", options=(4,), holds={"n1": range(4)}, iterations_total=10.0)
    high = make_state("high", options=(4,), iterations_total=500.0, priority=1)
    steps = decide(make_snapshot(make_cluster(n1=4), low, high))
    assert isinstance(steps["low"], Stop)
    assert isinstance(steps["high"], Start)


def share_out(scale: float) -> dict[str, int]:
    options = tuple(range(1, 17))
    old = make_state("old", options=options, iterations_total=1e4 * scale)
    young = make_state("young", options=options, iterations_total=1e2 * scale,
                       submitted_at=1e4 * scale)  # fmt: skip
    snapshot = make_snapshot(make_cluster(n1=16), old, young, now=1e4 * scale)
    return count_gpus(allocate(snapshot, ageing=1.0))


def test_ageing_is_the_same_where_jobs_take_minutes_and_where_they_take_days():
    assert share_out(0.01) == share_out(1.0) == share_out(1000.0)


# --- several types of GPU

TYPES = [
    make_profile({Shape(n, 1, kind): factor * n**0.8 for n in (1, 2, 4) for kind, factor in
                  (("V100", 4.0), ("T4", 1.0))})
]  # fmt: skip


def decide_on_types(*states: JobState, **sizes: tuple[int, str]) -> dict[str, Step]:
    return decide(make_snapshot(make_cluster(**sizes), *states, profiles=TYPES))


def test_what_is_left_of_a_type_goes_to_jobs_that_would_rather_have_another():
    states = [make_state(f"job{n}", options=(4,)) for n in range(2)]
    steps = decide_on_types(*states, n1=(4, "T4"), n2=(4, "V100"))
    kinds = {step.placement.gpu_type for step in steps.values() if isinstance(step, Start)}
    assert kinds == {"T4", "V100"}


def test_a_job_never_gets_a_type_that_its_user_left_out():
    states = [make_state(f"job{n}", options=(4,), types=("V100",)) for n in range(2)]
    steps = decide_on_types(*states, n1=(4, "T4"), n2=(4, "V100"))
    kinds = [step.placement.gpu_type for step in steps.values() if isinstance(step, Start)]
    assert kinds == ["V100"]


def test_a_mixed_job_that_fits_only_on_several_types_starts_on_them():
    steps = decide_on_types(make_state(options=(4,), mixed=True), n1=(2, "T4"), n2=(2, "V100"))
    assert isinstance(steps["job"], Start)
    assert steps["job"].placement.gpu_type == "T4+V100"


def test_a_job_on_several_types_goes_on_and_its_gpus_are_not_divided():
    held = make_cluster(n1=(2, "T4"), n2=(2, "V100"))
    mixed = make_state(
        "mixed", options=(3,), mixed=True, holds={"n1": (0, 1), "n2": (0,)}, gpu_type="T4+V100"
    )
    new = make_state("new", options=(1, 2))
    steps = decide(make_snapshot(held, mixed, new, profiles=TYPES))
    assert "mixed" not in steps
    assert isinstance(steps["new"], Start)
    assert steps["new"].placement.gpus == 1


# --- what is remembered


def remember(decision: Decision, cluster: Cluster, *states: JobState, now: float) -> Decision:
    return allocate(make_snapshot(cluster, *states, now=now, policy_state=decision.state))


CLUSTER = make_cluster(n1=4)
LONG = make_state("long", options=(1,), holds={"n1": (0,)}, iterations_total=UNKNOWN)


def test_lengths_are_seconds_on_the_same_type_whatever_jobs_have_had():
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


def test_a_job_that_was_only_stopped_has_not_ended():
    first = allocate(make_snapshot(CLUSTER, LONG))
    waits = make_state("long", options=(1,), iterations_total=UNKNOWN, iterations_done=100.0)
    second = remember(first, CLUSTER, waits, now=100.0)
    assert recall(second).lengths == {}
    third = remember(second, CLUSTER, now=200.0)
    assert recall(third).lengths == {"long": 100.0}
    assert recall(third).spans == {"long": 200.0}


def test_a_memory_is_read_again_as_it_was_written():
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
def test_a_memory_that_cannot_be_read_is_begun_again(state):
    snapshot = make_snapshot(CLUSTER, LONG, policy_state=state)
    assert allocate(snapshot).state == allocate(make_snapshot(CLUSTER, LONG)).state


def test_a_new_price_replaces_the_old_one_in_the_course_of_time():
    busy = allocate(make_snapshot(CLUSTER, *(make_state(f"job{n}") for n in range(8))))
    (before,) = recall(busy).levels.values()
    levels = [recall(remember(busy, CLUSTER, now=now)).levels[""] for now in (0.0, 30_000.0, 1e6)]
    assert levels[0] == pytest.approx(before)
    assert before > levels[1] > levels[2]


# --- bids


def collect(snapshot: Snapshot) -> list[Bid]:
    view = make_view(snapshot)
    return Bidders(view).collect(view, Experience())


def test_a_job_that_did_all_it_needed_is_supposed_to_need_a_little_more():
    overdue = make_state(iterations_total=1000.0, iterations_done=1200.0)
    (bid,) = collect(make_snapshot(CLUSTER, overdue))
    assert bid.left == pytest.approx(OVERDUE_SHARE * 1200.0)


def test_a_job_of_unknown_length_has_as_many_lengths_as_there_is_time_to_price():
    (few,) = collect(make_snapshot(CLUSTER, LONG))
    assert len(few.lefts) == MOST_SAMPLES
    for jobs, lengths in ((500, 4), (1200, FEWEST_SAMPLES)):
        many = [make_state(f"job{n}", iterations_total=UNKNOWN) for n in range(jobs)]
        assert len(collect(make_snapshot(CLUSTER, *many))[0].lefts) == lengths


def show(cluster: Cluster, *states: JobState) -> View:
    return make_view(make_snapshot(cluster, *states))


def test_what_was_concluded_is_kept_for_as_long_as_profiles_and_cluster_stay():
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


def test_conclusions_are_found_while_another_thread_adds_some():
    """As that thread may do at any moment, so also between two steps of a search."""
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


def test_a_decision_of_another_thread_changes_no_bid():
    """The queue is played ahead with the same profiles and cluster while the loop decides."""
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


def test_what_is_known_of_jobs_that_wait_does_not_grow_for_ever():
    view = show(CLUSTER, *(make_state(f"job{n}") for n in range(1100)))
    bidders = Bidders(view)
    assert len(bidders.collect(view, Experience())) == 1100
    assert len(bidders._waiting) == 1100
    few = show(CLUSTER, make_state(JobId("new")))
    bidders.collect(few, Experience())
    assert len(bidders._waiting) == 1


# --- what a GPU is worth to those that nothing changes for ------------------------------------


def weigh(*states: JobState) -> Mapping[JobId, float]:
    """The worths after a decision that changes nothing."""
    plan = cycle.schedule(
        make_snapshot(make_cluster(n1=4), *states, costs=Costs(process_initialization=30.0)),
        policies.make("foresight"),
    )
    assert all(isinstance(step, Wait) for step in plan.steps)
    return plan.worths


def test_a_gpu_is_worth_more_to_those_that_run_than_to_the_one_that_waits():
    runs = make_state("runs", options=(4,), holds={"n1": (0, 1, 2, 3)}, iterations_total=100.0)
    worths = weigh(runs, make_state("waits", options=(4,), iterations_total=9000.0))
    assert worths[JobId("runs")] > worths[JobId("waits")] > 0.0
    assert sorted(worths) == ["runs", "waits"]
    assert len(worths) == 2
