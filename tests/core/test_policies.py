"""The list of policies, and those that serve jobs in an order."""

import re
from dataclasses import replace
from typing import Any

import pytest

from dljob import known_policies
from dljob.core import cycle
from dljob.core.model import Cause, CauseCode, Snapshot
from dljob.core.planning import Plan, Reshape, Start, Stop, Wait
from dljob.core.policies.common import ranking
from dljob.installed import POLICIES, find_points
from dljob.known_policies import LAB_POLICIES, read_live_policy
from dljob.sim import policies
from dljob_lab.policies.rigid import kube_default
from dljob_wire.messages import Shape
from tests.builders import (
    make_cluster,
    make_placement,
    make_profile,
    make_snapshot,
    make_state,
    make_view,
)

NO_ROOM = Cause(CauseCode.NO_ROOM)
BEHIND = Cause(CauseCode.BEHIND)


def decide(name: str, snapshot: Snapshot, **options: str) -> Plan:
    return cycle.schedule(snapshot, policies.make(name, options))


def started(plan: Plan) -> dict[str, Any]:
    return {step.job: step.placement for step in plan.steps if isinstance(step, Start)}


def stopped(plan: Plan) -> list[str]:
    return [step.job for step in plan.steps if isinstance(step, Stop)]


def waiting(plan: Plan) -> dict[str, Cause]:
    return {step.job: step.cause for step in plan.steps if isinstance(step, Wait)}


def test_policies_describe_themselves():
    for name in policies.NAMES:
        policy = policies.make(name)
        assert policy.name == name
        assert policy.paper, name
        assert policy.needs, name
        assert type(policy).__doc__, name
        assert policy == policies.make(name, {})
        assert hash(policy) == hash(policies.make(name))


def test_options_have_the_type_of_their_default():
    made: Any = policies.make("tiresias", {"thresholds": "100,2e3", "exact": "true"})
    assert (made.thresholds, made.exact) == ((100.0, 2000.0), True)
    assert policies.options_of("tiresias") == {"thresholds": (3250.0, 7200.0), "exact": False}
    assert policies.options_of("fifo") == {}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fifu", {}, "no policy is named 'fifu'; did you mean fifo? known are foresight, "),
        ("fifo", {"depth": "1"}, "fifo has no option 'depth'; it has none"),
        (
            "tiresias",
            {"treshold": "1"},
            "tiresias has no option 'treshold'; did you mean thresholds? known are thresholds, exact",
        ),
    ],
)
def test_unknown_names_suggest_known_ones(name, options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        policies.make(name, options)


def test_controllers_take_policies_of_add_ons_that_keep_the_laws():
    assert read_live_policy("lyra").name == "lyra"
    with pytest.raises(ValueError, match=r"^kube-pods breaks whole-gang, so"):
        read_live_policy("kube-pods")


def test_the_policies_of_the_lab_are_known_by_name():
    assert set(find_points(POLICIES)) == LAB_POLICIES


def test_a_missing_add_on_is_named(monkeypatch):
    monkeypatch.setattr(known_policies, "find_points", lambda _: {})
    with pytest.raises(
        ValueError, match=r"^lyra is a policy of the add-on dljob-lab: .*pip install"
    ):
        read_live_policy("lyra")


def make_blocked() -> Snapshot:
    """Two of four GPUs are free; the first in the line needs four, those behind need one."""
    return make_snapshot(
        make_cluster(n1=4),
        make_state("old", options=(2,), holds={"n1": (0, 1)}),
        make_state("wide", options=(4,)),
        make_state("a", options=(1,)),
        make_state("b", options=(1,)),
        make_state("c", options=(1,)),
    )


def test_fifo_starts_in_order_until_one_does_not_fit():
    snapshot = make_snapshot(
        make_cluster(n1=4),
        make_state("a", options=(1,)),
        make_state("b", options=(2,)),
        make_state("c", options=(4,)),
        make_state("d", options=(1,)),
    )
    plan = decide("fifo", snapshot)
    assert started(plan) == {"a": make_placement(n1=(0,)), "b": make_placement(n1=(1, 2))}
    assert waiting(plan) == {"c": NO_ROOM, "d": BEHIND}


def test_fifo_blocks_at_the_head_and_fjf_does_not():
    assert started(decide("fifo", make_blocked())) == {}
    assert waiting(decide("fifo", make_blocked())) == dict(
        wide=NO_ROOM, **dict.fromkeys("abc", BEHIND)
    )
    assert started(decide("fjf", make_blocked())).keys() == {"a", "b"}
    assert waiting(decide("fjf", make_blocked())) == {"wide": NO_ROOM, "c": NO_ROOM}


@pytest.mark.parametrize("name", ["fifo", "fjf", "gang-fifo", "kube-default", "kube-pods"])
def test_non_preempting_policies_stop_no_job(name: str):
    old = make_state("old", holds={"n1": (0, 1, 2, 3)}, iterations_total=1e9)
    snapshot = make_snapshot(make_cluster(n1=4), old, make_state("new", iterations_total=1.0))
    assert started(decide(name, snapshot)) == {}
    assert stopped(decide(name, snapshot)) == []


def test_queue_may_exceed_one_block():
    wide = [make_state(f"wide-{n}", options=(4,)) for n in range(200)]
    narrow = [make_state(f"narrow-{n}", options=(1,)) for n in range(5)]
    cluster = make_cluster(n1=3, n2=1)
    snapshot = make_snapshot(cluster, *wide[:150], *narrow, *wide[150:])
    assert started(decide("fjf", snapshot)).keys() == {"wide-0"}
    assert started(decide("fifo", snapshot)).keys() == {"wide-0"}
    held = make_state("held", options=(1,), holds={"n2": (0,)}, order=10_000)
    full = make_snapshot(cluster, *snapshot.pending, held)
    assert started(decide("fjf", full)).keys() == {"narrow-0", "narrow-1", "narrow-2"}
    assert started(decide("fifo", full)) == {}


def test_oversized_request_gets_the_largest_possible_size():
    snapshot = make_snapshot(make_cluster(n1=2, n2=1), make_state("job", options=(1, 2, 8)))
    assert started(decide("fifo", snapshot))["job"].gpus == 2
    limited = make_state("job", options=(1, 2, 3, 8), max_nodes=1)
    assert started(decide("fifo", make_snapshot(snapshot.cluster, limited)))["job"].gpus == 2


FAST_ON_B = make_profile({Shape(2, 1, "A"): 1.0, Shape(2, 1, "B"): 3.0, Shape(2, 2, "B"): 2.0})


def test_job_gets_its_fastest_free_type():
    job = make_state("job", options=(2,))
    cluster = make_cluster(n1=(4, "A"), n2=(2, "B"))
    snapshot = make_snapshot(cluster, job, profiles=[FAST_ON_B])
    assert started(decide("fifo", snapshot))["job"] == make_placement("B", n2=(0, 1))
    taken = make_state("old", options=(1,), holds={"n2": (0,)}, gpu_type="B")
    snapshot = make_snapshot(cluster, taken, job, profiles=[FAST_ON_B])
    assert started(decide("fifo", snapshot))["job"] == make_placement("A", n1=(0, 1))


def test_gang_fifo_spreads_where_fifo_packs():
    old = make_state("old", options=(2,), holds={"n1": (0, 1)})
    snapshot = make_snapshot(make_cluster(n1=4, n2=4), old, make_state("new", options=(2,)))
    assert started(decide("gang-fifo", snapshot))["new"] == make_placement(n2=(0, 1))
    assert started(decide("fifo", snapshot))["new"] == make_placement(n1=(2, 3))


def test_kube_default_draws_are_deterministic():
    drawn = [kube_default.draw(0, f"job-{n}", (1, 2, 4, 8)) for n in range(12)]
    assert drawn == [2, 2, 4, 4, 4, 4, 8, 8, 1, 2, 2, 1]


def test_kube_pods_spreads_pods():
    snapshot = make_snapshot(make_cluster(n1=4, n2=4), make_state("job", options=(4,)))
    plan = decide("kube-pods", snapshot)
    assert started(plan) == {"job": make_placement(n1=(0, 1), n2=(0, 1))}
    assert plan.steps[0].gang == 0  # type: ignore[union-attr]


def test_kube_pods_completes_partial_gangs():
    first = make_state("first", options=(3,))
    second = make_state("second", options=(2,))
    cluster = make_cluster(n1=4)
    plan = decide("kube-pods", make_snapshot(cluster, first, second))
    assert started(plan) == {
        "first": make_placement(n1=(0, 1, 2)),
        "second": make_placement(n1=(3,)),
    }
    assert [getattr(step, "gang", None) for step in plan.steps] == [0, 2]

    partly = make_state("second", options=(2,), holds={"n1": (3,)}, gang=2, speed=0.0)
    (step,) = decide("kube-pods", make_snapshot(cluster, partly)).steps
    assert isinstance(step, Reshape)
    assert (step.new, step.gang) == (make_placement(n1=(0, 3)), 0)


def test_kube_pods_may_deadlock():
    states = [
        make_state(name, options=(2,), holds={"n1": (gpu,)}, gang=2, speed=0.0)
        for gpu, name in enumerate(["one", "other"])
    ]
    assert decide("kube-pods", make_snapshot(make_cluster(n1=2), *states)).steps == ()


def make_line(**needs: tuple[int, float]) -> list[Any]:
    """Jobs by the GPUs they need and how long they take on them."""
    return [
        make_state(name, options=(gpus,), iterations_total=seconds, model=f"model-{gpus}")
        for name, (gpus, seconds) in needs.items()
    ]


UNIT = [make_profile({gpus: 1.0}, model=f"model-{gpus}") for gpus in (1, 2, 3, 4)]
"""Each of these jobs does one iteration a second."""


def test_srtf_takes_the_shortest_that_fits():
    states = make_line(long=(1, 90.0), short=(2, 10.0), wide=(4, 20.0), middle=(1, 30.0))
    plan = decide("srtf", make_snapshot(make_cluster(n1=4), *states, profiles=UNIT))
    assert list(started(plan)) == ["short", "middle", "long"]
    assert waiting(plan) == {"wide": BEHIND}


def test_srsf_counts_gpu_seconds():
    states = make_line(wide=(4, 10.0), narrow=(1, 30.0))
    cluster = make_cluster(n1=4)
    by_time = decide("srtf", make_snapshot(cluster, *states, profiles=UNIT))
    by_service = decide("srsf", make_snapshot(cluster, *states, profiles=UNIT))
    assert list(started(by_time)) == ["wide"]
    assert list(started(by_service)) == ["narrow"]


def run(state: Any, gpu_type: Any = "", **holds: Any) -> Any:
    return replace(state, placement=make_placement(gpu_type, **holds), speed=1.0)


def test_srtf_stops_only_the_longest():
    short, long, new = make_line(short=(2, 50.0), long=(2, 90.0), new=(2, 20.0))
    short, long = run(short, n1=(2, 3)), run(long, n1=(0, 1))
    plan = decide("srtf", make_snapshot(make_cluster(n1=4), short, long, new, profiles=UNIT))
    assert [(type(step), step.job) for step in plan.steps] == [(Stop, "long"), (Start, "new")]
    assert plan.steps[0].cause == Cause(CauseCode.OUTRANKED, job=new.id)


def test_srtf_stops_no_job_in_vain():
    states = make_line(a=(1, 50.0), b=(1, 60.0), c=(1, 70.0), d=(1, 80.0))
    running = [run(s, **{node: [gpu]}) for s, (node, gpu) in zip(states, SPREAD, strict=True)]
    new = make_state("new", options=(2,), max_nodes=1, iterations_total=65.0, model="model-2")
    snapshot = make_snapshot(make_cluster(n1=2, n2=2), *running, new, profiles=UNIT)
    plan = decide("srtf", snapshot)
    # By number there is room for it in the place of c and d, but they are on two nodes.
    assert stopped(plan) == []
    assert waiting(plan) == {"new": Cause(CauseCode.NO_ROOM_ON_ONE_NODE, gpus=2)}


SPREAD: Any = [("n1", 0), ("n2", 0), ("n1", 1), ("n2", 1)]


def test_srtf_follows_new_profiles():
    first, second = make_line(first=(1, 50.0), second=(2, 60.0))
    cluster = make_cluster(n1=2)
    before = make_snapshot(cluster, first, second, profiles=UNIT)
    assert list(started(decide("srtf", before))) == ["first"]
    learnt = {p.type: p for p in [*UNIT, make_profile({2: 10.0}, model="model-2")]}
    assert list(started(decide("srtf", replace(before, profiles=learnt)))) == ["second"]


def test_cache_forgets_jobs_that_are_gone():
    profiles = {profile.type: profile for profile in UNIT}
    crowd = make_line(**{f"job-{n}": (1, float(n)) for n in range(1500)})
    snapshot = replace(make_snapshot(make_cluster(n1=1), *crowd), profiles=profiles)
    decide("srtf", snapshot)
    assert len(ranking._kept.latest[0].paces) == 1500
    late = make_state("late", options=(1,), model="model-1", order=2000)
    assert list(started(decide("srtf", replace(snapshot, pending=(late,))))) == ["late"]
    assert len(ranking._kept.latest[0].paces) == 1


def test_tiresias_serves_the_least_served_first():
    rich, poor = make_state("rich", options=(1,), service=5000.0), make_state("poor", options=(1,))
    plan = decide("tiresias", make_snapshot(make_cluster(n1=1), rich, poor))
    assert list(started(plan)) == ["poor"]
    middle = make_state("middle", options=(1,), service=100.0)
    plan = decide("tiresias", make_snapshot(make_cluster(n1=1), middle, poor))
    assert list(started(plan)) == ["middle"]


def test_tiresias_stops_only_lower_queues():
    lower = make_state("lower", options=(1,), holds={"n1": (0,)}, service=5000.0)
    new = make_state("new", options=(1,))
    plan = decide("tiresias", make_snapshot(make_cluster(n1=1), lower, new))
    assert (stopped(plan), list(started(plan))) == (["lower"], ["new"])
    same = make_state("same", options=(1,), holds={"n1": (0,)}, service=1000.0, order=5)
    plan = decide("tiresias", make_snapshot(make_cluster(n1=1), new, same))
    assert stopped(plan) == []


def test_tiresias_demotes_at_the_threshold():
    runs = make_state("runs", options=(2,), holds={"n1": (0, 1)}, service=3000.0)
    waits = make_state("waits", options=(2,), service=4000.0)
    cluster = make_cluster(n1=2)
    before = make_snapshot(cluster, runs, waits)
    plan = decide("tiresias", before)
    assert stopped(plan) == []
    after = replace(before, now=125.0, policy_state=plan.policy_state)
    assert stopped(decide("tiresias", after)) == ["runs"]
    assert stopped(decide("tiresias", replace(after, now=124.0))) == []


def test_stopped_job_goes_before_earlier_waiting_ones():
    low = make_state("low", options=(1,), holds={"n1": (0,)}, service=5000.0, order=1)
    other = make_state("other", options=(1,), service=5000.0, order=0)
    new = make_state("new", options=(1,), order=2)
    cluster = make_cluster(n1=1)
    first = decide("tiresias", make_snapshot(cluster, low))
    second = decide(
        "tiresias", make_snapshot(cluster, low, other, new, policy_state=first.policy_state)
    )
    assert (stopped(second), list(started(second))) == (["low"], ["new"])
    low = replace(low, placement=None, speed=0.0)
    third = decide("tiresias", make_snapshot(cluster, low, other, policy_state=second.policy_state))
    assert list(started(third)) == ["low"]


def test_tiresias_demotes_a_job_that_kept_its_gpus_for_a_while():
    young = make_state("young", options=(1,), holds={"n1": (0,)}, order=1)
    low = make_state("low", options=(1,), service=4000.0, order=0)
    cluster = make_cluster(n1=1)
    before = make_snapshot(cluster, young, low)
    # It has had enough, and its work is not saved yet.
    unsaved = make_snapshot(
        cluster,
        replace(young, service=4000.0, unsaved_from=0.0),
        low,
        policy_state=decide("tiresias", before).policy_state,
    )
    kept = decide("tiresias", unsaved)
    assert stopped(kept) == []
    saved = make_snapshot(
        cluster, replace(young, service=4000.0), low, policy_state=kept.policy_state
    )
    assert stopped(decide("tiresias", saved)) == ["young"]


@pytest.mark.parametrize(
    ("name", "find"),
    [
        ("afs-p", lambda state: state.scheduled[0]),
        ("ones", lambda state: state["trainees"]["job"]),
        ("sia", lambda state: state.most["job"]),
        ("themis", lambda state: state.ends["job"]),
        ("tiresias", lambda state: state.levels[0].running),
    ],
)
def test_policies_remember_jobs_that_they_are_not_asked_about(name, find):
    job = make_state("job", options=(1,), holds={"n1": (0,)})
    policy, cluster = policies.make(name), make_cluster(n1=2)
    first = policy.allocate(make_view(make_snapshot(cluster, job, now=1.0)))
    rest = make_snapshot(cluster, now=120.0, policy_state=first.state)
    alone = make_view(replace(rest, whole=make_snapshot(cluster, job)))
    assert find(policy.allocate(replace(alone, beside=(job,))).state)


@pytest.mark.parametrize(
    ("exact", "service", "gpus", "look"),
    [
        ("false", 250.5, 1, 2999.0),
        ("true", 250.5, 1, 2999.5),
        ("false", 250.0, 2, 1562.0),
        ("true", 3249.9, 2, 1.0),
    ],
)
def test_tiresias_wakes_at_the_next_demotion(exact, service, gpus, look):
    state = make_state("job", options=(gpus,), service=service)
    plan = decide("tiresias", make_snapshot(make_cluster(n1=2), state, now=7.0), exact=exact)
    assert plan.wake_at == 7.0 + look
