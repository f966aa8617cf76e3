"""The policies that reshape: the algorithms of the papers, and their gaps."""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest

from dljob.core import cycle
from dljob.core.model import Cause, CauseCode, JobId, NodeName, Snapshot
from dljob.core.planning import Change, Move, Reshape, Start, Step, Stop, Wait
from dljob.core.profiles import Costs
from dljob.sim import policies
from dljob_wire.messages import Shape
from tests import builders
from tests.builders import make_cluster, make_node, make_profile, make_snapshot, make_state

IN_PLACE = Costs(process_initialization=10, checkpoint=5, pod_initialization=80, pod_termination=70)


def decide(snapshot: Snapshot, name: str = "adaptive") -> dict[str, Step]:
    return builders.decide(snapshot, name)


def count(step: Step) -> int:
    if isinstance(step, Start):
        return step.placement.gpus
    return step.new.gpus if isinstance(step, Change) else 0


def test_newcomer_takes_idle_gpus():
    steps = decide(make_snapshot(make_cluster(n1=4), make_state("new", options=(1, 2, 4))))
    assert count(steps["new"]) == 4


def test_case_study_of_the_paper():
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


def test_longest_job_is_the_last_victim():
    long = make_state("long", options=(1, 2), holds={"n1": (0, 1)}, iterations_total=90_000.0)
    short = make_state("short", options=(1, 2), holds={"n1": (2, 3)}, iterations_total=900.0)
    new = make_state("new", options=(1,), iterations_total=800.0)
    steps = decide(make_snapshot(make_cluster(n1=4), long, short, new, costs=IN_PLACE))
    assert "long" not in steps
    assert count(steps["short"]) == 1


def test_idle_gpus_come_before_victims():
    old = make_state("old", options=(1, 2), holds={"n1": (0, 1)}, iterations_total=1e5)
    steps = decide(make_snapshot(make_cluster(n1=3), old, make_state("new", options=(1,))))
    assert list(steps) == ["new"]


def test_several_victims_share_the_loss():
    cluster = make_cluster(n1=4)
    olds = [
        make_state(name, options=(1, 2), holds={"n1": gpus}, max_nodes=1)
        for name, gpus in (("a", (0, 1)), ("b", (2, 3)))
    ]
    steps = decide(make_snapshot(cluster, *olds, make_state("new", options=(2,), max_nodes=1)))
    assert {name: count(step) for name, step in steps.items()} == {"a": 1, "b": 1, "new": 2}


def test_spread_job_withdraws_to_one_node():
    everywhere = {"n1": range(4), "n2": range(4)}
    old = make_state("old", options=(2, 8), holds=everywhere, iterations_total=50_000.0)
    new = make_state("new", options=(1, 4))
    steps = decide(make_snapshot(make_cluster(n1=4, n2=4), old, new, costs=IN_PLACE))
    assert (count(steps["old"]), count(steps["new"])) == (2, 4)
    assert isinstance(steps["old"], Change)
    assert isinstance(steps["new"], Start)
    assert steps["old"].new.nodes != steps["new"].placement.nodes


def test_mixed_newcomer_uses_several_types_if_needed():
    cluster = make_cluster(n1=(1, "K80"), n2=(1, "V100"))
    profile = make_profile({Shape(1, 1, "K80"): 1.0, Shape(1, 1, "V100"): 4.0})
    new = make_state("new", options=(2,), mixed=True)
    steps = decide(make_snapshot(cluster, new, profiles=[profile]))
    assert isinstance(steps["new"], Start)
    assert steps["new"].placement.gpu_type == "K80+V100"


def test_idle_gpus_go_to_the_job_that_ends_last():
    long = make_state("long", options=(1, 2), holds={"n1": (0,)}, iterations_total=9000.0)
    short = make_state("short", options=(1, 2), holds={"n1": (1,)}, iterations_total=1000.0)
    steps = decide(make_snapshot(make_cluster(n1=3), long, short))
    assert {name: count(step) for name, step in steps.items()} == {"long": 2}
    assert steps["long"].cause.code is CauseCode.FASTER_WITH_MORE


def test_unprofitable_change_is_not_made():
    done = make_state("nearly", options=(1, 2), holds={"n1": (0,)}, iterations_done=990.0)
    dear = make_snapshot(make_cluster(n1=2), done, costs=IN_PLACE)
    assert decide(dear) == {}
    assert list(decide(make_snapshot(make_cluster(n1=2), done))) == ["nearly"]


def test_job_faster_with_fewer_gives_gpus_back():
    peak = make_profile({1: 1.0, 2: 1.5, 4: 1.2})
    job = make_state("job", holds={"n1": range(4)}, speed=1.2, iterations_total=9e4)
    steps = decide(make_snapshot(make_cluster(n1=5), job, profiles=[peak]))
    assert (count(steps["job"]), steps["job"].cause.code) == (2, CauseCode.FASTER_WITH_FEWER)


def test_job_moves_to_a_faster_idle_type():
    cluster = make_cluster(n1=(2, "K80"), n2=(2, "V100"))
    speeds = {Shape(n, 1, kind): n * by for n in (1, 2) for kind, by in (("K80", 1), ("V100", 5))}
    job = make_state("job", options=(1, 2), holds={"n1": (0, 1)}, gpu_type="K80", speed=2.0)
    steps = decide(make_snapshot(cluster, job, profiles=[make_profile(speeds)]))
    assert isinstance(steps["job"], Move)
    assert steps["job"].new.gpu_type == "V100"
    bound = replace(job, bound_to=(NodeName("n1"),))
    assert decide(make_snapshot(cluster, bound, profiles=[make_profile(speeds)])) == {}


@pytest.mark.parametrize("name", ["adaptive", "optimus"])
def test_job_of_unknown_length_grows(name: str):
    job = make_state("job", options=(1, 2), holds={"n1": (0,)}, iterations_total=math.inf)
    assert count(decide(make_snapshot(make_cluster(n1=2), job), name)["job"]) == 2


def test_optimus_starts_small_and_grows_step_by_step():
    new = make_state("new", options=(1, 2, 4))
    plan = cycle.schedule(make_snapshot(make_cluster(n1=8), new), policies.make("optimus"))
    assert [count(step) for step in plan.steps] == [1]
    runs = make_state("runs", options=(1, 2, 4), holds={"n1": (0,)})
    assert count(decide(make_snapshot(make_cluster(n1=8), runs), "optimus")["runs"]) == 2


def test_max_min_serves_all_before_a_second_gpu():
    states = (make_state("elastic", options=(1, 2)), make_state("rigid", options=(3,)))
    steps = decide(make_snapshot(make_cluster(n1=4), *states), "max-min")
    assert {name: count(step) for name, step in steps.items()} == {"elastic": 1, "rigid": 3}


def test_max_min_raises_the_poorest_first():
    states = (make_state("a"), make_state("b"), make_state("c"))
    steps = decide(make_snapshot(make_cluster(n1=4), *states), "max-min")
    assert {name: count(step) for name, step in steps.items()} == {"a": 2, "b": 1, "c": 1}


def test_max_min_takes_from_the_rich():
    rich = make_state("rich", holds={"n1": range(4)})
    steps = decide(make_snapshot(make_cluster(n1=4), rich, make_state("new")), "max-min")
    assert {name: count(step) for name, step in steps.items()} == {"rich": 2, "new": 2}
    assert steps["rich"].cause == Cause(CauseCode.FAIR_SHARE, JobId("new"))


def test_job_gives_up_its_broken_gpu_first():
    cluster = make_cluster(make_node("n1", 4, unavailable=(0,)))
    old = make_state("old", options=(1, 2), holds={"n1": (0, 1)}, iterations_total=1e5)
    others = make_state("rigid", options=(2,), holds={"n1": (2, 3)})
    snapshot = make_snapshot(cluster, old, others, make_state("new", options=(1,)))
    # No job can use the bad GPU, so a newcomer gains nothing by it.
    assert [type(step) for step in decide(snapshot).values()] == [Wait]
    fair = decide(replace(snapshot, cluster=make_cluster(n1=4)), "max-min")
    assert isinstance(fair["old"], Reshape)


def test_disallowed_gpus_are_taken_from_that_job_only():
    cluster = make_cluster(n1=(2, "A"), n2=(2, "B"))
    speeds = make_profile({Shape(n, 1, kind): n for n in (1, 2) for kind in "AB"})
    other = make_state("other", options=(2,), holds={"n2": (0, 1)}, gpu_type="B", speed=2.0)
    changes: list[dict[str, Any]] = [{"types": ("B",)}, {"types": ("C",)}, {"bound_to": ("n2",)}]
    for change, name in itertools.product(changes, policies.NAMES):
        old = make_state("old", options=(2,), holds={"n1": (0, 1)}, gpu_type="A", **change)
        steps = decide(make_snapshot(cluster, old, other, profiles=[speeds]), name)
        codes = {job: step.cause.code for job, step in steps.items()}
        assert codes == {"old": CauseCode.SPEC_CHANGED}, (name, change)


def test_edit_of_gpu_counts_is_a_reshape():
    cases = ((4, (1, 2)), (4, (3,)), (2, (4,)), (2, (3, 4)))
    for name, (held, options) in itertools.product(policies.NAMES, cases):
        old = make_state("old", options=options, requested=options[-1], holds={"n1": range(held)})
        step = decide(make_snapshot(make_cluster(n1=4), old), name)["old"]
        assert isinstance(step, Reshape), name
        assert count(step) in options, name
        # The reason is the edit, not the cause that the policy has for the number.
        assert step.cause.code is CauseCode.SPEC_CHANGED, name


def test_edit_without_room_waits():
    old = make_state("old", options=(8,), holds={"n1": (0, 1)})
    for name in policies.NAMES:
        step = decide(make_snapshot(make_cluster(n1=4), old), name)["old"]
        assert isinstance(step, Stop), name
        assert step.cause.code is CauseCode.SPEC_CHANGED, name


def test_second_job_on_one_gpu_stops():
    states = [
        make_state("first", options=(2,), holds={"n1": (0, 1)}),
        make_state("second", options=(2,), holds={"n1": (1, 2)}),
        make_state("third", options=(1,), holds={"n1": (3,)}),
    ]
    cause = Cause(CauseCode.TWO_MASTERS, JobId("first"))
    for name in policies.NAMES:
        steps = decide(make_snapshot(make_cluster(n1=4), *states), name)
        assert {job: step.cause for job, step in steps.items()} == {"second": cause}, name
