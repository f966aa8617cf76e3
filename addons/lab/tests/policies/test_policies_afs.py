"""
AFS and CoDDL: the paper's examples as oracles, and its algorithm written down naively.

That the policies keep all laws is tested in ``test_policies_laws.py``.
"""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob.core import cycle
from dljob.core.contract import Decision
from dljob.core.model import CauseCode, Cluster, JobState, Snapshot
from dljob.core.planning import Move, Start
from dljob.core.profiles import Profile
from dljob.sim import policies
from dljob_lab.policies.elastic.afs.curves import Curve
from dljob_lab.policies.elastic.afs.sharing import (
    Contender,
    Terms,
    hand_out,
    keep_packed,
    measure_length,
    measure_saturation,
)
from dljob_wire.messages import Shape
from tests.builders import (
    make_cluster,
    make_node,
    make_profile,
    make_snapshot,
    make_state,
    make_view,
)

EVERY = tuple(range(1, 9))
"""Options without gaps."""


def make_contender(order: int, work: float, speeds: Sequence[float]) -> Contender:
    """A job with one GPU, this amount of work, and these speeds on 1, 2 ... GPUs."""
    options = tuple(range(1, len(speeds) + 1))
    state = make_state(f"job-{order}", options=options, order=order)
    contender = Contender(state, "", curve=Curve(options, speeds))
    contender.work = work
    return contender


def bend(rng: random.Random, most: int) -> list[float]:
    """Speeds that rise and bend down, as the paper's do, with a first gain below the first speed."""
    gain, speeds = rng.uniform(0.3, 0.99), [1.0]
    for _ in range(most - 1):
        speeds.append(speeds[-1] + gain)
        gain *= rng.uniform(0.5, 1.0)
    scale = rng.uniform(0.1, 10.0)
    return [speed * scale for speed in speeds]


def share_out(policy: str, snapshot: Snapshot) -> dict[str, int]:
    """How many GPUs the policy gives to each job."""
    return {job: share.gpus for job, share in decide(policy, snapshot).shares.items()}


def decide(policy: str, snapshot: Snapshot) -> Decision:
    return policies.read(policy).allocate(make_view(snapshot))


def test_example_of_the_appendix():
    """Appendix A: A takes 2 h or 1 h, B 2 h or 1.5 h, on one or two of two GPUs."""
    cluster = make_cluster(n1=2)
    profiles = (
        make_profile({1: 1 / 7200, 2: 1 / 3600}, "A"),
        make_profile({1: 1 / 7200, 2: 1 / 5400}, "B"),
    )
    first = make_state("a", model="A", options=(1, 2), iterations_total=1)
    other = make_state("b", model="B", options=(1, 2), iterations_total=1)
    both = make_snapshot(cluster, first, other, profiles=profiles)
    assert share_out("afs-l", both) == {"a": 1, "b": 1}
    assert share_out("afs-l", make_snapshot(cluster, other, profiles=profiles)) == {"b": 2}


def beats(short: Contender, long: Contender) -> bool:
    """(3) for two jobs that have GPUs, the longer one being second."""
    p_a, more_a = short.curve.speed(short.count), short.curve.speed(short.count + 1)
    p_b, more_b = long.curve.speed(long.count), long.curve.speed(long.count + 1)
    return (more_b - p_b) / more_b > (more_a - p_a) / p_a


def find_top(jobs: Sequence[Contender]) -> Contender:
    """``TOPPRIORITY`` as it is printed; jobs are met in this order."""
    top = jobs[0]
    for job in jobs[1:]:
        short, long = sorted((top, job), key=lambda each: (measure_length(each), each.state.order))
        top = long if beats(short, long) else short
    return top


def order_of_scan(jobs: Sequence[Contender]) -> list[Contender]:
    """All that the most efficient job beats, then that one, then the others."""
    best = min(jobs, key=measure_saturation)
    most = measure_saturation(best) + 1.0
    far = [job for job in jobs if measure_saturation(job) > most]
    return [*far, best, *(job for job in jobs if job is not best and job not in far)]


def test_fast_algorithm_matches_the_printed_one():
    for seed in range(50):
        rng = random.Random(seed)
        specs = [
            (rng.uniform(1, 100), bend(rng, rng.randint(2, 9))) for _ in range(rng.randint(1, 7))
        ]
        gpus = rng.randint(0, 30)
        fast = [make_contender(i, *spec) for i, spec in enumerate(specs)]
        left = hand_out(fast, gpus, terms=Terms(measure_length))
        naive = [make_contender(i, *spec) for i, spec in enumerate(specs)]
        for _ in range(gpus - left):
            hungry = [job for job in naive if job.count < job.most]
            find_top(order_of_scan(hungry)).count += 1
        assert [job.count for job in fast] == [job.count for job in naive]
        assert left == 0 or all(job.count == job.most for job in fast)


def test_priority_beats_length_for_the_first_gpu():
    short = make_state("short", iterations_total=1.0)
    urgent = make_state("urgent", iterations_total=1e6, priority=1)
    assert share_out("afs-l", make_snapshot(make_cluster(n1=1), short, urgent)) == {"urgent": 1}


@given(st.integers(0, 10_000))
def test_useful_gpus_are_never_idle(seed: int):
    rng = random.Random(seed)
    gpus = rng.randint(1, 24)
    pool = [(1, 2, 4, 8), (1, 3, 6), (2, 4), EVERY, (4, 8, 16), (1,)]
    profiles = [
        make_profile(dict(enumerate(bend(rng, 16), start=1)), f"m{i}")
        for i in range(rng.randint(1, 6))
    ]
    states = [
        make_state(f"job-{i}", model=p.type.model, options=rng.choice(pool), order=i)
        for i, p in enumerate(profiles)
    ]
    snapshot = make_snapshot(make_cluster(n1=gpus), *states, profiles=profiles)
    shares = share_out("afs-l", snapshot)
    idle = gpus - sum(shares.values())
    for state in states:
        has = shares.get(state.id, 0)
        higher = [n for n in state.job.gpus.options if has < n <= has + idle]
        assert not higher, f"{state.id} has {has} and could have {higher[0]}"


def test_packing_allows_factors_and_multiples_of_a_machine():
    four = make_cluster(n1=4, n2=4)
    assert keep_packed(tuple(range(1, 17)), "", cluster=four) == (1, 2, 4, 8, 12, 16)
    assert keep_packed((1, 2, 3, 5), "", cluster=make_cluster(n1=64)) == (1, 2, 3, 5), "one machine"
    assert keep_packed((3, 5), "", cluster=four) == (3, 5), "it must run on something"


def test_jobs_are_packed_and_share_no_network():
    for seed in range(12):
        rng = random.Random(seed)
        cluster = Cluster(make_node(f"n{i}", 4) for i in range(rng.randint(2, 6)))
        profiles = [
            make_profile(
                {Shape(n, -(-n // 4), ""): v for n, v in enumerate(bend(rng, 16), 1)}, f"m{i}"
            )
            for i in range(9)
        ]
        snapshot = make_snapshot(cluster, profiles=profiles)
        for arrivals in range(6):
            number = rng.randint(1, 2)
            fresh = [
                make_state(
                    f"job-{arrivals}-{i}",
                    model=f"m{rng.randrange(9)}",
                    options=tuple(range(1, 17)),
                    iterations_total=rng.uniform(1.0, 100.0),
                    order=10 * arrivals + i,
                )
                for i in range(number)
            ]
            snapshot = run(snapshot, fresh, profiles, leaves=rng.random() < 0.4)
            check_packed(snapshot)
            held = [state.placement.gpus for state in snapshot.running if state.placement]
            usable = min(cluster.total, 16 * len(held))
            assert sum(held) == usable, "Proposition 2: nothing is idle for the sake of packing"


def run(
    snapshot: Snapshot, fresh: Sequence[JobState], profiles: Sequence[Profile], *, leaves: bool
) -> Snapshot:
    """Add jobs, remove the first if it leaves, and apply the decision of afs-l."""
    from tests.core.test_policies_laws import apply, with_states

    there = [*snapshot.running, *snapshot.pending][1 if leaves else 0 :]
    world = with_states(snapshot, [*there, *fresh])
    return apply(cycle.schedule(world, policies.make("afs-l")), world)


def check_packed(snapshot: Snapshot) -> None:
    on_network: list[str] = []
    for state in snapshot.running:
        assert state.placement is not None
        gpus = state.placement.gpus
        assert gpus in (1, 2) or gpus % 4 == 0
        assert len(state.placement.nodes) == -(-gpus // 4), f"{state.id} is on too many nodes"
        on_network += state.placement.nodes if gpus > 4 else ()
    assert len(on_network) == len(set(on_network))


def test_small_job_moves_for_a_large_one():
    cluster = make_cluster(n1=4, n2=4)
    left = make_state("left", options=(2,), holds={"n1": (0, 1)})
    right = make_state("right", options=(2,), holds={"n2": (0, 1)})
    new = make_state("new", options=(4,))
    plan = cycle.schedule(make_snapshot(cluster, left, right, new), policies.make("afs-l"))
    moved, started = plan.steps
    assert isinstance(moved, Move)
    assert moved.cause.code is CauseCode.PACKING
    assert isinstance(started, Start)
    assert started.placement.shape.nodes == 1
    assert started.after == (moved.job,)


@pytest.mark.parametrize("policy", ["afs-p", "afs-s"])
def test_jobs_take_turns_of_two_hours(policy: str):
    cluster = make_cluster(n1=1)
    first, second = make_state("first", order=0), make_state("second", order=1)
    decision = decide(policy, make_snapshot(cluster, first, second))
    assert list(decision.shares) == ["first"]
    assert decision.wake_at == 7200.0
    runs = make_state("first", order=0, holds={"n1": (0,)})
    middle = make_snapshot(cluster, runs, second, now=3600.0, policy_state=decision.state)
    decision = decide(policy, middle)
    assert list(decision.shares) == ["first"], "no job is evicted before the unit is over"
    assert decision.wake_at == 7200.0
    over = make_snapshot(cluster, runs, second, now=7200.0, policy_state=decision.state)
    decision = decide(policy, over)
    assert list(decision.shares) == ["second"]
    assert decision.wake_at == 14_400.0
    runs = make_state("second", order=1, holds={"n1": (0,)})
    back = make_snapshot(cluster, first, runs, now=14_400.0, policy_state=decision.state)
    decision = decide(policy, back)
    assert list(decision.shares) == ["second"], "with equal counters the one that runs goes on"
    later = make_snapshot(cluster, first, runs, now=21_600.0, policy_state=decision.state)
    assert list(decide(policy, later).shares) == ["first"]


def test_unseen_speeds_are_overestimated_and_then_corrected():
    cluster = make_cluster(n1=8)
    known = make_state("known", options=EVERY, order=0)
    new = make_state("new", model="new", options=EVERY, order=1)
    steady = make_profile({n: n**0.7 for n in EVERY})
    narrow = make_profile({1: 1.0, 2: 1.8}, "new")
    first = make_snapshot(cluster, known, new, profiles=[steady, narrow])
    wide = make_profile({1: 1.0, 2: 1.8, 3: 1.81, 4: 1.82, 5: 1.83}, "new")
    then = make_snapshot(cluster, known, new, profiles=[steady, wide])
    assert share_out("afs-p", first)["new"] >= 4
    assert share_out("afs-p", then)["new"] <= 3


def test_srsf_e_counts_gpus_and_srtf_e_does_not():
    wide = make_state("wide", options=(4,), iterations_total=100.0)
    narrow = make_state("narrow", options=(1,), iterations_total=100.0)
    snapshot = make_snapshot(make_cluster(n1=4), wide, narrow)
    assert list(share_out("srtf-e", snapshot)) == ["wide"]
    assert list(share_out("srsf-e", snapshot)) == ["narrow"]
