"""Optimus in rounds: the least for each, then the largest gain for each GPU, and nothing in between."""

from dataclasses import replace

from dlcore import cycle, policies
from dlcore.model import Cause, CauseCode, Snapshot
from dlcore.planning import Change, Plan, Start, Stop, Wait
from dlcore.policies.papers.optimus_periodic import Round
from dlwire.messages import Shape
from tests.builders import make_cluster, make_profile, make_snapshot, make_state

STEEP = make_profile({1: 1.0, 2: 2.0, 4: 4.0}, model="steep")
FLAT = make_profile({1: 1.0, 2: 1.2, 4: 1.3}, model="flat")


def decide(snapshot: Snapshot, **options: str) -> Plan:
    return cycle.schedule(snapshot, policies.make("optimus-periodic", options))


def counts_of(plan: Plan) -> dict[str, int]:
    counts: dict[str, int] = {}
    for step in plan.steps:
        if isinstance(step, Start):
            counts[step.job] = step.placement.gpus
        elif isinstance(step, Change):
            counts[step.job] = step.new.gpus
        elif isinstance(step, Stop):
            counts[step.job] = 0
    return counts


def test_each_job_has_its_least_before_any_has_more():
    states = [make_state(name, model="steep") for name in "abc"]
    assert counts_of(decide(make_snapshot(make_cluster(n1=4), *states, profiles=[STEEP]))) == {
        "a": 2,
        "b": 1,
        "c": 1,
    }


def test_gpus_go_where_they_save_the_most_time():
    states = (make_state("flat", model="flat"), make_state("steep", model="steep"))
    plan = decide(make_snapshot(make_cluster(n1=4), *states, profiles=[STEEP, FLAT]))
    # From 2 to 4 it would need two more, and only one is left for the other.
    assert counts_of(plan) == {"steep": 2, "flat": 2}


def test_the_gain_counts_for_each_gpu_and_by_the_time_that_is_left():
    short = make_state("short", model="steep", iterations_total=100.0)
    long = make_state("long", model="flat", iterations_total=100_000.0)
    plan = decide(make_snapshot(make_cluster(n1=5), short, long, profiles=[STEEP, FLAT]))
    assert counts_of(plan) == {"long": 4, "short": 1}


def test_a_number_that_helps_little_does_not_hide_one_that_helps_much():
    step = make_profile({1: 1.0, 2: 1.0, 4: 4.0})
    plan = decide(make_snapshot(make_cluster(n1=4), make_state("job"), profiles=[step]))
    assert counts_of(plan) == {"job": 4}


def test_a_job_does_not_get_gpus_that_do_not_help_it():
    peak = make_profile({1: 1.0, 2: 1.5, 4: 1.2})
    plan = decide(make_snapshot(make_cluster(n1=4), make_state("job"), profiles=[peak]))
    assert counts_of(plan) == {"job": 2}


def test_a_round_takes_gpus_back_and_names_who_gets_them():
    old = make_state("old", holds={"n1": range(4)}, model="flat", speed=1.3)
    plan = decide(
        make_snapshot(
            make_cluster(n1=4), old, make_state("new", model="steep"), profiles=[STEEP, FLAT]
        )
    )
    assert counts_of(plan) == {"old": 2, "new": 2}
    (change,) = [step for step in plan.steps if isinstance(step, Change)]
    assert change.cause == Cause(CauseCode.MAKES_ROOM, "new", 0)  # type: ignore[arg-type]


def test_between_rounds_nothing_changes_and_newcomers_wait_for_the_next():
    snapshot = make_snapshot(make_cluster(n1=4), make_state("job"))
    assert decide(snapshot).wake_at == 600.0
    between = replace(snapshot, now=599.0, policy_state=Round(600.0))
    plan = decide(between)
    assert [step.cause.code for step in plan.steps if isinstance(step, Wait)] == ["NextRound"]
    assert (plan.wake_at, plan.policy_state) == (600.0, Round(600.0))
    assert counts_of(decide(replace(between, now=600.0))) == {"job": 4}


def test_a_job_that_a_round_leaves_out_is_told_once_that_it_waits_for_the_next():
    states = [make_state(name, options=(4,)) for name in ("first", "second")]
    plan = decide(make_snapshot(make_cluster(n1=4), *states))
    assert counts_of(plan) == {"first": 4}
    assert [step.cause.code for step in plan.steps if isinstance(step, Wait)] == ["NextRound"]


def test_the_period_is_an_option():
    plan = decide(make_snapshot(make_cluster(n1=4), make_state("job")), period_seconds="60")
    assert plan.wake_at == 60.0


def test_a_new_job_gets_the_type_that_it_is_fastest_on():
    speeds = make_profile({Shape(1, 1, "K80"): 1.0, Shape(1, 1, "V100"): 4.0})
    cluster = make_cluster(n1=(4, "K80"), n2=(1, "V100"))
    states = [make_state(name, options=(1,)) for name in ("first", "second")]
    plan = decide(make_snapshot(cluster, *states, profiles=[speeds]))
    kinds = {step.job: step.placement.gpu_type for step in plan.steps if isinstance(step, Start)}
    assert kinds == {"first": "V100", "second": "K80"}


def test_of_more_jobs_than_gpus_those_that_came_first_have_their_least():
    late = make_state("late", holds={"n1": (0,)}, options=(1,), order=2)
    early = make_state("early", options=(1,), order=1)
    assert counts_of(decide(make_snapshot(make_cluster(n1=1), early, late))) == {
        "late": 0,
        "early": 1,
    }


def test_jobs_of_which_nothing_is_known_have_their_least():
    states = [make_state(name, options=(1, 2)) for name in "ab"]
    assert counts_of(decide(make_snapshot(make_cluster(n1=4), *states, profiles=[]))) == {
        "a": 1,
        "b": 1,
    }
