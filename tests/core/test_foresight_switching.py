"""The running jobs that ``foresight`` moves to another type of GPU."""

import random
from typing import Any

import pytest

from dljob.core.explaining.sentences import sentence_for_step
from dljob.core.model import CauseCode, Snapshot
from dljob.core.planning import Move, Reshape, Start
from dljob.core.policies.foresight.choosing import choose_by_type, choose_rest, switch_types
from dljob.core.profiles import Costs
from dljob_wire.messages import Shape
from tests.bids import make_bid
from tests.builders import decide, make_cluster, make_profile, make_snapshot, make_state

HORIZON = 500.0
CHANGES = Costs(process_initialization=20, checkpoint=10)

TYPES = [
    make_profile({Shape(n, 1, kind): factor * n**0.8 for n in (1, 2, 4) for kind, factor in
                  (("V100", 4.0), ("T4", 1.0))})
]  # fmt: skip


def make_slow(**rest: Any) -> Snapshot:
    """A job on one of four T4; four V100 are free, on which it would be four times as fast."""
    rest.setdefault("iterations_total", 10_000.0)
    runs = make_state("runs", options=(1,), holds={"t4": (0,)}, gpu_type="T4", **rest)
    cluster = make_cluster(t4=(4, "T4"), v100=(4, "V100"))
    return make_snapshot(cluster, runs, profiles=TYPES, costs=CHANGES)


def test_running_job_moves_to_a_faster_type():
    snapshot = make_slow()
    step = decide(snapshot)["runs"]
    assert isinstance(step, Move)
    assert (step.new.gpu_type, step.new.gpus, step.after) == ("V100", 1, ())
    assert sentence_for_step(snapshot, step).startswith("moves from 1 GPU on t4 to 1 GPU on v100")


def test_job_that_ends_soon_stays_on_its_type():
    # On a V100 it takes a quarter of the time, and 30 seconds to get there.
    assert decide(make_slow(iterations_total=36.0)) == {}
    assert isinstance(decide(make_slow(iterations_total=80.0))["runs"], Move)


@pytest.mark.parametrize(
    "rest", [{"types": ("T4",)}, {"bound_to": ("t4",)}, {"max_nodes": 1, "types": ("T4", "K80")}]
)
def test_job_stays_if_the_faster_type_is_not_allowed(rest):
    assert decide(make_slow(**rest)) == {}


@pytest.mark.parametrize(
    ("options", "holds", "free", "code", "gpus"),
    [
        ((1, 2), 1, 2, CauseCode.FASTER_WITH_MORE, 2),
        ((1, 2, 4), 4, 2, CauseCode.FASTER_WITH_FEWER, 2),
        ((2,), 2, 2, CauseCode.FASTER_TYPE, 2),
    ],
)
def test_cause_of_a_switch_is_the_jobs_own(options, holds, free, code, gpus):
    runs = make_state("runs", options=options, holds={"t4": range(holds)}, gpu_type="T4",
                      iterations_total=1e5)  # fmt: skip
    cluster = make_cluster(t4=(4, "T4"), v100=(free, "V100"))
    step = decide(make_snapshot(cluster, runs, profiles=TYPES))["runs"]
    assert isinstance(step, Move)
    assert (step.new.gpu_type, step.new.gpus, step.cause.code) == ("V100", gpus, code)


def test_released_gpus_go_to_others_in_the_same_plan():
    runs = make_state("runs", options=(2,), holds={"t4": (0, 1)}, gpu_type="T4",
                      iterations_total=1e5)  # fmt: skip
    new = make_state("new", options=(2,), types=("T4",), iterations_total=1e5)
    cluster = make_cluster(t4=(2, "T4"), v100=(2, "V100"))
    steps = decide(make_snapshot(cluster, runs, new, profiles=TYPES))
    assert isinstance(steps["runs"], Move)
    assert isinstance(steps["new"], Start)
    assert steps["new"].after == ("runs",)


def test_job_takes_a_fast_gpu_of_less_worth_to_its_holder():
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


def test_equal_jobs_do_not_swap_types():
    alike = [
        make_state(name, options=(2,), holds={node: (0, 1)}, gpu_type=kind, speed=speed * 2**0.8,
                   iterations_total=1e5)
        for name, node, kind, speed in (("fast", "v100", "V100", 4.0), ("slow", "t4", "T4", 1.0))
    ]  # fmt: skip
    cluster = make_cluster(t4=(2, "T4"), v100=(2, "V100"))
    assert decide(make_snapshot(cluster, *alike, profiles=TYPES)) == {}


def test_another_job_moves_to_make_a_gap():
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


def test_no_type_is_overbooked():
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
