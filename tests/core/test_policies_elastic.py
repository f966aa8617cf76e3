"""The policies that reshape: what the papers' algorithms say, and what they leave open."""

import math
from dataclasses import replace
from typing import Any

import pytest

from dlcore import cycle, policies
from dlcore.model import Cause, CauseCode, JobId, Mechanism, NodeName, Snapshot
from dlcore.planning import Change, Move, Plan, Reshape, Start, Step, Stop, Wait
from dlcore.profiles import Costs
from dlwire.messages import Shape
from tests.builders import (
    make_cluster,
    make_node,
    make_placement,
    make_profile,
    make_snapshot,
    make_state,
)

IN_PLACE = Costs(process_initialization=10, checkpoint=5, pod_initialization=80, pod_termination=70)


def decide(snapshot: Snapshot, name: str = "adaptive") -> dict[str, Step]:
    plan = cycle.schedule(snapshot, policies.make(name))
    return {str(step.job): step for step in plan.steps}


def count(step: Step) -> int:
    """How many GPUs the job has after the step."""
    if isinstance(step, Start):
        return step.placement.gpus
    return step.new.gpus if isinstance(step, Change) else 0


# --- Algorithm 1: reshaping down for the incoming


def test_a_newcomer_takes_the_idle_gpus_with_which_it_ends_soonest():
    steps = decide(make_snapshot(make_cluster(n1=4), make_state("new", options=(1, 2, 4))))
    assert count(steps["new"]) == 4


def test_a_newcomer_that_gains_nothing_from_more_gpus_does_not_get_them():
    flat = make_profile({1: 1.0, 2: 1.0, 4: 0.9})
    snapshot = make_snapshot(make_cluster(n1=4), make_state("new"), profiles=[flat])
    assert count(decide(snapshot)["new"]) == 1


def test_the_case_study_gives_the_second_job_two_of_the_four_gpus_of_the_first():
    old = make_state("old", options=(2, 4), holds={"n1": range(4)}, iterations_total=5000.0)
    new = make_state("new", options=(2,))
    steps = decide(make_snapshot(make_cluster(n1=4), old, new, costs=IN_PLACE))
    assert isinstance(steps["old"], Reshape)
    assert (count(steps["old"]), steps["old"].cause) == (
        2,
        Cause(CauseCode.MAKES_ROOM, JobId("new")),
    )
    assert isinstance(steps["new"], Start)
    assert (count(steps["new"]), steps["new"].after) == (2, ("old",))


def test_the_longest_job_is_not_the_victim_while_another_can_be():
    long = make_state("long", options=(1, 2), holds={"n1": (0, 1)}, iterations_total=90_000.0)
    short = make_state("short", options=(1, 2), holds={"n1": (2, 3)}, iterations_total=900.0)
    new = make_state("new", options=(1,), iterations_total=800.0)
    steps = decide(make_snapshot(make_cluster(n1=4), long, short, new, costs=IN_PLACE))
    assert "long" not in steps
    assert count(steps["short"]) == 1


def test_of_equal_makespans_the_one_that_delays_least_is_taken():
    # Both victims would be done long before the longest job; the one scales badly and loses less.
    steep = make_profile({1: 1.0, 2: 2.0}, model="steep")
    flat = make_profile({1: 1.0, 2: 1.05}, model="flat")
    states = (
        make_state("longest", options=(1,), holds={"n1": (0,)}, iterations_total=1e6),
        make_state("a", options=(1, 2), holds={"n1": (1, 2)}, model="steep", speed=2.0),
        make_state("b", options=(1, 2), holds={"n1": (3, 4)}, model="flat", speed=1.05),
        make_state("new", options=(1,)),
    )
    profiles = [make_profile(), steep, flat]
    steps = decide(make_snapshot(make_cluster(n1=5), *states, profiles=profiles))
    assert set(steps) == {"b", "new"}


def test_idle_gpus_come_before_those_of_a_victim():
    old = make_state("old", options=(1, 2), holds={"n1": (0, 1)}, iterations_total=1e5)
    steps = decide(make_snapshot(make_cluster(n1=3), old, make_state("new", options=(1,))))
    assert list(steps) == ["new"]


def test_victims_are_looked_for_on_the_node_where_the_gap_would_be():
    cluster = make_cluster(n1=2, n2=2)
    a = make_state("a", options=(1, 2), holds={"n1": (0, 1)}, max_nodes=1)
    b = make_state("b", options=(1,), holds={"n2": (0,)}, max_nodes=1)
    new = make_state("new", options=(2,), max_nodes=1)
    steps = decide(make_snapshot(cluster, a, b, new))
    # One is idle on n2 and one could be freed on n1, but never two on one node.
    assert isinstance(steps["new"], Wait)


def test_several_jobs_give_what_one_cannot():
    cluster = make_cluster(n1=4)
    olds = [
        make_state(name, options=(1, 2), holds={"n1": gpus}, max_nodes=1)
        for name, gpus in (("a", (0, 1)), ("b", (2, 3)))
    ]
    steps = decide(make_snapshot(cluster, *olds, make_state("new", options=(2,), max_nodes=1)))
    assert {name: count(step) for name, step in steps.items()} == {"a": 1, "b": 1, "new": 2}


def test_what_a_victim_gave_up_on_one_node_it_does_not_offer_on_another():
    wide = make_state("wide", options=(1, 2, 4, 8), holds={"n1": range(4), "n2": range(4)})
    longest = make_state("longest", options=(4, 8), holds={"n3": range(8)}, iterations_total=1e6)
    first, second = make_state("first", options=(4,)), make_state("second", options=(4,))
    steps = decide(make_snapshot(make_cluster(n1=4, n2=4, n3=8), wide, longest, first, second))
    assert count(steps["wide"]) == 4
    assert count(steps["first"]) == 4
    assert isinstance(steps["second"], Start)
    assert steps["second"].after == ("longest",)


def test_a_job_on_several_nodes_makes_room_as_well():
    everywhere = {"n1": range(4), "n2": range(4)}
    old = make_state("old", options=(1, 2, 4, 8), holds=everywhere, iterations_total=50_000.0)
    new = make_state("new", options=(1, 2, 4), iterations_total=5_000.0)
    steps = decide(make_snapshot(make_cluster(n1=4, n2=4), old, new, costs=IN_PLACE))
    assert (count(steps["old"]), count(steps["new"])) == (4, 4)
    assert isinstance(steps["new"], Start)
    assert steps["new"].after == ("old",)


def test_a_job_on_several_nodes_withdraws_to_one_where_it_cannot_give_a_part_of_one():
    everywhere = {"n1": range(4), "n2": range(4)}
    old = make_state("old", options=(2, 8), holds=everywhere, iterations_total=50_000.0)
    new = make_state("new", options=(1, 4))
    steps = decide(make_snapshot(make_cluster(n1=4, n2=4), old, new, costs=IN_PLACE))
    assert (count(steps["old"]), count(steps["new"])) == (2, 4)
    assert isinstance(steps["old"], Change)
    assert isinstance(steps["new"], Start)
    assert steps["old"].new.nodes != steps["new"].placement.nodes


def test_a_job_on_several_nodes_that_can_do_with_nothing_less_keeps_them():
    everywhere = {"n1": range(4), "n2": range(4)}
    old = make_state("old", options=(5, 8), holds=everywhere, iterations_total=50_000.0)
    new = make_state("new", options=(4,))
    steps = decide(make_snapshot(make_cluster(n1=4, n2=4), old, new, costs=IN_PLACE))
    assert "old" not in steps
    assert isinstance(steps["new"], Wait)


def test_nobody_is_stopped_for_a_newcomer():
    olds = [make_state(f"old-{n}", options=(1,), holds={"n1": (n,)}) for n in range(2)]
    steps = decide(make_snapshot(make_cluster(n1=2), *olds, make_state("new", options=(1,))))
    assert list(steps) == ["new"]
    assert steps["new"].cause.code is CauseCode.NO_ROOM


def test_priority_comes_before_arrival():
    states = (make_state("early", options=(2,)), make_state("late", options=(2,), priority=1))
    steps = decide(make_snapshot(make_cluster(n1=2), *states))
    assert (type(steps["early"]), type(steps["late"])) == (Wait, Start)


def test_a_bound_newcomer_finds_its_victim_where_its_checkpoint_is():
    cluster = make_cluster(n1=2, n2=2)
    a = make_state("a", options=(1, 2), holds={"n1": (0, 1)})
    b = make_state("b", options=(1, 2), holds={"n2": (0, 1)}, iterations_total=9000.0)
    new = make_state("new", options=(1,), bound_to=("n2",))
    steps = decide(make_snapshot(cluster, a, b, new))
    assert set(steps) == {"b", "new"}
    assert isinstance(steps["new"], Start)
    assert steps["new"].placement == make_placement(n2=(1,))


def test_a_newcomer_that_may_mix_types_does_when_there_is_no_other_way():
    cluster = make_cluster(n1=(1, "K80"), n2=(1, "V100"))
    profile = make_profile({Shape(1, 1, "K80"): 1.0, Shape(1, 1, "V100"): 4.0})
    new = make_state("new", options=(2,), mixed=True)
    steps = decide(make_snapshot(cluster, new, profiles=[profile]))
    assert isinstance(steps["new"], Start)
    assert steps["new"].placement.gpu_type == "K80+V100"


# --- Algorithm 2: reshaping up when idle


def test_idle_gpus_go_to_the_job_that_ends_last():
    long = make_state("long", options=(1, 2), holds={"n1": (0,)}, iterations_total=9000.0)
    short = make_state("short", options=(1, 2), holds={"n1": (1,)}, iterations_total=1000.0)
    steps = decide(make_snapshot(make_cluster(n1=3), long, short))
    assert {name: count(step) for name, step in steps.items()} == {"long": 2}
    assert steps["long"].cause.code is CauseCode.FASTER_WITH_MORE


def test_what_the_longest_cannot_use_goes_to_who_gains_most():
    states = [
        make_state("longest", options=(1,), holds={"n1": (0,)}, iterations_total=90_000.0),
        make_state("much", options=(1, 2), holds={"n1": (1,)}, iterations_total=9000.0),
        make_state("little", options=(1, 2), holds={"n1": (2,)}, iterations_total=500.0),
    ]
    assert list(decide(make_snapshot(make_cluster(n1=4), *states))) == ["much"]


def test_all_idle_gpus_are_given_in_one_decision():
    states = [
        make_state(f"job-{n}", options=(1, 2, 4), holds={"n1": (n,)}, iterations_total=1e4 - n)
        for n in range(2)
    ]
    snapshot = make_snapshot(make_cluster(n1=8), *states)
    assert sum(count(step) for step in decide(snapshot).values()) == 8


def test_a_change_that_costs_more_than_it_gains_is_not_made():
    done = make_state("nearly", options=(1, 2), holds={"n1": (0,)}, iterations_done=990.0)
    dear = make_snapshot(make_cluster(n1=2), done, costs=IN_PLACE)
    assert decide(dear) == {}
    assert list(decide(make_snapshot(make_cluster(n1=2), done))) == ["nearly"]


def test_recreating_pods_makes_a_change_dearer():
    job = make_state("job", options=(1, 2), holds={"n1": (0,)}, iterations_total=200.0)
    snapshot = make_snapshot(make_cluster(n1=2), job, costs=IN_PLACE)
    assert list(decide(snapshot)) == ["job"]
    assert decide(replace(snapshot, mechanism=Mechanism.RECREATE)) == {}


def test_a_job_that_is_being_changed_is_not_enlarged():
    busy = make_state("busy", options=(1, 2), holds={"n1": (0,)}, adjusting=True)
    assert decide(make_snapshot(make_cluster(n1=2), busy)) == {}


def test_a_job_that_is_faster_with_fewer_gives_the_others_back():
    peak = make_profile({1: 1.0, 2: 1.5, 4: 1.2})
    job = make_state("job", holds={"n1": range(4)}, speed=1.2, iterations_total=9e4)
    steps = decide(make_snapshot(make_cluster(n1=5), job, profiles=[peak]))
    assert (count(steps["job"]), steps["job"].cause.code) == (2, CauseCode.FASTER_WITH_FEWER)


def test_a_job_moves_to_a_faster_type_that_is_idle():
    cluster = make_cluster(n1=(2, "K80"), n2=(2, "V100"))
    speeds = {Shape(n, 1, kind): n * by for n in (1, 2) for kind, by in (("K80", 1), ("V100", 5))}
    job = make_state("job", options=(1, 2), holds={"n1": (0, 1)}, gpu_type="K80", speed=2.0)
    steps = decide(make_snapshot(cluster, job, profiles=[make_profile(speeds)]))
    assert isinstance(steps["job"], Move)
    assert steps["job"].new.gpu_type == "V100"
    bound = replace(job, bound_to=(NodeName("n1"),))
    assert decide(make_snapshot(cluster, bound, profiles=[make_profile(speeds)])) == {}


@pytest.mark.parametrize("name", ["adaptive", "optimus"])
def test_a_job_of_unknown_length_is_enlarged_all_the_same(name: str):
    job = make_state("job", options=(1, 2), holds={"n1": (0,)}, iterations_total=math.inf)
    assert count(decide(make_snapshot(make_cluster(n1=2), job), name)["job"]) == 2


def test_a_newcomer_of_unknown_length_gets_the_type_it_is_fastest_on():
    cluster = make_cluster(n1=(2, "K80"), n2=(2, "V100"))
    speeds = {Shape(n, 1, kind): n * by for n in (1, 2) for kind, by in (("K80", 1), ("V100", 5))}
    new = make_state("new", options=(1, 2), iterations_total=math.inf)
    steps = decide(make_snapshot(cluster, new, profiles=[make_profile(speeds)]))
    assert isinstance(steps["new"], Start)
    assert (steps["new"].placement.gpu_type, count(steps["new"])) == ("V100", 2)


def test_nothing_is_offered_on_a_node_that_takes_nobody_new():
    cluster = make_cluster(make_node("n1", 2, schedulable=False))
    old = make_state("old", options=(1, 2), holds={"n1": (0, 1)})
    steps = decide(make_snapshot(cluster, old, make_state("new", options=(1,))))
    assert [type(step) for step in steps.values()] == [Wait]


# --- Optimus as the SideCar paper plays it


def test_optimus_starts_with_the_least_and_goes_up_one_number_at_a_time():
    new = make_state("new", options=(1, 2, 4))
    plan = cycle.schedule(make_snapshot(make_cluster(n1=8), new), policies.make("optimus"))
    assert [count(step) for step in plan.steps] == [1]
    runs = make_state("runs", options=(1, 2, 4), holds={"n1": (0,)})
    assert count(decide(make_snapshot(make_cluster(n1=8), runs), "optimus")["runs"]) == 2


def test_optimus_never_reshapes_down_for_a_newcomer():
    old = make_state("old", options=(1, 2), holds={"n1": (0, 1)})
    steps = decide(make_snapshot(make_cluster(n1=2), old, make_state("new")), "optimus")
    assert [type(step) for step in steps.values()] == [Wait]


def test_optimus_starts_newcomers_before_it_enlarges_anybody():
    old = make_state("old", options=(1, 2), holds={"n1": (0,)})
    steps = decide(make_snapshot(make_cluster(n1=2), old, make_state("new")), "optimus")
    assert list(steps) == ["new"]


def test_optimus_pays_no_heed_to_what_a_restart_costs():
    done = make_state("nearly", options=(1, 2), holds={"n1": (0,)}, iterations_done=990.0)
    snapshot = make_snapshot(make_cluster(n1=2), done, costs=IN_PLACE)
    assert list(decide(snapshot, "optimus")) == ["nearly"]


def test_optimus_asks_a_job_again_only_when_its_change_has_ended():
    busy = make_state("busy", options=(1, 2), holds={"n1": (0,)}, adjusting=True)
    assert decide(make_snapshot(make_cluster(n1=2), busy), "optimus") == {}


def test_optimus_enlarges_who_gains_most_and_nobody_past_its_peak():
    peak = make_profile({1: 1.0, 2: 0.9}, model="peak")
    states = [
        make_state("peak", options=(1, 2), holds={"n1": (0,)}, model="peak"),
        make_state("short", options=(1, 2), holds={"n1": (1,)}, iterations_total=100.0),
        make_state("long", options=(1, 2), holds={"n1": (2,)}),
    ]
    snapshot = make_snapshot(make_cluster(n1=4), *states, profiles=[make_profile(), peak])
    assert list(decide(snapshot, "optimus")) == ["long"]


# --- max-min


def test_max_min_gives_nobody_a_second_gpu_while_one_has_none():
    states = (make_state("elastic", options=(1, 2)), make_state("rigid", options=(3,)))
    steps = decide(make_snapshot(make_cluster(n1=4), *states), "max-min")
    assert {name: count(step) for name, step in steps.items()} == {"elastic": 1, "rigid": 3}


def test_max_min_raises_the_poorest_first():
    states = (make_state("a"), make_state("b"), make_state("c"))
    steps = decide(make_snapshot(make_cluster(n1=4), *states), "max-min")
    assert {name: count(step) for name, step in steps.items()} == {"a": 2, "b": 1, "c": 1}


def test_max_min_takes_from_the_rich_for_a_newcomer_and_says_for_whom():
    rich = make_state("rich", holds={"n1": range(4)})
    steps = decide(make_snapshot(make_cluster(n1=4), rich, make_state("new")), "max-min")
    assert {name: count(step) for name, step in steps.items()} == {"rich": 2, "new": 2}
    assert steps["rich"].cause == Cause(CauseCode.FAIR_SHARE, JobId("new"))


def test_max_min_serves_those_that_came_first_when_there_are_too_many():
    states = [make_state(f"job-{n}", options=(1,)) for n in range(3)]
    steps = decide(make_snapshot(make_cluster(n1=2), *states), "max-min")
    assert [type(step) for step in steps.values()] == [Start, Start, Wait]


def test_max_min_stops_where_more_is_known_to_be_slower():
    peak = make_profile({1: 1.0, 2: 1.5, 4: 1.2})
    snapshot = make_snapshot(make_cluster(n1=4), make_state("job"), profiles=[peak])
    assert count(decide(snapshot, "max-min")["job"]) == 2


def test_max_min_takes_what_is_too_much_for_the_job_itself():
    peak = make_profile({1: 1.0, 2: 1.5, 4: 1.2})
    job = make_state("job", holds={"n1": range(4)})
    steps = decide(make_snapshot(make_cluster(n1=4), job, profiles=[peak]), "max-min")
    assert steps["job"].cause.code is CauseCode.FASTER_WITH_FEWER


def test_max_min_stops_a_job_only_for_those_that_come_before_it():
    late = make_state("late", options=(2,), holds={"n1": (0, 1)}, order=5)
    steps = decide(make_snapshot(make_cluster(n1=2), make_state("early"), late), "max-min")
    assert isinstance(steps["late"], Stop)
    assert steps["late"].cause.job == "early"


@pytest.mark.parametrize("name", ["adaptive", "optimus", "max-min"])
def test_an_empty_cluster_of_jobs_decides_nothing(name: str):
    empty: Plan = cycle.schedule(make_snapshot(make_cluster(n1=2)), policies.make(name))
    assert empty.steps == ()


# --- what goes wrong while jobs run

ELASTIC = ("adaptive", "optimus", "max-min")


@pytest.mark.parametrize("name", ELASTIC)
@pytest.mark.parametrize("holds", [(0, 3), (2, 3), (0, 1, 2, 3)])
def test_a_gpu_that_goes_bad_under_a_job_stops_no_decision(name: str, holds: tuple[int, ...]):
    cluster = make_cluster(make_node("n1", 4, unavailable=(3,)))
    old = make_state("old", options=(1, 2, 4), holds={"n1": holds})
    for new in ((), (make_state("new", options=(1,)),)):
        plan = cycle.schedule(make_snapshot(cluster, old, *new), policies.make(name))
        assert all(count(step) <= 4 for step in plan.steps)


def test_a_job_gives_up_its_bad_gpu_first():
    cluster = make_cluster(make_node("n1", 4, unavailable=(0,)))
    old = make_state("old", options=(1, 2), holds={"n1": (0, 1)}, iterations_total=1e5)
    others = make_state("rigid", options=(2,), holds={"n1": (2, 3)})
    snapshot = make_snapshot(cluster, old, others, make_state("new", options=(1,)))
    # No job can use the bad GPU, so that a newcomer gains nothing by taking it.
    assert [type(step) for step in decide(snapshot).values()] == [Wait]
    fair = decide(replace(snapshot, cluster=make_cluster(n1=4)), "max-min")
    assert isinstance(fair["old"], Reshape)


@pytest.mark.parametrize("name", policies.NAMES)
def test_a_job_whose_spec_no_longer_allows_its_gpus_loses_them_and_nobody_else_does(name: str):
    cluster = make_cluster(n1=(2, "A"), n2=(2, "B"))
    speeds = make_profile({Shape(n, 1, kind): n for n in (1, 2) for kind in "AB"})
    other = make_state("other", options=(2,), holds={"n2": (0, 1)}, gpu_type="B", speed=2.0)
    changes: list[dict[str, Any]] = [
        {"types": ("B",)},
        {"types": ("C",)},
        {"bound_to": ("n2",)},
    ]
    for change in changes:
        old = make_state("old", options=(2,), holds={"n1": (0, 1)}, gpu_type="A", **change)
        snapshot = make_snapshot(cluster, old, other, profiles=[speeds])
        steps = decide(snapshot, name)
        assert {job: step.cause.code for job, step in steps.items()} == {
            "old": CauseCode.SPEC_CHANGED
        }


@pytest.mark.parametrize("name", policies.NAMES)
def test_a_job_whose_number_of_gpus_is_no_option_any_longer_does_not_keep_it(name: str):
    old = make_state("old", options=(1, 2), requested=2, holds={"n1": range(4)})
    step = decide(make_snapshot(make_cluster(n1=4), old), name)["old"]
    assert count(step) in (0, 1, 2)


@pytest.mark.parametrize("name", policies.NAMES)
@pytest.mark.parametrize(("held", "options"), [(4, (1, 2)), (4, (3,)), (2, (4,)), (2, (3, 4))])
def test_an_edit_of_its_numbers_of_gpus_costs_a_job_a_reshape_and_no_stop(name, held, options):
    old = make_state("old", options=options, requested=options[-1], holds={"n1": range(held)})
    step = decide(make_snapshot(make_cluster(n1=4), old), name)["old"]
    assert isinstance(step, Reshape)
    assert count(step) in options
    # Not the reason that a policy has for the number: nothing but the edit makes the job change.
    assert step.cause.code is CauseCode.SPEC_CHANGED


@pytest.mark.parametrize("name", policies.NAMES)
def test_a_job_for_whose_new_number_of_gpus_there_is_no_room_waits_for_it(name: str):
    old = make_state("old", options=(8,), holds={"n1": (0, 1)})
    step = decide(make_snapshot(make_cluster(n1=4), old), name)["old"]
    assert isinstance(step, Stop)
    assert step.cause.code is CauseCode.SPEC_CHANGED


@pytest.mark.parametrize("name", policies.NAMES)
def test_of_two_jobs_seen_on_one_gpu_the_later_one_goes(name: str):
    states = [
        make_state("first", options=(2,), holds={"n1": (0, 1)}),
        make_state("second", options=(2,), holds={"n1": (1, 2)}),
        make_state("third", options=(1,), holds={"n1": (3,)}),
    ]
    steps = decide(make_snapshot(make_cluster(n1=4), *states), name)
    assert {job: step.cause for job, step in steps.items()} == {
        "second": Cause(CauseCode.TWO_MASTERS, JobId("first"))
    }


def test_a_move_is_not_made_for_what_is_gone_until_the_pods_are_ready():
    cluster = make_cluster(n1=(2, "K80"), n2=(4, "V100"))
    kinds = (("K80", 1.0), ("V100", 2.0))
    speeds = {Shape(n, 1, kind): n * by for n in (1, 2, 4) for kind, by in kinds}
    job = make_state("job", holds={"n1": (0, 1)}, gpu_type="K80", speed=2.0, iterations_total=480.0)
    slow = Costs(pod_initialization=230.0, process_initialization=10.0)
    snapshot = make_snapshot(cluster, job, profiles=[make_profile(speeds)], costs=slow)
    assert decide(snapshot) == {}
    quick = replace(slow, pod_initialization=5.0)
    assert isinstance(decide(replace(snapshot, costs=quick))["job"], Move)


def test_thousands_that_wait_cost_nothing_while_nobody_can_give_anything():
    runs = make_state("runs", options=(1,), holds={"n1": (0,)})
    crowd = [make_state(f"job-{n}", options=(1,), order=n + 1) for n in range(200)]
    plan = cycle.schedule(
        make_snapshot(make_cluster(n1=1), runs, *crowd), policies.make("adaptive")
    )
    assert {type(step) for step in plan.steps} == {Wait}
    assert plan.considered == 200


def test_a_bound_newcomer_is_given_no_victim_of_a_type_that_it_cannot_use():
    cluster = make_cluster(n1=(2, "A"), n2=(2, "B"))
    old = make_state("old", options=(1, 2), holds={"n1": (0, 1)}, gpu_type="A")
    new = make_state("new", options=(1,), types=("B",), bound_to=("n1",))
    profile = make_profile({Shape(n, 1, kind): n for n in (1, 2) for kind in "AB"})
    steps = decide(make_snapshot(cluster, old, new, profiles=[profile]))
    assert [type(step) for step in steps.values()] == [Wait]
