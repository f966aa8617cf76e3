"""
AFS and CoDDL: the paper's analysis and examples as oracles, and its algorithm written down naively.

That the policies keep all laws is tested in ``test_policies_laws.py``.
"""

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcore import cycle, policies
from dlcore.contract import Decision
from dlcore.model import CauseCode, Cluster, JobState, Snapshot
from dlcore.planning import Move, Reshape, Start, Stop
from dlcore.policies.papers.afs.curves import Curve
from dlcore.policies.papers.afs.sharing import (
    Contender,
    Sharing,
    Terms,
    hand_out,
    keep_packed,
    measure_length,
    measure_saturation,
)
from dlcore.policies.papers.afs.turns import Taking, Turns
from dlcore.profiles import Profile
from dlwire.messages import Shape
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
    contender = Contender(state, "", Curve(options, speeds))
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


# --- the paper's analysis -----------------------------------------------------------------


def wins_by_analysis(short: Contender, long: Contender) -> bool:
    """Whether (1) or (2) of section 3.2 is positive with what AFS assumes of the next time slot."""
    k_a, k_b = short.count, long.count
    p_a, more_a = short.curve.speed(k_a), short.curve.speed(k_a + 1)
    p_b, more_b = long.curve.speed(k_b), long.curve.speed(k_b + 1)
    w_a, w_b = short.work, long.work
    if w_a / p_a < w_b / more_b:
        then = w_a / (2 * more_b) * (more_b / p_a - p_b / more_a)
        return w_a / more_a - w_a / p_a + then > 0
    first = p_b / (2 * more_b) * (w_b / p_b - w_a / more_a)
    second = p_a / (2 * p_a) * (w_a / p_a - w_b / more_b)
    return w_a / more_a - w_b / more_b + first - second > 0


@pytest.mark.parametrize("seed", range(200))
def test_of_two_jobs_the_one_that_the_analysis_names_gets_the_gpu(seed: int):
    rng = random.Random(seed)
    jobs = [make_contender(i, rng.uniform(1, 100), bend(rng, 5)) for i in range(2)]
    for job in jobs:
        job.count = rng.randint(1, 4)
    short, long = sorted(jobs, key=measure_length)
    expected = long if wins_by_analysis(short, long) else short
    before = expected.count
    assert hand_out(jobs, 1, Terms(measure_length)) == 0
    assert expected.count == before + 1


def test_the_example_of_the_appendix_shares_evenly_and_then_gives_all_to_the_one_that_is_left():
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


# --- Algorithm 1 --------------------------------------------------------------------------


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


@pytest.mark.parametrize("seed", range(150))
def test_the_fast_algorithm_gives_what_the_printed_one_gives(seed: int):
    rng = random.Random(seed)
    specs = [(rng.uniform(1, 100), bend(rng, rng.randint(2, 9))) for _ in range(rng.randint(1, 7))]
    gpus = rng.randint(0, 30)
    fast = [make_contender(i, *spec) for i, spec in enumerate(specs)]
    left = hand_out(fast, gpus, Terms(measure_length))
    naive = [make_contender(i, *spec) for i, spec in enumerate(specs)]
    for _ in range(gpus - left):
        hungry = [job for job in naive if job.count < job.most]
        find_top(order_of_scan(hungry)).count += 1
    assert [job.count for job in fast] == [job.count for job in naive]
    assert left == 0 or all(job.count == job.most for job in fast)


def test_the_comparison_goes_in_a_circle_so_that_the_order_of_the_scan_matters():
    first = make_contender(0, 1.0, [2.5, 3.5])
    second = make_contender(1, 10.0, [5 / 3, 8 / 3])
    third = make_contender(2, 100.0, [1.0, 2.0])
    assert (beats(first, second), beats(second, third), beats(first, third)) == (False, False, True)
    tops = {find_top(order).state.id for order in itertools.permutations([first, second, third])}
    assert len(tops) > 1
    hand_out([first, second, third], 1, Terms(measure_length))
    assert second.count == 2, "the shortest of those that the most efficient one does not beat"


@pytest.mark.parametrize("seed", range(60))
def test_for_curves_that_bend_stage_one_is_what_the_printed_algorithm_does_first(seed: int):
    rng = random.Random(seed)
    count, gpus = rng.randint(1, 9), rng.randint(1, 9)
    speeds = [bend(rng, 9) for _ in range(count)]
    totals = [rng.uniform(1.0, 100.0) for _ in range(count)]
    states = [
        make_state(f"job-{i}", model=f"m{i}", options=(*EVERY, 9), iterations_total=totals[i])
        for i in range(count)
    ]
    profiles = [make_profile(dict(enumerate(s, start=1)), f"m{i}") for i, s in enumerate(speeds)]
    snapshot = make_snapshot(make_cluster(n1=gpus), *states, profiles=profiles)
    jobs = [make_contender(i, totals[i], speeds[i]) for i in range(count)]
    assert share_out("afs-l", snapshot) == {
        job.state.id: has for job, has in zip(jobs, play_printed(jobs, gpus), strict=True) if has
    }


def play_printed(jobs: Sequence[Contender], gpus: int) -> list[int]:
    """Algorithm 1 from nothing: a job without GPUs is infinitely long, its first gain is a whole."""
    waiting = sorted(jobs, key=lambda job: job.work / job.curve.speed(1))
    having: list[Contender] = []
    for _ in range(gpus):
        hungry = [job for job in having if job.count < job.most]
        top = find_top(order_of_scan(hungry)) if hungry else None
        gain = top.curve.speed(top.count + 1) / top.curve.speed(top.count) - 1 if top else 0.0
        if waiting and gain < 1.0:
            having.append(waiting.pop(0))
        elif top is not None:
            top.count += 1
    return [job.count if job in having else 0 for job in jobs]


def test_where_two_gpus_are_twice_as_fast_every_job_has_its_first_before_one_has_two():
    linear = make_profile({1: 1.0, 2: 2.0})
    states = [make_state(f"job-{i}", options=(1, 2), iterations_total=i + 1.0) for i in range(3)]
    snapshot = make_snapshot(make_cluster(n1=3), *states, profiles=[linear])
    assert share_out("afs-l", snapshot) == {"job-0": 1, "job-1": 1, "job-2": 1}


def test_with_more_jobs_than_gpus_the_shortest_run_and_the_longest_is_stopped():
    old = make_state("old", holds={"n1": (0, 1)}, iterations_total=1e6)
    new = [make_state(f"new-{i}", iterations_total=10.0 + i) for i in range(2)]
    plan = cycle.schedule(make_snapshot(make_cluster(n1=2), old, *new), policies.make("afs-l"))
    assert [(type(step), step.job) for step in plan.steps] == [
        (Stop, "old"),
        (Start, "new-0"),
        (Start, "new-1"),
    ]


def test_higher_priority_comes_before_shorter_length_for_the_first_gpu():
    short = make_state("short", iterations_total=1.0)
    urgent = make_state("urgent", iterations_total=1e6, priority=1)
    assert share_out("afs-l", make_snapshot(make_cluster(n1=1), short, urgent)) == {"urgent": 1}


def test_a_dip_in_the_middle_of_a_curve_does_not_end_the_growth():
    dip = make_profile({1: 1.0, 2: 1.9, 3: 1.5, 4: 3.0})
    state = make_state(options=(1, 2, 3, 4))
    assert share_out("afs-l", make_snapshot(make_cluster(n1=4), state, profiles=[dip])) == {
        "job": 4
    }


@given(st.integers(0, 10_000))
def test_no_gpu_is_left_idle_that_makes_a_job_faster(seed: int):
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


def test_without_its_terms_it_takes_lots_or_feeds_the_shortest():
    steep = make_profile({n: n**0.95 for n in EVERY}, "steep")
    flat = make_profile({n: n**0.3 for n in EVERY}, "flat")
    short = make_state("short", model="flat", options=EVERY, iterations_total=1.0)
    long = make_state("long", model="steep", options=EVERY, iterations_total=1e6)
    snapshot = make_snapshot(make_cluster(n1=8), short, long, profiles=[steep, flat])
    assert share_out("afs-l", snapshot)["long"] > 4
    assert share_out("afs-l:by_efficiency=false", snapshot) == {"short": 7, "long": 1}
    few = make_snapshot(make_cluster(n1=1), long, short, profiles=[steep, flat])
    assert share_out("afs-l:by_length=false", few) == {"long": 1}


# --- network packing and places -----------------------------------------------------------


def test_packing_allows_factors_and_multiples_of_a_machine():
    four = make_cluster(n1=4, n2=4)
    assert keep_packed(tuple(range(1, 17)), "", four) == (1, 2, 4, 8, 12, 16)
    assert keep_packed((1, 2, 3, 5), "", make_cluster(n1=64)) == (1, 2, 3, 5), "one machine"
    assert keep_packed((3, 5), "", four) == (3, 5), "it must run on something"


@pytest.mark.parametrize("seed", range(40))
def test_every_job_is_on_the_fewest_nodes_and_one_at_most_on_a_node_uses_the_network(seed: int):
    rng = random.Random(seed)
    cluster = Cluster(make_node(f"n{i}", 4) for i in range(rng.randint(2, 6)))
    profiles = [
        make_profile({Shape(n, -(-n // 4), ""): v for n, v in enumerate(bend(rng, 16), 1)}, f"m{i}")
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
    """Let jobs come, the first leave, and do what afs-l decides."""
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


def test_a_small_job_moves_into_a_gap_where_a_large_one_finds_no_place_else():
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


def test_a_job_that_moves_may_move_smaller_ones_in_its_turn():
    cluster = make_cluster(n1=4, n2=4, n3=4)
    pairs = [make_state(f"pair-{n}", options=(2,), holds={n: (0, 1)}) for n in ("n1", "n2")]
    ones = [
        make_state("one-1", options=(1,), holds={"n2": (2,)}),
        make_state("one-2", options=(1,), holds={"n3": (0,)}),
        make_state("one-3", options=(1,), holds={"n3": (1,)}),
        make_state("one-4", options=(1,), holds={"n3": (2,)}),
    ]
    new = make_state("new", options=(4,))
    plan = cycle.schedule(make_snapshot(cluster, *pairs, *ones, new), policies.make("afs-l"))
    kinds = [type(step) for step in plan.steps]
    assert kinds == [Move, Move, Start]
    assert [len(step.old.refs()) for step in plan.steps[:2] if isinstance(step, Move)] == [1, 2]


def test_no_job_moves_where_room_is_without_it():
    cluster = make_cluster(n1=4, n2=4)
    left = make_state("left", options=(2,), holds={"n1": (0, 1)})
    new = make_state("new", options=(4,))
    plan = cycle.schedule(make_snapshot(cluster, left, new), policies.make("afs-l"))
    assert [type(step) for step in plan.steps] == [Start]


def test_a_job_that_finds_no_place_for_its_share_gets_the_next_smaller_one():
    # Neither can move, because its checkpoint binds it.
    cluster = make_cluster(n1=4, n2=4)
    bound = [
        make_state(f"job-{n}", options=(2,), holds={n: (0, 1)}, bound_to=(n,)) for n in ("n1", "n2")
    ]
    new = make_state("new", options=(2, 4))
    snapshot = make_snapshot(cluster, *bound, new)
    decision = decide("afs-l", snapshot)
    assert decision.shares["new"].gpus == 2  # type: ignore[index]


def test_gpus_of_a_lost_node_are_shared_out_like_any_other_event():
    cluster = make_cluster(n1=4)
    held = make_state("held", options=(1, 2, 4), holds={"n1": (0, 1, 2, 3)})
    lost = make_state("lost", options=(1, 2, 4), holds={"gone": (0, 1)}, order=1)
    plan = cycle.schedule(make_snapshot(cluster, held, lost), policies.make("afs-l"))
    assert [type(step) for step in plan.steps] == [Stop]
    again = make_state("lost", options=(1, 2, 4), order=1)
    plan = cycle.schedule(make_snapshot(cluster, held, again), policies.make("afs-l"))
    assert [type(step) for step in plan.steps] == [Reshape, Start]


def test_each_type_of_gpu_is_divided_for_itself():
    cluster = make_cluster(a=(4, "A"), b=(4, "B"))
    states = [make_state(f"job-{i}", options=(1, 2, 4), iterations_total=10.0) for i in range(2)]
    shares = decide("afs-l", make_snapshot(cluster, *states)).shares
    assert {share.gpu_type for share in shares.values()} == {"A", "B"}
    assert {share.gpus for share in shares.values()} == {4}


# --- sizes unknown: AFS-P and AFS-S -------------------------------------------------------


@pytest.mark.parametrize("policy", ["afs-p", "afs-s"])
def test_jobs_take_turns_of_two_hours_where_they_outnumber_the_gpus(policy: str):
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


def test_counters_are_ignored_while_every_job_can_have_a_gpu():
    cluster = make_cluster(n1=4)
    states = [make_state("a", order=0), make_state("b", order=1)]
    decision = decide("afs-p", make_snapshot(cluster, *states))
    assert decision.wake_at is None
    assert sum(share.gpus for share in decision.shares.values()) == 4


def test_lots_are_drawn_by_the_seed_and_kept():
    cluster = make_cluster(n1=9)
    states = [make_state(f"job-{i}", options=EVERY) for i in range(8)]
    winners = set()
    for seed in range(10):
        shares = share_out("afs-p", make_snapshot(cluster, *states, seed=seed))
        assert shares == share_out("afs-p", make_snapshot(cluster, *states, seed=seed))
        winners |= {job for job, gpus in shares.items() if gpus == 2}
    assert len(winners) > 2


def test_a_job_of_which_nothing_is_measured_has_at_most_its_fair_share():
    cluster = make_cluster(n1=8)
    known = make_state("known", options=EVERY, order=0)
    new = make_state("new", model="never-seen", options=EVERY, order=1)
    profile = make_profile({n: n**0.3 for n in EVERY})
    shares = share_out("afs-p", make_snapshot(cluster, known, new, profiles=[profile]))
    assert shares == {"known": 4, "new": 4}


def test_speeds_are_overestimated_first_and_corrected_when_they_are_seen():
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


def test_afs_s_shares_evenly_up_to_the_peaks():
    cluster = make_cluster(n1=12)
    peak = make_profile({1: 1.0, 2: 1.9, 3: 1.2}, "peak")
    flat = make_profile({n: n**0.1 for n in EVERY}, "flat")
    steep = make_profile({n: n**0.99 for n in EVERY}, "steep")
    states = [
        make_state(m, model=m, options=(1, 2, 3) if m == "peak" else EVERY)
        for m in ("peak", "flat", "steep")
    ]
    snapshot = make_snapshot(cluster, *states, profiles=[peak, flat, steep])
    assert share_out("afs-s", snapshot) == {"peak": 2, "flat": 5, "steep": 5}


def order_all(states: Sequence[JobState], scheduled: dict[int, float], gpus: int) -> list[JobState]:
    """The order of turns written down naively; the turn of no running job has just ended."""
    if sum(state.least for state in states) <= gpus:
        return list(states)  # All have room, and counters do not matter.

    def rank(state: JobState) -> tuple[bool, int, int]:
        return state.placement is None, int(scheduled.get(state.order, 0.0) // 100.0), state.order

    return sorted(states, key=rank)


def test_turns_are_taken_by_counters_however_long_the_queue_is():
    chance = random.Random(3)
    for _ in range(60):
        running = [make_state(f"r{n}", holds={"n1": (n,)}, order=n) for n in range(3)]
        waiting = [
            make_state(f"w{n}", options=(chance.choice((1, 2, 5)),), order=n)
            for n in range(3, chance.choice((5, 6, 8, 12, 300)))
        ]
        scheduled = {s.order: chance.choice((50.0, 150.0, 250.0)) for s in waiting[1:]}
        gone = {10_000: 150.0}
        gpus = chance.choice((3, 4, 5, 8))
        view = make_view(
            make_snapshot(make_cluster(n1=gpus), *running, *waiting, now=1000.0,
                          policy_state=Turns(1000.0, {**scheduled, **gone}))
        )  # fmt: skip
        taking, sharing = Taking(view, 100.0), Sharing(view, packing=False)
        sharing.admit(taking.rank())
        left, admitted = gpus, []
        for state in order_all([*running, *waiting], scheduled, gpus):
            if state.least <= left:
                left -= state.least
                admitted.append(state.id)
        assert list(sharing.contenders) == admitted
        assert taking.scheduled == {**scheduled, 0: 0.0, 1: 0.0, 2: 0.0}


# --- elastic SRTF and SRSF ----------------------------------------------------------------


def test_what_requests_leave_goes_to_the_job_that_gains_most():
    steep = make_profile({n: n**0.95 for n in EVERY}, "steep")
    flat = make_profile({n: n**0.3 for n in EVERY}, "flat")
    states = [
        make_state("flat", model="flat", options=EVERY, requested=2),
        make_state("steep", model="steep", options=EVERY, requested=2),
    ]
    snapshot = make_snapshot(make_cluster(n1=7), *states, profiles=[steep, flat])
    for policy in ("srtf-e", "srsf-e"):
        assert share_out(policy, snapshot) == {"flat": 2, "steep": 5}


def test_a_job_whose_request_does_not_fit_has_its_least_of_what_is_left():
    short = make_state("short", options=(1, 2, 4), requested=4, iterations_total=1.0)
    long = make_state("long", options=(1, 2, 4), requested=4, iterations_total=9.0)
    snapshot = make_snapshot(make_cluster(n1=6), short, long)
    assert share_out("srtf-e", snapshot) == {"short": 4, "long": 2}


def test_they_differ_in_whether_gpus_count():
    wide = make_state("wide", options=(4,), iterations_total=100.0)
    narrow = make_state("narrow", options=(1,), iterations_total=100.0)
    snapshot = make_snapshot(make_cluster(n1=4), wide, narrow)
    assert list(share_out("srtf-e", snapshot)) == ["wide"]
    assert list(share_out("srsf-e", snapshot)) == ["narrow"]


def test_a_sharing_takes_a_job_once():
    snapshot = make_snapshot(make_cluster(n1=4), make_state("job", options=(1, 2)))
    sharing = Sharing(make_view(snapshot), packing=True)
    for _ in range(2):
        sharing.admit(lambda left: iter(snapshot.pending))
    assert sharing.most == 3
