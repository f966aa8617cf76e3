"""Optimus in rounds: the least for each job, then the largest gain for each GPU."""

from dataclasses import replace

from dljob.core import cycle
from dljob.core.model import Snapshot
from dljob.core.planning import Plan, Start, Wait
from dljob.sim import policies
from dljob_lab.policies.elastic.optimus_periodic import Round
from dljob_wire.messages import Shape
from tests.builders import count_gpus, make_cluster, make_profile, make_snapshot, make_state

STEEP = make_profile({1: 1.0, 2: 2.0, 4: 4.0}, model="steep")
FLAT = make_profile({1: 1.0, 2: 1.2, 4: 1.3}, model="flat")


def decide(snapshot: Snapshot, **options: str) -> Plan:
    return cycle.schedule(snapshot, policies.make("optimus-periodic", options))


def test_every_job_gets_its_least_first():
    states = [make_state(name, model="steep") for name in "abc"]
    assert count_gpus(decide(make_snapshot(make_cluster(n1=4), *states, profiles=[STEEP]))) == {
        "a": 2,
        "b": 1,
        "c": 1,
    }


def test_gpus_go_where_they_save_most_time():
    states = (make_state("flat", model="flat"), make_state("steep", model="steep"))
    plan = decide(make_snapshot(make_cluster(n1=4), *states, profiles=[STEEP, FLAT]))
    # From 2 to 4 it would need two more, and only one is left for the other.
    assert count_gpus(plan) == {"steep": 2, "flat": 2}


def test_nothing_changes_between_rounds():
    snapshot = make_snapshot(make_cluster(n1=4), make_state("job"))
    assert decide(snapshot).wake_at == 600.0
    between = replace(snapshot, now=599.0, policy_state=Round(600.0))
    plan = decide(between)
    assert [step.cause.code for step in plan.steps if isinstance(step, Wait)] == ["NextRound"]
    assert (plan.wake_at, plan.policy_state) == (600.0, Round(600.0))
    assert count_gpus(decide(replace(between, now=600.0))) == {"job": 4}


def test_new_job_gets_its_fastest_type():
    speeds = make_profile({Shape(1, 1, "K80"): 1.0, Shape(1, 1, "V100"): 4.0})
    cluster = make_cluster(n1=(4, "K80"), n2=(1, "V100"))
    states = [make_state(name, options=(1,)) for name in ("first", "second")]
    plan = decide(make_snapshot(cluster, *states, profiles=[speeds]))
    kinds = {step.job: step.placement.gpu_type for step in plan.steps if isinstance(step, Start)}
    assert kinds == {"first": "V100", "second": "K80"}
