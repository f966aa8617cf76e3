"""ONES: its genomes and their operations, prediction, limits and decisions."""

import json
from dataclasses import replace

import numpy as np
import pytest

from dljob.core import cycle
from dljob.core.model import BatchRange, Direction, Snapshot, Target, Training
from dljob.core.planning import Reshape, Start
from dljob.core.profiles import JobType, Profile, Speed
from dljob.sim import policies
from dljob_lab.policies.elastic.ones import epochs, genomes, memory, progress, searching
from dljob_wire.messages import Shape
from tests.builders import make_cluster, make_profile, make_snapshot, make_state, make_view


def make_space(options: tuple[int, ...]) -> genomes.GenomeSpace:
    """Three jobs that may have any of the options on four GPUs, and use each of them equally well."""
    width = max(options) + 1
    floor = [max((n for n in options if n <= gpus), default=0) for gpus in range(width)]
    return genomes.GenomeSpace(
        sizes=np.array([4]),
        floors=np.array([floor] * 3),
        rates=np.array([[float(gpus) for gpus in range(width)]] * 3),
        ran_seconds=np.zeros(3),
        ranks=np.arange(3),
    )


def test_idle_gpus_go_to_jobs_with_least_work():
    space = make_space(options=(1, 2))
    left = np.array([[30.0, 10.0, 20.0]])
    filled = genomes.fill(np.zeros((1, 3), dtype=np.int64), space, left=left)
    assert filled.tolist() == [[0, 2, 2]]
    barred = np.array([[False, True, False]])
    filled = genomes.fill(np.zeros((1, 3), dtype=np.int64), space, left=left, barred=barred)
    assert filled.tolist() == [[2, 0, 2]]


def test_job_gets_only_gpus_left_of_a_type():
    job = make_state("job", options=(1, 2, 4), model="steep")
    profile = make_profile({1: 1.0, 2: 2.0, 4: 4.0}, model="steep")
    view = make_view(make_snapshot(make_cluster(n1=8), job, profiles=[profile]))
    candidate = searching.Candidate(job, 4, 0.0, 100.0, 1.0, 30.0, is_new=True)
    space, least = searching.make_space(
        view, [candidate], speeds=searching.Speeds(view), taken={"": 5}
    )
    assert space.floors.tolist() == [[0, 1, 2, 2]]
    assert least.tolist() == [1]


def make_samples(epochs: float, expected: float) -> list[progress.Sample]:
    """Jobs that end after this number of epochs, when others were expected at any time."""
    return [
        progress.Sample(progress.Features(done, expected, 1000.0), done / epochs)
        for done in (1.0, 2.0, 5.0, 9.0)
    ]


def test_fit_learns_that_jobs_end_early():
    line = progress.fit(make_samples(10.0, expected=40.0) * 20)
    [left] = line.epochs_left([progress.Features(5.0, 40.0, 1000.0)])
    assert 2.0 < left < 10.0


def test_fit_learns_the_end_from_the_accuracy():
    # After ten epochs some jobs have an accuracy of 0.9 and two to go, others of 0.3 and forty to go.
    far, near = (progress.Features(10.0, 30.0, 1000.0, accuracy=share) for share in (0.3, 0.9))
    samples = [progress.Sample(far, 10 / 50), progress.Sample(near, 10 / 12)] * 40
    many, few = progress.fit(samples).epochs_left([far, near])
    assert many > 20.0
    assert few < 10.0


def test_first_loss_is_kept_and_percents_are_shares():
    first = progress.Reported().after(make_state(metrics={"loss": 4.0}))
    later = first.after(make_state(metrics={"loss": 1.0, "accuracy": 80.0}))
    assert (later.first_loss, later.improvement, later.share) == (4.0, 0.75, 0.8)
    # A job that waits reports nothing, and is remembered.
    assert later.after(make_state()) == later


@pytest.mark.parametrize(
    ("direction", "metric", "reported"),
    [
        (Direction.RISES, "top5", progress.Reported(accuracy=0.7)),
        (Direction.FALLS, "perplexity", progress.Reported(first_loss=0.7, loss=0.7)),
    ],
)
def test_metric_of_the_target_counts(direction, metric, reported):
    target = Target(metric=metric, value=0.5, direction=direction)
    state = make_state("job", training=Training(target=target), metrics={metric: 0.7})
    assert progress.Reported().after(state) == reported


def test_declared_length_counts_only_without_reports():
    state = elastic(holds={"n1": (0,)})
    view = make_view(make_snapshot(make_cluster(n1=4), state))
    measured = epochs.Epochs(view, searching.Speeds(view), per_job=30, declared=True)
    assert measured.look_at(state, progress.Reported()).expected == 10.0
    told = measured.look_at(state, progress.Reported(accuracy=0.5))
    assert (told.expected, told.accuracy) == (30.0, 0.5)


def test_reports_outlive_the_job_s_gpus_and_a_restart():
    cluster = make_cluster(n1=4)
    runs = elastic(holds={"n1": (0,)}, metrics={"accuracy": 0.5})
    first = decide(make_snapshot(cluster, runs))
    later = after(make_snapshot(cluster), first, done(runs, 150.0, now=150.0), now=150.0)
    written = json.loads(json.dumps(decide(later).policy_state))
    [trainee] = memory.Memory.from_plain(written).trainees.values()
    assert trainee.reported == progress.Reported(accuracy=0.5)
    assert [features.accuracy for features in trainee.logged] == [0.5]


def test_batch_limits():
    state = make_state(options=(2, 4, 8))
    assert memory.start_limit(state) == 2
    assert memory.grow_limit(4, 1, most=64) == 8
    assert memory.grow_limit(4, 99, most=64) == 64
    assert memory.resume_limit(8, least=2) == 4
    assert memory.resume_limit(2, least=2) == 2


@pytest.mark.parametrize(
    ("limit", "epochs", "lateness", "paper"),
    [
        (8, 1, 0.5, 16),
        (8, 1, 1.5, 6),
        (8, 1, 2.5, 4),
        (64, 1, 1.5, 43),
        (8, 2, 1.5, 11),
        (8, 1, 1e9, 2),
    ],
    ids=["young", "late", "later", "at-its-most", "two-epochs", "oldest"],
)
def test_penalty_takes_the_place_of_the_doubling(limit, epochs, lateness, paper):
    # ceil(2 R / ceil(sigma T + 1)) of the paper, at most 64 GPUs and at least 2.
    found = memory.shrink_limit(
        limit, epochs, most=64, ran_seconds=100.0 * lateness, penalty=0.01, least=2
    )
    assert found == paper


def elastic(name="job", **known):
    """A job of 100 iterations an epoch with 64 samples a GPU."""
    known.setdefault("options", (1, 2, 4))
    return make_state(
        name,
        requested=1,
        training=Training(iterations=1000, iterations_per_epoch=100, batch_size=64),
        batch=BatchRange(elastic=True, maximum=192),
        **known,
    )


def done(state, iterations, *, now, **changes):
    return replace(state, iterations_done=iterations, observed_at=now, **changes)


def decide(snapshot: Snapshot, **options: str):
    return cycle.schedule(snapshot, policies.make("ones", options))


def after(snapshot: Snapshot, plan, *states, now: float) -> Snapshot:
    return replace(
        make_snapshot(snapshot.cluster, *states, now=now), policy_state=plan.policy_state
    )


def test_job_starts_small_and_grows_after_an_epoch():
    snapshot = make_snapshot(make_cluster(n1=4), elastic())
    first = decide(snapshot)
    (start,) = first.steps
    assert isinstance(start, Start)
    assert (start.placement.gpus, start.batch_size) == (1, None)
    runs = elastic(holds={"n1": (0,)})
    early = after(snapshot, first, done(runs, 99.0, now=99.0), now=99.0)
    plan = decide(early)
    assert plan.steps == ()
    assert plan.wake_at == pytest.approx(100.0, abs=0.01)
    (grow,) = decide(after(snapshot, plan, done(runs, 100.0, now=100.0), now=100.0)).steps
    assert isinstance(grow, Reshape)
    assert (grow.new.gpus, grow.batch_size) == (2, 128)


def test_elastic_batch_stops_at_its_maximum():
    state = elastic()
    assert [searching.batch_of(state, gpus) for gpus in (1, 2, 4)] == [64, 128, 192]
    assert searching.batch_of(make_state(), 4) is None


def test_schedule_waits_for_an_epoch_of_every_job():
    cluster = make_cluster(n1=4)
    fast, slow = elastic("fast", holds={"n1": (0,)}), elastic("slow", holds={"n1": (1,)})
    first = decide(make_snapshot(cluster, fast, slow, now=0.0))
    states = done(fast, 300.0, now=300.0), done(slow, 50.0, now=300.0, speed=0.1)
    snapshot = make_snapshot(cluster, *states, now=300.0)
    plan = decide(replace(snapshot, policy_state=first.policy_state))
    assert plan.steps == ()
    assert plan.wake_at is not None
    assert plan.wake_at > 300.0


def test_new_job_is_not_waited_for():
    cluster = make_cluster(n1=4)
    old = elastic("old", holds={"n1": (0,)})
    first = decide(make_snapshot(cluster, old, now=0.0))
    waiting = make_snapshot(cluster, done(old, 50.0, now=50.0), elastic("new"), now=50.0)
    second = decide(replace(waiting, policy_state=first.policy_state))
    assert [step.job for step in second.steps] == ["new"]
    states = done(old, 100.0, now=100.0), elastic("new", holds={"n1": (1,)}, adjusting=True)
    later = make_snapshot(cluster, *states, now=100.0)
    third = decide(replace(later, policy_state=second.policy_state))
    assert [step.job for step in third.steps] == ["old"]


def test_restart_keeps_the_decision():
    cluster = make_cluster(n1=4, n2=4)
    states = [elastic(f"job-{n}") for n in range(12)]
    first = decide(make_snapshot(cluster, *states))
    placed = {step.job: step.placement for step in first.steps if isinstance(step, Start)}
    running = [
        done(s, 150.0, now=150.0, placement=placed.get(s.id), speed=1.0)
        for s in states
        if s.id in placed
    ]
    waiting = [state for state in states if state.id not in placed]
    second = replace(make_snapshot(cluster, *running, *waiting, now=150.0))
    written = json.loads(json.dumps(first.policy_state))
    kept = decide(replace(second, policy_state=first.policy_state))
    assert decide(replace(second, policy_state=written)) == kept
    assert kept.steps != ()
    # Without its population it would begin again, and with another seed search elsewhere.
    assert memory.Memory.from_plain(written).population != ()


def test_search_budget_is_kept():
    for gpus in (1, 64, 4000):
        budget = searching.Budget.of(
            gpus, population=0, generations=8, evaluations=400, mutation=0.1
        )
        spent = budget.population * budget.generations * searching.BY_GENERATION
        assert 0 < spent <= 400


def test_speeds_use_the_batch_of_their_profile():
    state = elastic()
    kind = state.job.type
    profiles = [
        Profile(kind._replace(batch_size=64), {Shape(2, 1, ""): Speed(3.0)}),
        Profile(kind._replace(batch_size=128), {Shape(2, 1, ""): Speed(2.0)}),
    ]
    job = replace(state.job, type=JobType(kind.model, "", 64))
    view = make_view(make_snapshot(make_cluster(n1=2), state, profiles=profiles))
    speeds = searching.Speeds(view)
    # Two iterations of the larger batch are four of its own.
    assert speeds.find(replace(state, job=job), 2, kind="") == pytest.approx(4.0)
