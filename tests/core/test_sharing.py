"""What each user is owed of the GPUs, and how borrowed GPUs come back."""

from dataclasses import replace
from random import Random
from typing import Any, ClassVar

import pytest

from dljob.core import cycle, keeping
from dljob.core.checking import Law
from dljob.core.contract import Decision, Share, View
from dljob.core.explaining.sentences import describe_shares, sentence_for_step, sentences_for
from dljob.core.model import Cause, CauseCode, Ceiling, JobId, JobState, Snapshot
from dljob.core.placement.limits import HALF_LIFE_S, NamespaceLimits, Use
from dljob.core.planning import Reshape, Start, Stop, Wait, settle
from dljob.core.policies.foresight.memory import Memory, Tenure, remember_tenures
from dljob.core.sharing import TURN_S, count_gpus, find_borrowed, find_owed, find_parts
from dljob.sim import policies
from tests.builders import FakePolicy, decide, make_cluster, make_snapshot, make_state

OPTIONS = tuple(range(1, 9))
EQUAL = {"*": 1}
UNUSED = Use()
LAWFUL = [name for name in policies.NAMES if not policies.make(name, {}).breaks]


def shared(
    *states: JobState,
    gpus: int = 8,
    shares: dict[str, int] = EQUAL,
    use: Use = UNUSED,
    now: float = 0.0,
) -> Snapshot:
    snapshot = make_snapshot(make_cluster(n1=gpus), *states, now=now)
    return replace(snapshot, limits=NamespaceLimits(shares=shares), use=use)


def owed(*states: JobState, **rest: Any) -> dict[str, int]:
    return dict(find_owed(shared(*states, **rest)))


def wide(name: str, **rest: Any) -> JobState:
    return make_state(name, options=OPTIONS, **rest)


def follow(snapshot: Snapshot, name: str, decisions: int = 4) -> Snapshot:
    """Take so many decisions, one after the other: some policies give GPUs out that another decision took."""
    for _ in range(decisions):
        plan = cycle.schedule(snapshot, policies.make(name, {}))
        snapshot = settle(snapshot, plan.steps)
        running = tuple(replace(s, adjusting=False, speed=1.0) for s in snapshot.running)
        states: dict[str, Any] = {"use": plan.use, "policy_state": plan.policy_state}
        snapshot = replace(snapshot, running=running, **states)
    return snapshot


# --- what is owed -------------------------------------------------------------------------


def test_shares_follow_the_weights():
    jobs = wide("a/1"), wide("b/1"), wide("c/1")
    assert owed(*jobs, shares={"a": 2, "*": 1}) == {"a": 4, "b": 2, "c": 2}


def test_user_alone_is_owed_all():
    assert owed(wide("a/1")) == {"a": 8}


def test_unused_share_is_owed_to_others():
    assert owed(wide("a/1"), make_state("b/1", options=(1,))) == {"a": 7, "b": 1}


def test_weight_zero_is_owed_the_rest():
    few = make_state("a/1", options=(1, 2))
    assert owed(wide("b/1"), few, shares={"a": 1}) == {"b": 6, "a": 2}
    assert owed(wide("a/1"), wide("b/1"), shares={"a": 1}) == {"a": 8, "b": 0}


def test_odd_gpu_goes_to_the_least_use():
    jobs = wide("a/1"), wide("b/1")
    assert owed(*jobs, gpus=3, use=Use(seconds={"a": 900.0})) == {"a": 1, "b": 2}
    assert owed(*jobs, gpus=3, use=Use(seconds={"b": 900.0})) == {"a": 2, "b": 1}


def test_holder_keeps_the_odd_gpu_for_a_turn():
    jobs = wide("a/1", holds={"n1": (0, 1)}), wide("b/1", holds={"n1": (2,)})
    within = Use(seconds={"a": TURN_S * 0.4, "b": 0.0})
    beyond = Use(seconds={"a": TURN_S * 0.6, "b": 0.0})
    assert owed(*jobs, gpus=3, use=within) == {"a": 2, "b": 1}
    assert owed(*jobs, gpus=3, use=beyond) == {"a": 1, "b": 2}


def test_use_of_long_ago_counts_less():
    use = Use(until=0.0, seconds={"a": 1000.0}, held={"b": 2})
    later = use.at(HALF_LIFE_S)
    assert later["a"] == pytest.approx(500.0)
    assert 0.5 * 2 * HALF_LIFE_S < later["b"] < 2 * HALF_LIFE_S


def test_minimum_beyond_the_share_gets_its_turn():
    large, small = make_state("a/1", options=(8,)), wide("b/1")
    assert owed(large, small, use=Use(seconds={"a": 9000.0})) == {"a": 0, "b": 8}
    assert owed(large, small, use=Use(seconds={"b": 9000.0})) == {"a": 8, "b": 0}


def test_limit_of_a_user_bounds_its_share():
    snapshot = shared(wide("a/1"), wide("b/1"))
    limits = replace(snapshot.limits, max_gpus={"a": 1})
    assert find_owed(replace(snapshot, limits=limits)) == {"a": 1, "b": 7}


def test_last_started_jobs_borrow_beyond_the_part_of_their_user():
    first = wide("a/1", holds={"n1": range(3)}, started_at=10.0)
    last = wide("a/2", holds={"n1": range(3, 7)}, started_at=20.0)
    other = make_state("b/1", options=(1,), holds={"n1": (7,)}, started_at=30.0)
    snapshot = shared(first, last, other)
    assert find_parts(snapshot) == {"a": 4.0, "b": 4.0}
    assert find_borrowed(snapshot) == {"a/1": 0, "a/2": 3, "b/1": 0}
    told = "borrows 3 of 4 GPUs: a has 7 GPUs, and a share of 4"
    assert describe_shares(snapshot)[last.id] == told
    weightless = shared(first, last, other, shares={"b": 1})
    assert find_borrowed(weightless) == {"a/1": 3, "a/2": 4, "b/1": 0}
    assert describe_shares(make_snapshot(snapshot.cluster, first)) == {}


def test_gpus_of_a_start_count_as_borrowed():
    waits = make_state("b/1", options=(4,), iterations_total=1e6)
    old = wide("a/1", holds={"n1": (0, 1)}, iterations_total=1e6)
    snapshot = shared(old, waits, gpus=6, now=30.0)
    plan = cycle.schedule(snapshot, policies.make("fifo", {}))
    borrowed = find_borrowed(snapshot, plan)
    assert borrowed == {"a/1": 0, "b/1": 1}
    assert sentences_for(snapshot, plan, borrowed)[waits.id].endswith("; borrows 1 of 4 GPUs")
    queued = replace(snapshot.pending[0], ceiling=Ceiling(4))
    assert find_borrowed(replace(snapshot, pending=[queued]), plan) == {"a/1": 0}, "that is Kueue's"


# --- what is given back -------------------------------------------------------------------


@pytest.mark.parametrize("name", policies.NAMES)
def test_owed_gpus_come_back_by_shrinking(name):
    old = wide("a/1", holds={"n1": range(8)}, iterations_total=1e3)
    snapshot = shared(old, make_state("b/1", options=(4,), iterations_total=1e6))
    step = decide(snapshot, name)["a/1"]
    assert isinstance(step, Reshape)
    assert step.new.gpus <= 4
    assert count_gpus(follow(snapshot, name)) == {"a": 4, "b": 4}


@pytest.mark.parametrize("name", ["fifo", "srsf"])
def test_reason_names_the_user_that_is_owed(name):
    old = wide("a/1", holds={"n1": range(8)}, iterations_total=1e3)
    snapshot = shared(old, make_state("b/1", options=(4,), iterations_total=1e6))
    step = decide(snapshot, name)["a/1"]
    assert step.cause == Cause(CauseCode.QUEUE_QUOTA)
    told = sentence_for_step(snapshot, step)
    assert told == "goes from 8 to 4 GPUs on n1: given back to b, which is owed 4 GPUs"


def test_reason_is_that_of_the_quota_that_is_exceeded():
    def told(gpus: int) -> str:
        old, ceiling = wide("a/1", holds={"n1": range(8)}), Ceiling(gpus, told="Kueue admits few")
        old = replace(old, job=ceiling.over(old.job), ceiling=ceiling)
        snapshot = shared(old, make_state("b/1", options=(4,)))
        return sentence_for_step(snapshot, decide(snapshot, "fifo")["a/1"])

    assert told(8) == "goes from 8 to 4 GPUs on n1: given back to b, which is owed 4 GPUs"
    assert told(4) == "goes from 8 to 4 GPUs on n1: Kueue admits few"


def test_policy_learns_of_each_job_that_it_is_not_shown():
    old = wide("a/1", holds={"n1": range(8)})
    jobs = {JobId("a/1"), JobId("b/1"), JobId("b/2")}
    shown: list[int] = []

    class Learner(FakePolicy):
        def allocate(self, view: View) -> Decision:
            shown.append(len(view.running) + len(view.pending))
            assert set(view.find_there([*jobs, JobId("gone")])) == jobs
            return policies.make("fifo", {}).allocate(view)

    waits = make_state("b/2")
    suspended = replace(waits, job=replace(waits.job, suspend=True))
    cycle.schedule(shared(old, wide("b/1"), suspended), Learner())
    assert min(shown) == 1 < max(shown)


def test_hidden_job_keeps_its_tenure():
    old = wide("a/1", holds={"n1": range(7)}), wide("b/1", holds={"n1": (7,)})
    tenures = {s.id: Tenure(s.placement.shape, 0.0, has_trained=True) for s in old if s.placement}
    memory = Memory(0.0, tenures=tenures, usual_tenure=3600.0)
    alone: list[View] = []

    class Learner(FakePolicy):
        def allocate(self, view: View) -> Decision:
            alone.extend([view] if len(view.running) == 1 else [])
            return policies.make("fifo", {}).allocate(view)

    cycle.schedule(shared(*old, now=9.0), Learner())
    assert alone
    assert all(remember_tenures(memory, view) == (tenures, 3600.0) for view in alone)


def test_job_stopped_within_the_share_of_its_user_is_outranked():
    class Newest(FakePolicy):
        def allocate(self, view: View) -> Decision:
            states = sorted((*view.running, *view.pending), key=lambda s: -s.order)
            return Decision({s.id: Share(1) for s in states[: view.cluster.total]})

    old = [make_state(f"a/{n}", options=(1,), holds={"n1": (n,)}, order=n) for n in range(2)]
    others = [
        make_state(f"b/{n}", options=(1,), holds={"n1": (n,)}, order=n, ceiling=ceiling)
        for n, ceiling in ((2, None), (3, Ceiling(1)), (4, Ceiling(0)))
    ]
    new = [make_state(f"b/{n}", options=(1,), order=n) for n in (5, 6, 7)]
    snapshot = shared(*old, *others, *new, gpus=5, shares={"a": 2, "b": 3})
    plan = cycle.schedule(snapshot, Newest())
    stops = {step.job: step for step in plan.steps if isinstance(step, Stop)}
    takers = {
        ref: step.job
        for step in plan.steps
        if isinstance(step, Start)
        for ref in step.placement.refs()
    }
    assert stops.keys() == {"b/2", "b/3", "b/4"}
    assert stops[JobId("b/4")].cause == Cause(CauseCode.QUEUE_QUOTA)
    for job in (JobId("b/2"), JobId("b/3")):
        [ref] = stops[job].old.refs()
        assert stops[job].cause == Cause(CauseCode.OUTRANKED, takers[ref])


def test_job_that_started_last_shrinks_first():
    first = wide("a/1", holds={"n1": range(4)}, started_at=10.0, iterations_total=1e6)
    last = wide("a/2", holds={"n1": range(4, 8)}, started_at=20.0, iterations_total=1e6)
    snapshot = shared(first, last, make_state("b/1", options=(3,)), now=30.0)
    assert "a/1" not in decide(snapshot, "fifo")
    held = {s.id: s.placement and s.placement.gpus for s in follow(snapshot, "fifo").running}
    assert held == {"a/1": 4, "a/2": 1, "b/1": 3}


def test_idle_gpus_are_lent():
    old = wide("a/1", holds={"n1": range(4)}, iterations_total=1e6)
    steps = decide(shared(old, make_state("b/1", options=(1,), holds={"n1": (4,)})), "max-min")
    assert steps["a/1"].new.gpus == 7


class Modest:
    """The first come takes all; jobs of b take 2 GPUs at most."""

    name: ClassVar[str] = "modest"
    paper: ClassVar[str] = "none"
    needs: ClassVar[str] = "nothing"
    breaks: ClassVar[frozenset[Law]] = frozenset()

    def allocate(self, view: View) -> Decision:
        left, shares = view.cluster.total, dict[JobId, Share]()
        for state in (*view.running, *view.pending):
            most = min(left, 2) if state.id.startswith("b/") else left
            gpus = max((n for n in state.job.gpus.options if n <= most), default=0)
            shares |= {state.id: Share(gpus)} if gpus else {}
            left -= gpus
        return Decision(shares)


def test_gpus_that_the_policy_does_not_use_stay_lent():
    old = wide("a/1", holds={"n1": range(8)}, iterations_total=1e6)
    snapshot = shared(old, wide("b/1"))
    assert find_owed(snapshot) == {"a": 4, "b": 4}
    assert count_gpus(snapshot, cycle.schedule(snapshot, Modest())) == {"a": 6, "b": 2}


def test_unsaved_job_keeps_its_gpus():
    old = replace(wide("a/1", holds={"n1": range(8)}), unsaved_from=0.0, iterations_done=9.0)
    steps = decide(shared(old, wide("b/1")))
    assert "a/1" not in steps
    assert isinstance(steps["b/1"], Wait)


def test_unsaved_live_job_gives_back_live():
    old = wide("a/1", holds={"n1": range(8)}, iterations_total=1e6, is_live=True)
    old = replace(old, unsaved_from=0.0, iterations_done=9.0)
    snapshot = shared(old, wide("b/1"))
    steps = decide(snapshot)
    assert old.keeps_work_on(steps["a/1"].new)
    assert steps["a/1"].new.gpus == 4


def test_rigid_job_stops_with_its_checkpoint():
    old = make_state("a/1", options=(8,), holds={"n1": range(8)}, iterations_total=1e6)
    used = Use(seconds={"a": 9000.0})
    snapshot = shared(old, wide("b/1"), use=used)
    steps = decide(snapshot, "fifo")
    assert isinstance(steps["a/1"], Stop)
    assert steps["a/1"].cause == Cause(CauseCode.QUEUE_QUOTA)
    told = sentence_for_step(snapshot, steps["a/1"])
    assert told == "gives back 8 GPUs: given back to b, which is owed 8 GPUs"


def test_waiting_job_shows_the_share_of_its_user():
    held = wide("a/1", holds={"n1": range(4)}, iterations_total=1e6)
    other = wide("b/1", holds={"n1": range(4, 7)}, iterations_total=1e6)
    more = make_state("a/2", options=(1,), priority=1)
    snapshot = shared(held, other, more, make_state("b/2", options=(1,)))
    step = decide(snapshot, "fifo")["a/2"]
    assert step.cause == Cause(CauseCode.QUEUE_QUOTA, gpus=1)
    told = sentence_for_step(snapshot, step)
    assert told == "waits: needs at least 1 GPU; a is owed 4 GPUs and has 4"


def test_user_alone_is_decided_as_without_shares():
    jobs = wide("a/1", holds={"n1": range(4)}), wide("a/2"), make_state("a/3", options=(2, 4))
    snapshot = shared(*jobs)
    for name in policies.NAMES:
        without = replace(snapshot, limits=NamespaceLimits())
        assert decide(snapshot, name) == decide(without, name), name


# --- drawn worlds -------------------------------------------------------------------------


def draw(rng: Random) -> Snapshot:
    gpus, free = rng.choice([2, 3, 4, 8]), []
    free = list(range(gpus))
    states = []
    for order in range(rng.randint(1, 9)):
        start = rng.choice([1, 1, 1, 2, 4])
        options = tuple(n for n in (start, 2 * start, 3 * start, 4 * start) if n <= 8)
        held = rng.choice([0, *(n for n in options if n <= len(free))])
        rest: dict[str, Any] = {}
        if held:
            rest = {"holds": {"n1": free[:held]}, "started_at": rng.uniform(0, 50)}
            del free[:held]
            if rng.random() < 0.3:
                done = {"iterations_done": 5.0, "unsaved_from": 0.0}
                rest |= {**done, "is_live": rng.random() < 0.5}
        total = rng.choice([20.0, 1e3, 1e6])
        name = f"{rng.choice('abc')}/{order}"
        states.append(
            make_state(name, order=order, options=options, iterations_total=total, **rest)
        )
    shares = rng.choice([EQUAL, {"a": 2, "*": 1}, {"a": 3, "b": 1}])
    use = Use(seconds={user: rng.uniform(0, 5000) for user in "abc"})
    return shared(*states, gpus=gpus, shares=shares, use=use, now=100.0)


@pytest.mark.parametrize("seed", range(100))
def test_drawn_shares(seed):
    rng = Random(seed)
    for _ in range(5):
        snapshot = draw(rng)
        found = find_owed(snapshot)
        assert sum(found.values()) <= snapshot.cluster.total
        states = (*snapshot.running, *snapshot.pending)
        left = snapshot.cluster.total - sum(found.values())
        for state in states:
            # What no one is owed is too little for any job that has nothing.
            user = state.id.partition("/")[0]
            assert left < state.least or found[user] >= state.least, (seed, state)
        name = rng.choice(LAWFUL)
        plan = cycle.schedule(snapshot, policies.make(name, {}))
        has, lost = count_gpus(snapshot, plan), {s.job for s in plan.steps if isinstance(s, Stop)}
        assert has.total() <= snapshot.cluster.total
        assert not lost & {s.id for s in snapshot.running if keeping.remains(s)}
        assert dict(plan.use.held) == has


@pytest.mark.parametrize("name", ["foresight", "max-min"])
@pytest.mark.parametrize("seed", range(40))
def test_owed_gpus_are_given_in_drawn_worlds(seed, name):
    rng = Random(seed)
    free, states = list(range(8)), []
    for order in range(rng.randint(2, 6)):
        held = rng.choice([n for n in (0, 1, 2, 4, 8) if n <= len(free)])
        rest: dict[str, Any] = {"holds": {"n1": free[:held]}} if held else {}
        del free[:held]
        states.append(
            wide(f"{rng.choice('abc')}/{order}", order=order, iterations_total=1e6, **rest)
        )
    snapshot = shared(*states, now=100.0)
    then = follow(snapshot, name)
    assert count_gpus(then) == find_owed(then), seed
