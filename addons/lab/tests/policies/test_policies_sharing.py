"""The policies that share GPUs out by their worth, and those that peers evaluate with."""

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from dljob.core import cycle
from dljob.core.model import CauseCode, JobState, NodeName, Placement, Snapshot
from dljob.core.planning import Plan, Reshape, Start, Stop
from dljob.core.profiles import Costs
from dljob.sim import policies
from dljob_lab.policies.common.pricing import Priced
from dljob_lab.policies.common.sharing import Claim, read_claims
from dljob_lab.policies.common.speed_curves import make_curve
from dljob_lab.policies.elastic.hesrpt import find_shares, round_shares
from dljob_lab.policies.elastic.lyra import find_more
from dljob_lab.policies.elastic.sia import Choice, Rounds, solve, take_greedily
from dljob_lab.policies.elastic.themis import UNSERVED, Bid, Leases, find_winners
from tests.builders import (
    count_gpus,
    make_cluster,
    make_node,
    make_profile,
    make_snapshot,
    make_state,
    make_view,
)

ROOT = make_profile({gpus: gpus**0.5 for gpus in range(1, 9)})
"""The fourth GPU adds a quarter of the first, so that sharing pays."""

SHARING = ("smartfill", "hesrpt", "hdf", "lyra")


def decide(snapshot: Snapshot, policy: str) -> Plan:
    return cycle.schedule(snapshot, policies.read(policy))


def list_placements(plan: Plan) -> list[Placement]:
    return [step.placement for step in plan.steps if isinstance(step, Start)]


@pytest.mark.parametrize("policy", SHARING)
def test_lone_job_grows_to_its_peak(policy: str):
    peaked = make_profile({1: 1.0, 2: 1.8, 4: 3.0, 8: 2.0})
    job = make_state(options=(1, 2, 4, 8))
    assert count_gpus(
        decide(make_snapshot(make_cluster(n1=8), job, profiles=[peaked]), policy)
    ) == {"job": 4}


@pytest.mark.parametrize("policy", ["smartfill", "hesrpt", "hdf"])
def test_shorter_job_gets_more(policy: str):
    short = make_state("short", options=(1, 2, 3, 4, 5, 6, 7, 8), iterations_total=100.0)
    long = make_state("long", options=(1, 2, 3, 4, 5, 6, 7, 8), iterations_total=9000.0)
    given = count_gpus(
        decide(make_snapshot(make_cluster(n1=8), long, short, profiles=[ROOT]), policy)
    )
    assert given["short"] > given["long"] > 0
    assert sum(given.values()) == 8


@pytest.mark.parametrize("policy", SHARING)
def test_gpus_are_taken_only_for_another_job(policy: str):
    rich = make_state("rich", options=(1, 2, 4), holds={"n1": range(4)}, iterations_total=9000.0)
    snapshot = make_snapshot(make_cluster(n1=4), rich, make_state("new"), profiles=[ROOT])
    plan = decide(snapshot, policy)
    (loss,) = [step for step in plan.steps if isinstance(step, Reshape | Stop)]
    assert (loss.cause.code, loss.cause.job) == (CauseCode.FAIR_SHARE, "new")


@pytest.mark.parametrize("policy", SHARING)
def test_job_slower_with_more_gives_gpus_back(policy: str):
    peaked = make_profile({1: 1.0, 2: 1.5, 4: 1.2})
    job = make_state(options=(1, 2, 4), holds={"n1": range(4)}, speed=1.2)
    plan = decide(make_snapshot(make_cluster(n1=4), job, profiles=[peaked]), policy)
    (step,) = plan.steps
    assert step.cause.code is CauseCode.FASTER_WITH_FEWER
    assert count_gpus(plan) == {"job": 2}


@pytest.mark.parametrize("policy", SHARING)
def test_no_gpus_are_taken_for_a_job_without_a_node(policy: str):
    """Two GPUs on each of two nodes are four, but not for a job of one node."""
    jobs = [make_state(f"runs-{n}", options=(2,), holds={n: (0, 1)}) for n in ("n1", "n2")]
    wide = make_state("wide", options=(3,), max_nodes=1, iterations_total=1.0)
    bound = replace(wide, bound_to=(NodeName("n1"),))
    assert not count_gpus(decide(make_snapshot(make_cluster(n1=2, n2=2), *jobs, bound), policy))
    assert not count_gpus(decide(make_snapshot(make_cluster(n1=2, n2=2), *jobs, wide), policy))


def test_observed_speed_replaces_an_unknown_one():
    fast = make_state("fast", model="unknown", options=(1,), holds={"n1": (0,)}, speed=1000.0)
    slow = make_state("slow", model="unknown", options=(1,), holds={"n1": (1,)}, speed=0.01)
    view = make_view(make_snapshot(make_cluster(n1=2), fast, slow, profiles=[]))
    assert [claim.span for claim in read_claims(view)] == [1.0, 100_000.0]


@pytest.mark.parametrize("policy", SHARING)
def test_job_keeps_gpus_that_no_other_may_have(policy: str):
    cluster = make_cluster(make_node("n1", 4, schedulable=False), n2=4)
    kept = make_state("kept", options=(1, 2, 4), holds={"n1": range(4)})
    plan = decide(make_snapshot(cluster, kept, make_state("new", options=(1, 2, 4))), policy)
    assert count_gpus(plan) == {"new": 4}


def test_worth_of_a_gpu_is_that_of_the_last():
    curve = make_curve((1, 2, 4), (1.0, 1.6, 2.0))
    given = [Priced(curve, 2.0, count).worth for count in (0, 1, 2, 4, 8)]
    steps = [step.gain for step in curve.steps]
    assert given == [2.0 * steps[0], 2.0 * steps[0], 2.0 * steps[1], 2.0 * steps[2], 0.0]


def test_hesrpt_shares_match_the_closed_form():
    assert find_shares(3, 0.5) == pytest.approx([5 / 9, 3 / 9, 1 / 9])
    assert sum(find_shares(7, 0.8)) == pytest.approx(1.0)


def make_claims(*options: tuple[int, ...]) -> list[Claim]:
    curves = [make_curve(each, [k**0.5 for k in each]) for each in options]
    return [Claim(make_state(order=i), "", c, 100.0) for i, c in enumerate(curves)]


def test_rounding_rest_goes_to_the_next_larger_then_smallest():
    # Shares of 9 GPUs are 5, 3 and 1: the first can use 4, so the second has 3 + 1.
    claims = make_claims((1, 2, 4), (1, 2, 4), (1, 2, 4))
    assert round_shares(claims, find_shares(3, 0.5), gpus=9) == [4, 4, 1]
    # The last job peaks at one GPU: the rest goes to the smallest job that can use it.
    claims = make_claims((1, 2, 6), (1, 2), (1,))
    assert round_shares(claims, find_shares(3, 0.5), gpus=9) == [6, 2, 1]


def test_hesrpt_changes_shares_only_with_the_set_of_jobs():
    jobs = [make_state(name, options=tuple(range(1, 9))) for name in ("a", "b")]
    first = make_snapshot(make_cluster(n1=8), *jobs)
    plan = decide(first, "hesrpt")
    shares = list_placements(plan)
    # Their order has changed since, but nothing has happened.
    held = [
        replace(job, placement=placement, speed=1.0, order=i, iterations_done=done)
        for i, (job, placement, done) in enumerate(zip(jobs, shares, (0.0, 900.0), strict=True))
    ]
    after = make_snapshot(make_cluster(n1=8), *held, policy_state=plan.policy_state)
    assert decide(after, "hesrpt").steps == ()
    assert decide(replace(after, policy_state=None), "hesrpt").steps != ()


def test_lyra_admits_by_remaining_time():
    long = make_state("long", options=(2, 4), iterations_total=9000.0)
    short = make_state("short", options=(2, 4), iterations_total=100.0)
    wide = make_state("wide", options=(3, 4), iterations_total=200.0)
    plan = decide(make_snapshot(make_cluster(n1=4), long, wide, short), "lyra")
    # The wide job is second, and does not fit after the first.
    assert count_gpus(plan) == {"short": 2, "long": 2}


def test_lyra_preempts_unless_disabled():
    old = make_state("old", options=(4,), holds={"n1": range(4)}, iterations_total=9000.0)
    snapshot = make_snapshot(make_cluster(n1=4), old, make_state("new", options=(4,)))
    assert count_gpus(decide(snapshot, "lyra")) == {"old": 0, "new": 4}
    assert count_gpus(decide(snapshot, "lyra:preempts=false")) == {}


def test_lyra_maximises_the_time_saved():
    rng = random.Random(7)
    for _ in range(60):
        claims = []
        for order in range(rng.randint(1, 4)):
            options = sorted(rng.sample(range(1, 7), rng.randint(1, 4)))
            curve = make_curve(options, sorted(rng.uniform(0.2, 3.0) for _ in options))
            claims.append(Claim(make_state(order=order), "", curve, rng.uniform(10.0, 900.0)))
        gpus = rng.randint(0, 10)
        more = find_more(claims, gpus)
        ends = sum(c.remaining(c.curve.least + n) for c, n in zip(claims, more, strict=True))
        best = min(
            sum(c.remaining(n) for c, n in zip(claims, counts, strict=True))
            for counts in itertools.product(*(c.curve.options for c in claims))
            if sum(counts) - sum(c.curve.least for c in claims) <= gpus
        )
        assert ends == pytest.approx(best)


def make_waiting(name: str, since: float, **rest) -> JobState:
    """A job that requests four GPUs and was submitted ``since`` seconds before the second 1000."""
    given = {"options": (4,), "requested": 4, "submitted_at": 1000.0 - since, **rest}
    return make_state(name, **given)


def test_themis_leases_to_the_longest_waiting():
    jobs = [make_waiting("new", 10.0), make_waiting("old", 900.0)]
    plan = decide(make_snapshot(make_cluster(n1=4), *jobs, now=1000.0), "themis")
    assert count_gpus(plan) == {"old": 4}
    assert plan.wake_at == 1000.0 + 1200.0


def test_themis_respects_a_lease_until_it_ends():
    runs = make_waiting("runs", 10.0, holds={"n1": range(4)}, iterations_total=9e6)
    worse = make_waiting("worse", 990.0, iterations_total=10.0)
    snapshot = make_snapshot(make_cluster(n1=4), runs, worse, now=1000.0)
    leased = replace(snapshot, policy_state=Leases({runs.id: 1500.0}))
    plan = decide(leased, "themis")
    assert (count_gpus(plan), plan.wake_at) == ({}, 1500.0)
    plan = decide(replace(leased, now=1500.0), "themis")
    assert count_gpus(plan) == {"runs": 0, "worse": 4}
    assert plan.policy_state == Leases({worse.id: 2700.0})


def test_themis_auction_maximises_the_product():
    rng = random.Random(11)
    for _ in range(40):
        bids = []
        for order in range(rng.randint(1, 4)):
            options = sorted(rng.sample(range(1, 6), rng.randint(1, 3)))
            curve = make_curve(options, sorted(rng.uniform(0.2, 3.0) for _ in options))
            claim = Claim(make_state(order=order), "", curve, rng.uniform(10.0, 900.0))
            bids.append(Bid(claim, curve.options, 100.0, rng.uniform(1.0, 900.0)))
        gpus = rng.randint(0, 9)
        choices = itertools.product(*((0, *bid.options) for bid in bids))
        best = max(multiply(bids, counts) for counts in choices if sum(counts) <= gpus)
        assert multiply(bids, find_winners(bids, gpus)) == pytest.approx(best)


def multiply(bids: Sequence[Bid], counts: Sequence[int]) -> float:
    return math.prod(1 / (b.rho(n) if n else UNSERVED) for b, n in zip(bids, counts, strict=True))


def count_cost(taken: Sequence[Choice], jobs: int) -> float:
    return sum(choice.cost for choice in taken) + 1.1 * (jobs - len(taken))


def search_choices(choices: Sequence[Choice], gpus: dict[str, int], jobs: int) -> float:
    by_job = [[c for c in choices if c.job == job] for job in range(jobs)]
    costs = []
    for picked in itertools.product(*([None, *each] for each in by_job)):
        taken = [choice for choice in picked if choice is not None]
        used = {kind: sum(c.gpus for c in taken if c.claim.gpu_type == kind) for kind in gpus}
        if all(used[kind] <= gpus[kind] for kind in gpus):
            costs.append(count_cost(taken, jobs))
    return min(costs)


def test_sia_solution_matches_search():
    rng = random.Random(13)
    (claim,) = make_claims((1, 2, 4))
    claims = {kind: claim._replace(gpu_type=kind) for kind in ("V100", "P100")}
    for _ in range(20):
        jobs, gpus = rng.randint(1, 5), {"V100": rng.randint(1, 6)}
        if rng.random() < 0.7:
            gpus["P100"] = rng.randint(0, 4)
        choices = [
            Choice(job, n, claims[kind], round(rng.uniform(0.3, 1.09), 2))
            for job in range(jobs)
            for kind in gpus
            for n in (1, 2, 4)
        ]
        taken = solve(choices, gpus, penalty=1.1, nodes=1000, gap=0.0)
        assert len({choice.job for choice in taken}) == len(taken)
        least = search_choices(choices, gpus, jobs)
        assert count_cost(taken, jobs) == pytest.approx(least)
        assert count_cost(take_greedily(choices, gpus, penalty=1.1), jobs) >= least - 1e-9
    assert solve([], {"": 4}, penalty=1.1, nodes=1, gap=0.0) == []


ALONE = make_state("job", options=(1, 2, 4, 8))
DOUBLING = make_profile({n: float(n) for n in (1, 2, 4, 8)})


def test_sia_starts_small_and_doubles_each_round():
    snapshot = make_snapshot(make_cluster(n1=8), ALONE, now=10.0, profiles=[DOUBLING])
    plan = decide(snapshot, "sia")
    assert (count_gpus(plan), plan.wake_at) == ({"job": 1}, 60.0)
    held = replace(ALONE, placement=list_placements(plan)[0], speed=1.0)
    early = make_snapshot(
        make_cluster(n1=8), held, now=59.0, profiles=[DOUBLING], policy_state=plan.policy_state
    )
    assert (decide(early, "sia").steps, decide(early, "sia").wake_at) == ((), 60.0)
    plan = decide(replace(early, now=60.0), "sia")
    assert (count_gpus(plan), plan.wake_at) == ({"job": 2}, 120.0)
    assert plan.policy_state == Rounds(120.0, {ALONE.id: 1}, {ALONE.id: 2})


def test_sia_changes_a_job_less_after_many_changes():
    costs = Costs(process_initialization=100.0)
    held = make_state(options=(1, 2), holds={"n1": (0,)}, submitted_at=0.0)
    snapshot = make_snapshot(make_cluster(n1=2), held, now=1000.0, costs=costs, profiles=[DOUBLING])
    assert count_gpus(decide(snapshot, "sia")) == {"job": 2}
    # 2 x (1000 - 5 x 100) / 1100 is less than 1.
    often = replace(snapshot, policy_state=Rounds(0.0, {held.id: 5}, {held.id: 1}))
    assert count_gpus(decide(often, "sia")) == {}
