"""The contract of stores, on each kind of store."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dljob.core import profiles
from dljob.core.model import JobId, NodeName, Phase, Placement
from dljob.core.profiles import (
    AccuracySeen,
    Costs,
    CostSeen,
    CostTerm,
    JobType,
    Observation,
    Profile,
)
from dljob.core.recording.record import Decided, Expected
from dljob.store.rows import SAMPLE, RecordRow, prune_every, read_history
from dljob.store.store import DAY_S, MOST_TICKETS, Bounds, StoredProfile, Ticket, fold_into
from dljob.store.tables import GpuRow, GpuState, JobRow
from tests.control.store.places import (
    KIND,
    OTHER,
    SHAPE,
    Place,
    make_entry,
    observations,
    speed_seen,
)

# The place is emptied of the type before each example.
each_anew = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])


def knows(stored: StoredProfile, profile: Profile) -> bool:
    return stored.profile is not None and stored.profile.says_the_same_as(profile)


def forget(_: Profile | None) -> None:
    return None


# --- profiles


@each_anew
@given(st.lists(st.lists(observations, max_size=5), max_size=5))
def test_folding_through_the_store_is_folding(place: Place, seen):
    store = place.open()
    store.change(KIND, forget)
    for batch in seen:
        fold_into(store, KIND, observations=batch)
    expected = reduce(profiles.fold, [each for batch in seen for each in batch], Profile(KIND))
    found = store.profiles().get(KIND)
    if found is None:
        assert expected.says_the_same_as(Profile(KIND))
    else:
        assert knows(found, expected)
    # Another store object, without memory, reads the same.
    again = place.open().profiles([KIND]).get(KIND)
    assert (again is None) == (found is None)
    assert again is None or knows(again, expected)


def test_types_are_kept_apart(place: Place):
    store = place.open()
    kinds = [
        JobType("a", "b", 1),
        JobType("a", "b", 2),
        JobType("a", "", 1),
        JobType("a/b", "", 1),
        JobType('"a"', "$b.c", 1),
    ]
    for number, kind in enumerate(kinds, start=1):
        fold_into(store, kind, observations=[speed_seen(float(number))])
    found = store.profiles()
    assert found.keys() == set(kinds)
    for number, kind in enumerate(kinds, start=1):
        profile = found[kind].profile
        assert profile is not None
        assert profile.type == kind
        assert profile.speeds[SHAPE].iterations_per_s == float(number)


def test_only_requested_types_are_read(place: Place):
    store = place.open()
    for kind in (KIND, OTHER):
        fold_into(store, kind, observations=[speed_seen()])
    assert store.profiles([OTHER]).keys() == {OTHER}
    assert store.profiles([]) == {}
    assert store.profiles([JobType("unheard of")]) == {}


def test_defaults_apply_to_unmeasured_costs(place: Place):
    defaults = Costs(checkpoint=60.0, pod_termination=30.0)
    seen = CostSeen(CostTerm.CHECKPOINT, 5.0)
    profile = fold_into(place.open(), KIND, observations=[seen], defaults=defaults).profile
    assert profile is not None
    assert profile.costs == Costs(checkpoint=5.0, pod_termination=30.0)


def test_worthless_observations_change_nothing(place: Place):
    store = place.open()
    nothing: list[Observation] = [speed_seen(0.0), AccuracySeen(-1.0, 0.5)]
    assert fold_into(store, KIND, observations=nothing).profile is None
    assert store.revisions() == {}
    before = fold_into(store, KIND, observations=[speed_seen()])
    assert fold_into(store, KIND, observations=nothing).revision == before.revision


def test_revision_is_not_reused_after_forgetting(place: Place):
    store = place.open()
    seen = [fold_into(store, KIND, observations=[speed_seen(n)]).revision for n in (1.0, 2.0, 3.0)]
    before = seen[-1]
    assert (seen, store.revisions()) == (sorted(set(seen)), {KIND: before})
    store.change(KIND, forget)
    assert store.profiles() == {}
    assert store.revisions() == {}
    after = fold_into(store, KIND, observations=[speed_seen(7.0)])
    assert after.revision > before
    assert after.profile is not None
    assert after.profile.speeds[SHAPE].recent == (7.0,)


def test_contents_outlive_the_store_object(shared_place: Place):
    store = shared_place.open()
    profile = fold_into(store, KIND, observations=[speed_seen(), AccuracySeen(3.0, 0.25)]).profile
    store.record([make_entry("a", 1.0)])
    store.replace_gpus([GpuRow(node=NodeName("n1"), gpu=0)])
    store.close()
    again = shared_place.open()
    assert profile is not None
    assert knows(again.profiles()[KIND], profile)
    assert [entry.job for entry in again.history()] == ["a"]
    assert len(again.gpus()) == 1


def test_unstorable_profile_is_refused_alone(shared_place: Place):
    store = shared_place.open()
    fold_into(store, KIND, observations=[speed_seen()])
    with pytest.raises(Exception, match="holds characters that are not plain"):
        fold_into(store, JobType("ein Modell für Bäume"), observations=[speed_seen()])
    assert store.profiles().keys() == {KIND}


# --- tickets


def test_ticket_makes_a_change_count_once(place: Place):
    store = place.open()
    ticket = Ticket("me", 1)
    first = fold_into(store, KIND, observations=[speed_seen(5.0)], ticket=ticket)
    again = fold_into(place.open(), KIND, observations=[speed_seen(5.0)], ticket=ticket)
    assert again.revision == first.revision
    assert again.profile is not None
    assert again.profile.speeds[SHAPE].recent == (5.0,)


def test_ticket_counts_for_its_type(place: Place):
    store = place.open()
    for kind in (KIND, OTHER):
        fold_into(store, kind, observations=[speed_seen()], ticket=Ticket("me", 1))
    assert store.profiles().keys() == {KIND, OTHER}
    fold_into(store, KIND, observations=[speed_seen(7.0)], ticket=Ticket("you", 1))
    profile = store.profiles()[KIND].profile
    assert profile is not None
    assert profile.speeds[SHAPE].recent == (5.0, 7.0), "another writer's ticket does not matter"


def test_tickets_do_not_pile_up(place: Place):
    store = place.open()
    tickets = [Ticket(f"writer {number}", 1) for number in range(2 * MOST_TICKETS)]
    for ticket in tickets:
        fold_into(store, KIND, observations=[speed_seen()], ticket=ticket)
    assert store.profiles()[KIND].tickets == tuple(tickets[-MOST_TICKETS:])


def test_repeated_change_counts_once_after_many_writers(place: Place):
    store = place.open()
    before = fold_into(store, KIND, observations=[speed_seen(1.0)], ticket=Ticket("first", 1))
    fold_into(store, KIND, observations=[speed_seen(5.0)], ticket=Ticket("me", 1))
    for number in range(MOST_TICKETS):
        fold_into(store, KIND, observations=[speed_seen(2.0)], ticket=Ticket(f"writer {number}", 1))
    last = store.profiles()[KIND]
    again = Ticket("me", 1).tried(before.revision)
    assert (
        fold_into(store, KIND, observations=[speed_seen(5.0)], ticket=again).revision
        == last.revision
    )


def test_repeated_change_is_made_if_it_was_not(place: Place):
    store = place.open()
    before = fold_into(store, KIND, observations=[speed_seen(1.0)], ticket=Ticket("first", 1))
    for number in range(MOST_TICKETS):
        fold_into(store, KIND, observations=[speed_seen(2.0)], ticket=Ticket(f"writer {number}", 1))
    last = store.profiles()[KIND]
    again = Ticket("me", 1).tried(before.revision)
    made = fold_into(store, KIND, observations=[speed_seen(5.0)], ticket=again)
    assert made.revision == last.revision + 1


# --- the history


def test_history_is_read_as_recorded(place: Place):
    store = place.open()
    line = Decided(
        job="team/resnet",
        at=1.7e9 + 0.123,
        step="reshape",
        sentence="goes from 2 to 4 GPUs: „schneller“ 'so'",
        old=Placement.of({NodeName("n1"): [0, 1]}),
        new=Placement.of({NodeName("n1"): [0], NodeName("n2"): [3]}, "V100"),
        expected=Expected(iterations_per_second=2.5, confidence=0.5, remaining_seconds=40.0),
    )
    row = RecordRow.of(line, "one", place=2, epoch=3)
    store.record([row, make_entry("bare", 1.0, new=None)])
    store.record([])
    assert store.history(JobId("team/resnet")) == (row,)
    assert [found for _, found in read_history([row])] == [line]


def test_history_of_a_job_is_limited(place: Place):
    store = place.open()
    store.record([make_entry(job, float(at)) for at in (3, 0, 4, 2, 1) for job in ("a", "b")])
    assert [entry.at for entry in store.history(JobId("a"), limit=2)] == [4.0, 3.0]
    assert {entry.job for entry in store.history(JobId("a"))} == {"a"}
    assert len(store.history(limit=3)) == 3
    assert store.history(JobId("c")) == ()
    assert store.history(limit=0) == ()


def test_cost_of_a_step_is_added_later(place: Place):
    store = place.open()
    first = make_entry("a", 1.0, name="one")
    store.record([first, make_entry("a", 2.0, name="two")])
    store.record(
        [make_entry("a", 1.0, name="one", cost_seconds=37.0), make_entry("a", 3.0, name="x")]
    )
    found = {
        row.id: line.cost_seconds
        for row, line in read_history(store.history())
        if isinstance(line, Decided)
    }
    assert found == {"one": 37.0, "two": None, "x": None}


def test_history_of_a_job_is_bounded(place: Place):
    store = place.open(Bounds(entries_per_job=20, entries=1000))
    for at in range(25):
        store.record([make_entry("a", float(at)), make_entry("b", float(at))])
        assert len(store.history(JobId("a"), limit=1000)) <= 20
    for job in ("a", "b"):
        kept = [entry.at for entry in store.history(JobId(job), limit=1000)]
        assert kept == [float(at) for at in range(24, 24 - len(kept), -1)]
        assert len(kept) >= 18


def test_history_of_all_jobs_is_bounded(place: Place):
    store = place.open(Bounds(entries_per_job=20, entries=30))
    for at in range(45):
        store.record([make_entry(f"job-{at}", float(at))])
        assert len(store.history(limit=1000)) <= 30
    kept = [entry.at for entry in store.history(limit=1000)]
    assert kept == [float(at) for at in range(44, 44 - len(kept), -1)]
    assert len(kept) >= 27


# --- the rest of the record


def moment(number: int, kind: str = "given", line: str = "{}") -> RecordRow:
    return RecordRow(id=f"{kind}/{number}", at=float(number), kind=kind, line=line)


def test_record_is_read_oldest_first(place: Place):
    store = place.open()
    entry = make_entry("a", 1.5)
    store.record([moment(3), moment(1), entry])
    store.record([moment(2, SAMPLE), moment(3, line='{"kind":"given"}')])
    rows = (moment(1), entry, moment(2, SAMPLE), moment(3, line='{"kind":"given"}'))
    assert store.rows() == rows
    assert place.open().rows() == rows


def test_samples_push_no_moments_out(place: Place):
    store = place.open(Bounds(moments=30, samples=20))
    store.record([moment(number) for number in range(25)])
    for number in range(100, 140):
        store.record([moment(number, SAMPLE)])
    samples = [row for row in store.rows() if row.kind == SAMPLE]
    assert 20 <= len(samples) <= 20 + prune_every(20)
    assert samples[-1] == moment(139, SAMPLE)
    assert sum(row.kind != SAMPLE for row in store.rows()) == 25
    for number in range(200, 240):
        store.record([moment(number)])
    moments = [row for row in store.rows() if row.kind != SAMPLE]
    assert 30 <= len(moments) <= 30 + prune_every(30)
    assert moments[-1] == moment(239)


def test_rows_are_kept_for_some_days(place: Place):
    old, fresh = time.time() - 2.1 * DAY_S, time.time() - 1.9 * DAY_S
    rows = [
        replace(row, id=f"{row.kind}/{at}", at=at)
        for at in (old, fresh)
        for row in (moment(1), moment(1, SAMPLE), make_entry("a", 1.0))
    ]
    store = place.open(Bounds(days=2))
    store.record(rows)
    assert [row.at for row in store.rows()] == [fresh] * 3


# --- the tables


def gpu_rows(count: int, **rest) -> list[GpuRow]:
    return [GpuRow(node=NodeName("n1"), gpu=number, **rest) for number in range(count)]


def test_gpu_table_is_read_as_written(place: Place):
    rows = (
        GpuRow(
            node=NodeName("n1"),
            gpu=0,
            uuid="GPU-1",
            gpu_type="V100",
            state=GpuState.IN_USE,
            job=JobId("a"),
            worker=3,
            since=12.5,
        ),
        GpuRow(node=NodeName("n1"), gpu=10, state=GpuState.UNAVAILABLE, reason="ECC"),
        GpuRow(node=NodeName("n2"), gpu=2, state=GpuState.RESERVED, job=JobId("b")),
    )
    store = place.open()
    store.replace_gpus(rows[::-1])
    assert store.gpus() == rows


def test_job_table_is_read_as_written(place: Place):
    rows = (
        JobRow(
            job=JobId("a"),
            phase=Phase.RUNNING,
            gpus=3,
            placement=Placement.of({NodeName("n1"): [0, 1], NodeName("n2"): [3]}, "V100"),
            type=KIND,
            options=(1, 2, 4),
            priority=-5,
            submitted_at=1.0,
            started_at=2.0,
            finished_at=None,
            generation=4,
            iteration=120.0,
            iterations_total=1000.0,
            iterations_per_second=5.5,
            eta_seconds=160.0,
            reshapes=2,
            reason="goes from 2 to 3 GPUs",
        ),
        JobRow(job=JobId("team/b")),
    )
    store = place.open()
    store.replace_jobs(rows)
    assert store.jobs() == rows


def test_latest_state_of_each_policy_is_kept(place: Place):
    store = place.open()
    assert store.policy_states() == {}
    for policy, document in (("ones", "[1]"), ("other", "[2]"), ("ones", "[3]")):
        store.keep_policy_state(policy, document)
    assert place.open().policy_states() == {"ones": "[3]", "other": "[2]"}


def test_table_of_another_program_is_replaced(place: Place):
    place.open().replace_gpus(gpu_rows(4, uuid="GPU-2"))
    place.open().replace_gpus(gpu_rows(2))
    assert place.open().gpus() == tuple(gpu_rows(2))


@each_anew
@given(
    st.lists(st.dictionaries(st.sampled_from("abcdefg"), st.integers(0, 2), max_size=7), max_size=6)
)
def test_table_is_the_last_one_written(place: Place, tables: Sequence[dict[str, int]]):
    store = place.open()
    for table in tables:
        rows = [JobRow(job=JobId(job), generation=table[job]) for job in sorted(table)]
        store.replace_jobs(rows)
        assert store.jobs() == tuple(rows)


# --- several at once


def test_threads_may_share_a_store(place: Place):
    store = place.open()

    def write(writer: int) -> None:
        for number in range(10):
            seen = AccuracySeen(float(10 * writer + number), 0.5)
            fold_into(store, KIND, observations=[seen], ticket=Ticket(str(writer), number))
            store.record([make_entry(f"job-{writer}", float(number))])
            store.history(limit=5)

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(write, writer) for writer in range(4)]:
            done.result(timeout=240)
    profile = store.profiles()[KIND].profile
    assert profile is not None
    assert {point.iteration for point in profile.accuracy} == {float(each) for each in range(40)}
    assert len(store.history(limit=100)) == 40
