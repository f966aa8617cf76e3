"""The effects of decisions in the simulated world: costs, failures and conserved work."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob.core.contract import Decision, View
from dljob.core.model import Node, NodeName, Target, Training
from dljob.core.profiles import Costs
from dljob.sim import policies
from dljob.sim.engine.settings import Outage, Setting
from dljob.sim.engine.world import PATIENCE, World
from dljob.sim.jobs.learning import Learning
from dljob.sim.results.records import Happening, Record
from tests.builders import FakePolicy
from tests.core.examples import few_examples
from tests.sim.worlds import (
    COSTS,
    ONE_NODE,
    TWO_NODES,
    Scripted,
    make_short,
    make_traced,
    make_workload,
    play,
    times_of,
    trained_by,
)

FREE = Costs()
MECHANISMS = ("in-place", "recreate")


def starts(record: Record, job: str) -> list[float]:
    return times_of(record, Happening.TRAINS, job)


def halts(record: Record, job: str) -> list[float]:
    return times_of(record, Happening.HALTS, job)


def test_policies_see_the_metric_that_a_job_reports():
    learning = Learning(b0=0.01, b1=1.0, c=1.0)
    traced = make_traced("job", options=(1,))
    training = Training(target=Target(metric="top1", value=learning.truth_at(1000.0)))
    job = replace(traced.job, training=training)
    seen: list[dict[str, float]] = []

    class Watching(Scripted):
        def allocate(self, view: View) -> Decision:
            seen.extend(dict(state.metrics) for state in view.running)
            return super().allocate(view)

    policy = Watching({0: {"job": 1}, 20: {"job": 1}, 120: {"job": 1}})
    play((replace(traced, job=job, learning=learning),), policy, costs=FREE)
    # It evaluates twenty times: after 50 of its 1,000 iterations, 100 and so on.
    assert seen == [{}, {"top1": pytest.approx(learning.truth_at(100.0))}]


def test_jobs_slow_each_other_down_while_both_train():
    jobs = (make_traced("a", options=(1,)), make_traced("b", options=(1,), at=500.0))
    setting = Setting(
        nodes=ONE_NODE, contention=lambda jobs: [1.0 / len(jobs) for _ in jobs], costs=FREE
    )
    policy = Scripted({0: {"a": 1}, 500: {"b": 1}})
    record = World(make_workload(*jobs), setting, policy=policy).play()
    # Each has half its speed from 500 on, until the first has done its other 500 iterations.
    assert [job.completed_at for job in record.jobs] == [1500.0, 2000.0]


def test_in_place_victim_trains_until_newcomer_is_ready():
    record = play(
        (make_traced("old"), make_traced("new", at=100.0)),
        Scripted({0: {"old": 4}, 100: {"old": 2, "new": 2}}),
    )
    # Pods take until 150, the victim's stop 5 s, and both processes 10 s.
    assert halts(record, "old") == [150.0]
    assert starts(record, "old") == [60.0, 165.0]
    assert starts(record, "new") == [165.0]
    assert next(job.lost_s for job in record.jobs if job.job == "old") == 15.0


def test_recreated_pods_start_when_gpus_are_free():
    record = play(
        (make_traced("old"), make_traced("new", at=100.0)),
        Scripted({0: {"old": 4}, 100: {"old": 2, "new": 2}}),
        mechanism="recreate",
    )
    # The victim's stop takes 5 s and its pod's end 20 s, then all pods 50 s and processes 10 s.
    assert halts(record, "old") == [100.0]
    assert starts(record, "old") == [60.0, 185.0]
    assert starts(record, "new") == [185.0]
    assert next(job.lost_s for job in record.jobs if job.job == "old") == 85.0


@pytest.mark.parametrize(("mechanism", "cost"), [("in-place", 15.0), ("recreate", 85.0)])
def test_growing_into_idle_gpus_costs_one_restart(mechanism, cost):
    record = play((make_traced("a"),), Scripted({0: {"a": 2}, 100: {"a": 4}}), mechanism=mechanism)
    (job,) = record.completed
    assert starts(record, "a") == [60.0, 100.0 + cost]
    assert job.lost_s == cost
    assert job.reshapes == 1


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_job_holds_gpus_until_its_process_ends(mechanism):
    record = play(
        (make_traced("a"), make_traced("b", at=10.0)),
        Scripted({0: {"a": 4}, 311: {"b": 4}}),
        mechanism=mechanism,
    )
    gone = 310.0 + (5.0 if mechanism == "in-place" else 25.0)
    # In place its pods were made while the process before it ended.
    waits = 311.0 + 50.0 if mechanism == "in-place" else gone + 50.0
    assert times_of(record, Happening.COMPLETED, "a") == [310.0]
    assert starts(record, "b") == [waits + 10.0]


def test_cancelled_newcomer_stops_no_victim():
    record = play(
        (make_traced("old"), make_traced("new", at=100.0)),
        Scripted({0: {"old": 4}, 100: {"old": 2, "new": 2}, 130: {"old": 4, "new": None}}),
    )
    assert halts(record, "old") == []
    assert times_of(record, Happening.COMPLETED, "old") == [60.0 + 250.0]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_reverted_change_loses_only_its_cost(mechanism):
    record = play(
        (make_traced("a"),),
        Scripted({0: {"a": 4}, 100: {"a": 2}, 101: {"a": 4}}),
        mechanism=mechanism,
    )
    (job,) = record.completed
    assert trained_by(record) == pytest.approx({"a": 1000.0})
    assert job.completed_at == 60.0 + 250.0 + job.lost_s


def test_lost_node_rolls_back_to_the_last_checkpoint():
    record = play(
        (make_traced("a", iterations=4000.0),),
        Scripted({0: {"a": 4}}),
        outages=(Outage(NodeName("n1"), 560.0, 1000.0),),
        checkpoint_every_s=200.0,
    )
    (job,) = record.completed
    # It had trained 500 s and saved every 200 s, so 100 s on four GPUs are done again.
    assert job.redone == 400.0
    assert job.iterations == 4400.0
    assert starts(record, "a") == [60.0, 1060.0]
    assert trained_by(record) == pytest.approx({"a": 4400.0})


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("costs", [FREE, COSTS], ids=["free", "costly"])
def test_node_may_die_during_a_change(mechanism, costs):
    for second in range(0, 400, 29):
        record = play(
            (make_traced("a"), make_traced("b", at=100.0)),
            Scripted(
                {
                    0: {"a": {"n1": 4}},
                    100: {"a": {"n2": 4}, "b": {"n1": 4}},
                    200: {"a": {"n2": 2}, "b": {"n1": 2, "n2": 2}},
                    500: {"a": {"n1": 2}, "b": {"n1": 2}},
                }
            ),
            nodes=TWO_NODES,
            mechanism=mechanism,
            costs=costs,
            outages=(Outage(NodeName("n2"), 100.0 + second, 10_000.0),),
            checkpoint_every_s=30.0,
        )
        assert len(record.completed) == 2
        for job in record.completed:
            assert trained_by(record)[job.job] == pytest.approx(1000.0 + job.redone)


def test_job_waits_for_the_node_of_its_checkpoint():
    record = play(
        (make_traced("a", iterations=4000.0, shared=False),),
        policies.make("fifo"),
        nodes=(Node.of("n1", 8), Node.of("n2", 8)),
        outages=(Outage(NodeName("n1"), 200.0, 900.0),),
        costs=FREE,
    )
    assert starts(record, "a") == [0.0, 900.0]


@pytest.mark.parametrize("policy", ["foresight", "fifo", "ones"])
def test_policy_survives_an_empty_cluster(policy):
    record = play(
        (make_traced("a"), make_traced("b", at=150.0, options=(2,))),
        policies.make(policy),
        outages=(Outage(NodeName("n1"), 100.0, 400.0),),
    )
    assert len(record.completed) == 2


def test_free_changes_make_no_extra_decisions():
    jobs = tuple(make_traced(f"j{i}", at=100.0 * i, iterations=500.0) for i in range(5))
    record = play(jobs, policies.make("srtf"), costs=FREE)
    instants = {e.time for e in record.log if e.what in (Happening.SUBMITTED, Happening.COMPLETED)}
    assert record.decisions == len(instants)


def test_simultaneous_events_make_one_decision():
    jobs = tuple(make_traced(f"j{i}", iterations=400.0, options=(1,)) for i in range(4))
    late = make_traced("late", at=400.0, options=(4,))
    record = play((*jobs, late), policies.make("fifo"), costs=FREE)
    # All come at once; then all end in the very instant in which one more comes.
    assert record.decisions == 3
    assert starts(record, "late") == [400.0]


@dataclass(frozen=True)
class Restless(FakePolicy):
    """Wakes without end, and gives no job a GPU."""

    after: float = 60.0

    def allocate(self, view: View) -> Decision:
        return Decision({}, wake_at=view.now + self.after)


@pytest.mark.parametrize("after", [60.0, 0.0, -5.0])
def test_starving_policy_is_not_asked_for_ever(after):
    record = play((make_traced("a"),), Restless(after))
    assert record.decisions == PATIENCE + 1
    assert [job.job for job in record.unfinished] == ["a"]


JOBS = st.lists(
    st.tuples(
        st.integers(0, 600),
        st.integers(0, 3000),
        st.sampled_from([(1,), (1, 2), (2, 4), (1, 2, 4, 8), (3, 6)]),
    ),
    min_size=1,
    max_size=8,
)
OUTAGES = st.lists(
    st.tuples(st.sampled_from(["n1", "n2"]), st.integers(0, 2000), st.integers(1, 900)), max_size=3
)


@pytest.mark.parametrize("policy", policies.NAMES)
@few_examples(10)
@given(
    mechanism=st.sampled_from(MECHANISMS),
    jobs=JOBS,
    outages=OUTAGES,
    costly=st.booleans(),
    seed=st.integers(0, 3),
    live=st.sampled_from([set(), set(range(0, 99, 2)), set(range(99))]),
)
def test_work_is_conserved(policy, mechanism, jobs, outages, costly, seed, live):
    traced = tuple(
        make_traced(
            f"j{i}", at=float(at), iterations=float(iterations), options=options, is_live=i in live
        )
        for i, (at, iterations, options) in enumerate(sorted(jobs))
    )
    record = play(
        traced,
        make_short(policy),
        nodes=TWO_NODES,
        mechanism=mechanism,
        costs=COSTS if costly else FREE,
        outages=tuple(Outage(NodeName(n), at, at + took) for n, at, took in outages),
        checkpoint_every_s=100.0,
        seed=seed,
    )
    trained = trained_by(record)
    asked = {each.job.id: each.iterations for each in traced}
    for job in record.completed:
        assert trained.get(job.job, 0.0) == pytest.approx(asked[job.job] + job.redone, abs=1e-4)
        assert job.iterations == asked[job.job] + job.redone
        assert job.started_at is not None
        assert job.completed_at is not None
        assert job.submitted_at <= job.started_at <= job.completed_at
        assert 0.0 <= job.lost_s <= job.completed_at - job.started_at
    assert record.queue.value == len(record.unfinished) - len(
        [j for j in record.unfinished if j.started_at and j.job in _holding(record)]
    )


def _holding(record: Record) -> set[str]:
    """Return the jobs that have GPUs at the end, from the log."""
    holding: set[str] = set()
    for entry in record.log:
        if entry.what is Happening.GRANTED:
            holding.add(entry.job)
        elif entry.what in (Happening.STOPPED, Happening.LOST, Happening.COMPLETED):
            holding.discard(entry.job)
    return holding
