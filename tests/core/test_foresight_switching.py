"""Which running jobs ``foresight`` lets go to another type of GPU."""

import random
from typing import Any

import pytest

from dljob.core import cycle
from dljob.core.explaining.sentences import sentence_for_step
from dljob.core.model import CauseCode, Snapshot
from dljob.core.planning import Move, Reshape, Start, Step
from dljob.core.policies.foresight.choosing import choose_by_type, choose_rest, switch_types
from dljob.core.profiles import Costs
from dljob.sim import policies
from dljob_wire.messages import Shape
from tests.bids import make_bid
from tests.builders import make_cluster, make_node, make_profile, make_snapshot, make_state

HORIZON = 500.0
CHANGES = Costs(process_initialization=20, checkpoint=10)

TYPES = [
    make_profile({Shape(n, 1, kind): factor * n**0.8 for n in (1, 2, 4) for kind, factor in
                  (("V100", 4.0), ("T4", 1.0))})
]  # fmt: skip


def decide(snapshot: Snapshot, **options: str) -> dict[str, Step]:
    plan = cycle.schedule(snapshot, policies.make("foresight", options))
    return {str(step.job): step for step in plan.steps}


def make_slow(**rest: Any) -> Snapshot:
    """A job on one T4 of four beside as many V100, on which it would be four times as fast."""
    rest.setdefault("iterations_total", 10_000.0)
    runs = make_state("runs", options=(1,), holds={"t4": (0,)}, gpu_type="T4", **rest)
    cluster = make_cluster(t4=(4, "T4"), v100=(4, "V100"))
    return make_snapshot(cluster, runs, profiles=TYPES, costs=CHANGES)


# --- one job and GPUs that are free


def test_a_job_that_runs_moves_to_a_type_on_which_it_is_faster():
    snapshot = make_slow()
    step = decide(snapshot)["runs"]
    assert isinstance(step, Move)
    assert (step.new.gpu_type, step.new.gpus, step.after) == ("V100", 1, ())
    assert sentence_for_step(snapshot, step).startswith("moves from 1 GPU on t4 to 1 GPU on v100")


def test_a_job_that_ends_before_the_change_has_paid_stays_on_its_type():
    # On a V100 it takes a quarter of the time, and 30 seconds to get there.
    assert decide(make_slow(iterations_total=36.0)) == {}
    assert isinstance(decide(make_slow(iterations_total=80.0))["runs"], Move)


@pytest.mark.parametrize(
    "rest", [{"types": ("T4",)}, {"bound_to": ("t4",)}, {"max_nodes": 1, "types": ("T4", "K80")}]
)
def test_a_job_stays_that_may_not_be_on_the_faster_type(rest):
    assert decide(make_slow(**rest)) == {}


@pytest.mark.parametrize(
    ("options", "holds", "free", "code", "gpus"),
    [
        ((1, 2), 1, 2, CauseCode.FASTER_WITH_MORE, 2),
        ((1, 2, 4), 4, 2, CauseCode.FASTER_WITH_FEWER, 2),
        ((2,), 2, 2, CauseCode.FASTER_TYPE, 2),
    ],
)
def test_the_reason_of_the_change_is_the_jobs_own(options, holds, free, code, gpus):
    runs = make_state("runs", options=options, holds={"t4": range(holds)}, gpu_type="T4",
                      iterations_total=1e5)  # fmt: skip
    cluster = make_cluster(t4=(4, "T4"), v100=(free, "V100"))
    step = decide(make_snapshot(cluster, runs, profiles=TYPES))["runs"]
    assert isinstance(step, Move)
    assert (step.new.gpu_type, step.new.gpus, step.cause.code) == ("V100", gpus, code)


# --- several jobs


def test_what_a_job_leaves_is_given_to_others_in_the_same_plan():
    runs = make_state("runs", options=(2,), holds={"t4": (0, 1)}, gpu_type="T4",
                      iterations_total=1e5)  # fmt: skip
    new = make_state("new", options=(2,), types=("T4",), iterations_total=1e5)
    cluster = make_cluster(t4=(2, "T4"), v100=(2, "V100"))
    steps = decide(make_snapshot(cluster, runs, new, profiles=TYPES))
    assert isinstance(steps["runs"], Move)
    assert isinstance(steps["new"], Start)
    assert steps["new"].after == ("runs",)


def test_a_job_gets_a_faster_gpu_that_is_worth_less_to_the_job_that_has_it():
    runs = make_state("runs", options=(1,), holds={"t4": (0,)}, gpu_type="T4",
                      iterations_total=1e5)  # fmt: skip
    wide = make_state("wide", options=(1, 2), holds={"v100": (0, 1)}, gpu_type="V100", speed=4.4,
                      model="flat", iterations_total=1e5)  # fmt: skip
    flat = make_profile({Shape(1, 1, "V100"): 4.0, Shape(2, 1, "V100"): 4.4,
                         Shape(1, 1, "T4"): 1.0, Shape(2, 1, "T4"): 1.1}, "flat")  # fmt: skip
    cluster = make_cluster(t4=(1, "T4"), v100=(2, "V100"))
    steps = decide(make_snapshot(cluster, runs, wide, profiles=[*TYPES, flat]))
    assert isinstance(steps["wide"], Reshape)
    assert (steps["wide"].cause.code, steps["wide"].cause.job) == (CauseCode.MAKES_ROOM, "runs")
    assert isinstance(steps["runs"], Move)
    assert steps["runs"].after == ("wide",)


def test_jobs_of_a_slow_type_do_not_drive_their_like_from_the_fast_one():
    alike = [
        make_state(name, options=(2,), holds={node: (0, 1)}, gpu_type=kind, speed=speed * 2**0.8,
                   iterations_total=1e5)
        for name, node, kind, speed in (("fast", "v100", "V100", 4.0), ("slow", "t4", "T4", 1.0))
    ]  # fmt: skip
    cluster = make_cluster(t4=(2, "T4"), v100=(2, "V100"))
    assert decide(make_snapshot(cluster, *alike, profiles=TYPES)) == {}


def test_another_job_moves_within_the_fast_type_to_make_a_gap_for_one_that_comes():
    runs = make_state("runs", options=(2,), holds={"t4": (0, 1)}, gpu_type="T4", max_nodes=1,
                      iterations_total=1e5)  # fmt: skip
    small = [
        make_state(f"small{n}", options=(1,), types=("V100",), holds={f"v{n}": (0,)},
                   gpu_type="V100", speed=4.0, iterations_total=1e5)
        for n in range(2)
    ]  # fmt: skip
    cluster = make_cluster(t4=(2, "T4"), v0=(2, "V100"), v1=(2, "V100"))
    steps = decide(make_snapshot(cluster, runs, *small, profiles=TYPES))
    assert isinstance(steps["runs"], Move)
    assert sorted(steps) in (["runs", "small0"], ["runs", "small1"])


# --- the choice alone


def test_never_more_is_chosen_of_a_type_than_there_is():
    chance = random.Random(5)
    switched = 0
    for _ in range(80):
        bids = []
        for order in range(chance.randint(1, 12)):
            kind = chance.choice("ab")
            types = {
                name: {n: scale * n**0.7 for n in (1, 2, 4)}
                for name, scale in (("a", chance.uniform(0.5, 2)), ("b", chance.uniform(0.5, 2)))
            }
            bid = make_bid(f"job{order}", types=types, holds=chance.choice((0, 0, 1, 2, 4)),
                           gpu_type=kind, order=order, cost=chance.choice((0.0, 30.0)),
                           price=chance.uniform(0.1, 2.0))  # fmt: skip
            bid.cheapest = bid.price * chance.uniform(0.5, 1.0)
            bids.append(bid)
        capacities = {"a": chance.randint(0, 12), "b": chance.randint(0, 12)}
        chosen = choose_by_type(bids, capacities, horizon=HORIZON)
        visits = switch_types(bids, capacities, chosen=chosen, horizon=HORIZON)
        come = [item.bid for items in visits.values() for item in items]
        assert come == [bid for kind in visits for bid in come if bid.curve.gpu_type == kind]
        assert all(bid.switches for bid in come)
        final = choose_by_type(bids, capacities, horizon=HORIZON, visits=visits)
        final |= choose_rest(bids, capacities, chosen=final, horizon=HORIZON)
        # A job that goes has something where it goes to.
        assert all(final[bid] > 0 for bid in come)
        for kind, capacity in capacities.items():
            there = (gpus for bid, gpus in final.items() if bid.curve.gpu_type == kind)
            assert sum(there) <= capacity
        switched += len(come)
    assert switched > 20


def test_no_law_is_broken_on_types_of_which_one_is_faster():
    policy = policies.make("foresight")
    moves = 0
    for seed in range(60):
        chance = random.Random(f"switch/{seed}")
        nodes = [
            make_node(f"n{n}", 4, chance.choice(("V100", "T4")),
                      unavailable=[g for g in range(4) if chance.random() < 0.05])
            for n in range(4)
        ]  # fmt: skip
        states = []
        for node in nodes:
            width = chance.choice((0, 1, 2, 4))
            if width:
                speed = (4.0 if node.gpu_type == "V100" else 1.0) * width**0.8
                states.append(
                    make_state(f"on-{node.name}", holds={node.name: range(width)}, speed=speed,
                               options=tuple(sorted({width, chance.choice((1, 2, 4))})),
                               gpu_type=node.gpu_type, max_nodes=chance.choice((None, 1)),
                               iterations_total=chance.choice((100.0, 1e4, 1e6)))
                )  # fmt: skip
        states += [make_state(f"new{n}", iterations_total=1e4) for n in range(chance.randint(0, 3))]
        snapshot = make_snapshot(make_cluster(*nodes), *states, profiles=TYPES, costs=CHANGES)
        steps = cycle.schedule(snapshot, policy).steps
        assert steps == cycle.schedule(snapshot, policy).steps, seed
        moves += sum(isinstance(s, Move) and s.old.gpu_type != s.new.gpu_type for s in steps)
    assert moves > 10
