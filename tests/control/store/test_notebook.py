"""
The law of the notebook: the loop never waits for the store, nothing is lost, and each fault is
reported once.
"""

import dataclasses
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dljob.core.model import JobId, NodeName
from dljob.core.predicting.predictor import find_costs
from dljob.core.profiles import Costs, CostSeen, CostTerm, JobType, Profile
from dljob.store import notebook as notebooks
from dljob.store.notebook import ENDED, MOST_AT_ONCE, Dropped, Notebook, NotebookSettings
from dljob.store.opening import open_store
from dljob.store.sqlite.store import SqliteStore
from dljob.store.store import (
    FREE,
    MOST_TICKETS,
    Store,
    StoredProfile,
    StoreError,
    StoreUnusableError,
    Ticket,
    fold_into,
)
from dljob.store.tables import GpuRow, JobRow
from tests.control.store.memory import MemoryStore
from tests.control.store.places import (
    AWAY,
    KIND,
    OTHER,
    SHAPE,
    Place,
    make_entry,
    observations,
    open_patiently,
    speed_seen,
)
from tests.servers.mongo import MongoServer

LIMIT_SECONDS = 60.0
QUICK = NotebookSettings(
    first_retry_seconds=0.01, longest_retry_seconds=0.05, refresh_seconds=0.02, most_waiting=50
)
ROOMY = NotebookSettings(first_retry_seconds=0.02, longest_retry_seconds=0.2, refresh_seconds=0.1)
QUICK_AND_SMALL = dataclasses.replace(QUICK, most_waiting=4)
UNUSABLE = StoreUnusableError("memory", "is damaged", "mend it")


class Desk(logging.Handler):
    """A notebook with what its log says of the store."""

    def __init__(self, store: Store, settings: NotebookSettings = QUICK, **rest) -> None:
        super().__init__(logging.INFO)
        self.notices: list[str] = []
        self.notebook = Notebook(store, settings=settings, **rest)

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("the store "):
            self.notices.append(record.getMessage())

    def wait_for_notice(self, words: str) -> str:
        wait_until(lambda: any(words in each for each in self.notices), words)
        return next(each for each in self.notices if words in each)

    def flush(self) -> None:
        assert self.notebook.flush(LIMIT_SECONDS)


@pytest.fixture
def desks() -> Iterator[Callable[..., Desk]]:
    """Make desks with open notebooks; they are closed after the test."""
    made: list[Desk] = []
    notebooks.log.setLevel(logging.INFO)

    def make(store: Store, *given, **rest) -> Desk:
        made.append(Desk(store, *given, **rest))
        notebooks.log.addHandler(made[-1])
        made[-1].notebook.open(wait_seconds=LIMIT_SECONDS if is_up(store) else 0.0)
        return made[-1]

    yield make
    for desk in made:
        desk.notebook.close(LIMIT_SECONDS if is_up(desk.notebook._store) else 0.0)
        notebooks.log.removeHandler(desk)


def is_up(store: Store) -> bool:
    return not isinstance(store, MemoryStore) or store.failing("") is None


def once(error: StoreError) -> Callable[[str], StoreError | None]:
    errors = [error]
    return lambda _: errors.pop() if errors else None


def knows(desk: Desk, profile: Profile) -> bool:
    known = desk.notebook.profiles().get(profile.type)
    return known is not None and known.says_the_same_as(profile)


def wait_until(ask: Callable[[], object], what: str) -> None:
    end = time.monotonic() + LIMIT_SECONDS
    while not ask():
        assert time.monotonic() < end, f"{what} has not come"
        time.sleep(0.005)


# --- while the store works


def test_writes_arrive(place: Place, desks):
    desk = desks(place.open(), defaults=Costs(checkpoint=60.0, pod_termination=30.0))
    desk.notebook.observe(KIND, [speed_seen(5.0), speed_seen(7.0)])
    desk.notebook.observe(KIND, [CostSeen(CostTerm.CHECKPOINT, 5.0)])
    desk.notebook.record([make_entry("a", 1.0)])
    desk.notebook.show_gpus([GpuRow(node=NodeName("n1"), gpu=0)])
    desk.notebook.show_jobs([JobRow(job=JobId("a"))])
    desk.flush()
    store = place.open()
    profile = store.profiles()[KIND].profile
    assert profile is not None
    assert profile.says_the_same_as(desk.notebook.profiles()[KIND])
    assert profile.costs == Costs(checkpoint=5.0, pod_termination=30.0)
    assert [entry.job for entry in store.history()] == ["a"]
    assert len(store.gpus()) == len(store.jobs()) == 1
    assert desk.notices == []
    state = desk.notebook.state()
    assert (state.connected, state.waiting, state.dropped, state.error) == (True, 0, Dropped(), "")


def test_next_controller_has_the_policy_state(place: Place, desks):
    desk = desks(place.open())
    state = {"decisions": 7, "population": [[["job", "V100", 2]]], "rate": 0.1}
    desk.notebook.keep_policy_state("ones", {"decisions": 6})
    desk.notebook.keep_policy_state("ones", state)
    desk.notebook.keep_policy_state("tiresias", (1, 2))
    desk.notebook.keep_policy_state("foresight", {"decisions": 8})
    desk.flush()
    later = desks(place.open()).notebook
    assert later.policy_state("ones") == state
    assert later.policy_state("foresight") == {"decisions": 8}
    assert later.policy_state("tiresias") is None


def test_a_policy_state_that_cannot_be_read_is_none(place: Place, desks):
    place.open().keep_policy_state("ones", "{")
    assert desks(place.open()).notebook.policy_state("ones") is None


def test_two_notebooks_learn_from_each_other(place: Place, desks):
    one, other = desks(place.open()), desks(place.open())
    for number in range(4):
        one.notebook.observe(KIND, [speed_seen(5.0 + number)])
        other.notebook.observe(KIND, [speed_seen(50.0 + number)])
    for desk in (one, other):
        desk.flush()
    stored = place.open().profiles()[KIND].profile
    assert stored is not None
    assert sorted(stored.speeds[SHAPE].recent) == [5.0, 6.0, 7.0, 8.0, 50.0, 51.0, 52.0, 53.0]
    for desk in (one, other):
        wait_until(partial(knows, desk, stored), "what the other has learnt")
    place.open().change(KIND, lambda _: None)
    wait_until(lambda: KIND not in one.notebook.profiles(), "that it was forgotten")


def test_jobs_without_a_model_share_nothing(desks):
    with pytest.raises(ValueError, match="have no profile to share"):
        desks(MemoryStore()).notebook.observe(JobType(""), [speed_seen()])


def test_the_mapping_changes_exactly_when_a_profile_changes(desks):
    notebook = desks(MemoryStore()).notebook
    first = notebook.profiles()
    assert notebook.profiles() is first
    notebook.observe(KIND, [speed_seen()])
    assert first == {}
    assert notebook.profiles() is not first


def test_costs_of_jobs_that_have_ended_stay_as_usual_ones(desks):
    notebook = desks(MemoryStore()).notebook
    for number, seconds in enumerate((10.0, 30.0, 20.0)):
        kind = JobType.of_one_job(f"job-{number}")
        notebook.observe(kind, [speed_seen(), CostSeen(CostTerm.CHECKPOINT, seconds)])
        notebook.forget(kind)
    (left,) = notebook.profiles().values()
    assert left.type == ENDED
    assert not left.speeds
    assert find_costs({ENDED: left}, None, defaults=FREE).checkpoint == 20.0


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.lists(observations, max_size=4)), max_size=6))
def test_notebook_knows_the_store_and_waiting_writes(steps):
    store = MemoryStore()
    notebook = Notebook(store, settings=QUICK).open(wait_seconds=LIMIT_SECONDS)
    for is_ours, seen in steps:
        if is_ours:
            notebook.observe(KIND, seen)
        else:
            fold_into(store, KIND, observations=seen)
    assert notebook.flush(LIMIT_SECONDS)
    stored = store.profiles().get(KIND, StoredProfile(None)).profile or Profile(KIND)
    wait_until(
        lambda: notebook.profiles().get(KIND, Profile(KIND)).says_the_same_as(stored),
        "the contents of the store",
    )
    assert notebook.close(LIMIT_SECONDS) == 0


# --- while it is away


def test_no_caller_waits_for_an_unavailable_store(desks):
    """The store hangs until the end; everything else is done meanwhile."""
    store = MemoryStore()
    hanging, end = threading.Event(), threading.Event()

    def hang(_: str) -> StoreError | None:
        hanging.set()
        end.wait(LIMIT_SECONDS)
        return None

    store.failing = hang
    desk = Desk(store)
    desk.notebook.open(wait_seconds=0.0)
    assert hanging.wait(LIMIT_SECONDS)
    for number in range(1, 20):
        desk.notebook.observe(KIND, [speed_seen(float(number))])
        desk.notebook.record([make_entry("a", float(number))])
        desk.notebook.show_gpus([GpuRow(node=NodeName("n1"), gpu=number)])
    assert desk.notebook.profiles()[KIND].speeds[SHAPE].iterations_per_s == 15.0
    assert len(desk.notebook.history(JobId("a"))) == 19
    assert desk.notebook.state().waiting == 38
    assert not desk.notebook.flush(0.01)
    assert not end.is_set()
    end.set()
    desk.flush()
    assert len(store.history()) == 19
    assert desk.notebook.close(LIMIT_SECONDS) == 0


@pytest.mark.parametrize("error", [AWAY, UNUSABLE])
def test_an_outage_and_its_end_are_each_reported_once(desks, error: StoreError):
    store = MemoryStore()
    desk = desks(store)
    store.failing = lambda _: error
    for number in range(10):
        desk.notebook.observe(KIND, [speed_seen(1.0 + number)])
        desk.notebook.record([make_entry("a", float(number))])
    away = desk.wait_for_notice("is unavailable")
    failures = desk.notebook.state().failures
    wait_until(lambda: desk.notebook.state().failures > failures + 5, "more failures")
    state = desk.notebook.state()
    assert (state.connected, state.waiting, state.error) == (False, 20, str(error))
    store.failing = lambda _: None
    desk.flush()
    back = desk.wait_for_notice("is back")
    assert desk.notices == [away, back]
    assert away.startswith(f"the store is unavailable: {error} (scheduling continues from memory")
    assert back.startswith("the store memory is back after ")
    assert back.endswith("and 0 were given up")
    assert desk.notebook.state()[:3] == (True, 0, Dropped())
    assert len(store.history()) == 10


def test_a_hiccup_is_not_reported(desks, monkeypatch):
    # However long this process stands still in a try.
    monkeypatch.setattr(notebooks, "LONG_SECONDS", LIMIT_SECONDS)
    store = MemoryStore()
    desk = desks(store)
    for number in range(5):
        failures = desk.notebook.state().failures
        store.failing = once(AWAY)
        desk.notebook.observe(KIND, [speed_seen(1.0 + number)])
        desk.flush()
        assert desk.notebook.state().failures == failures + 1
    wait_until(lambda: desk.notebook.state().error == "", "the end of the hiccup")
    assert desk.notices == []
    assert desk.notebook.state().failures == 5


def test_a_store_that_is_away_at_the_beginning_is_taken_in_when_it_comes(desks):
    store = MemoryStore()
    fold_into(store, KIND, observations=[speed_seen(1.0)])
    store.failing = lambda _: AWAY
    desk = desks(store)
    desk.notebook.observe(KIND, [speed_seen(5.0)])
    desk.wait_for_notice("is unavailable")
    assert desk.notebook.profiles()[KIND].speeds[SHAPE].recent == (5.0,)
    store.failing = lambda _: None
    desk.wait_for_notice("is back")
    assert desk.notebook.profiles()[KIND].speeds[SHAPE].recent == (1.0, 5.0)
    assert len(desk.notices) == 2


def test_of_much_that_waits_the_oldest_rows_go_first_then_the_oldest_observations(desks):
    store = MemoryStore()
    store.failing = lambda _: AWAY
    desk = desks(store, QUICK_AND_SMALL)
    desk.wait_for_notice("is unavailable")
    desk.notebook.record([make_entry("a", float(at)) for at in range(3)])
    for number in range(3):
        desk.notebook.observe(KIND, [speed_seen(1.0 + number)])
        desk.notebook.show_gpus([GpuRow(node=NodeName("n1"), gpu=number)])
    assert desk.notebook.state().dropped == Dropped(entries=2)
    desk.notebook.observe(OTHER, [speed_seen(), speed_seen(6.0)])
    assert desk.notebook.state()[1:3] == (4, Dropped(entries=3, observations=1))
    store.failing = lambda _: None
    desk.flush()
    assert store.history() == ()
    stored = store.profiles()[KIND].profile
    assert stored is not None
    assert stored.speeds[SHAPE].recent == (2.0, 3.0)
    assert [row.gpu for row in store.gpus()] == [2]


def test_much_that_waits_is_written_in_pieces_while_newer_tables_come(desks):
    store = MemoryStore()
    store.failing = lambda _: AWAY
    desk = desks(store, ROOMY)
    for number in range(2 * MOST_AT_ONCE + 1):
        desk.notebook.observe(KIND, [speed_seen(1.0 + number)])
        desk.notebook.record([make_entry("a", float(number))])
    store.failing = lambda _: None
    desk.flush()
    assert store.profiles()[KIND].revision == 3
    assert len(store.rows()) == store._bounds.entries_per_job
    assert desk.notebook.state().dropped == Dropped()


def test_a_lost_answer_does_not_count_twice_however_many_write_before_the_next_try(desks):
    store = MemoryStore()

    def lose_answer(_: str) -> StoreError | None:
        """Lose the answer to the first change, and let many others write before the next try."""
        store.failing_after = lambda _: None
        for number in range(MOST_TICKETS):
            fold_into(
                store, KIND, observations=[speed_seen(2.0)], ticket=Ticket(f"writer {number}", 1)
            )
        return AWAY

    store.failing_after = lose_answer
    desk = desks(store)
    desk.notebook.observe(KIND, [speed_seen(5.0)])
    desk.flush()
    stored = store.profiles()[KIND]
    assert stored.revision == 1 + MOST_TICKETS
    assert stored.profile is not None
    assert 5.0 not in stored.profile.speeds[SHAPE].recent


def test_unstorable_write_is_dropped_alone(desks, tmp_path: Path, caplog):
    store = SqliteStore(tmp_path / "store.db")
    desk = desks(store)
    desk.notebook.observe(JobType("Modell für Bäume"), [speed_seen()])
    desk.notebook.observe(KIND, [speed_seen()])
    desk.flush()
    wait_until(lambda: KIND in store.profiles(), "the other profile")
    assert desk.notebook.state().dropped == Dropped(observations=1)
    assert "is given up" in caplog.text
    assert desk.notices == []


# --- the history


def test_the_history_comes_from_store_and_memory(desks):
    store = MemoryStore()
    store.record([make_entry("a", 1.0, name="old"), make_entry("b", 1.5)])
    desk = desks(store)
    desk.notebook.record([make_entry("a", 2.0, name="new")])
    desk.flush()
    desk.notebook.record([make_entry("a", 2.0, name="new", cost_seconds=3.0)])
    found = desk.notebook.history(JobId("a"))
    assert [(row.id, '"costSeconds":3.0' in row.line) for row in found] == [
        ("new", True),
        ("old", False),
    ]
    assert len(desk.notebook.history()) == 3
    assert [entry.id for entry in desk.notebook.history(JobId("a"), limit=1)] == ["new"]


def test_history_comes_from_memory_while_the_store_is_away(desks):
    store = MemoryStore()
    store.record([make_entry("a", 1.0, name="old")])
    desk = desks(store)
    desk.notebook.record([make_entry("a", 2.0, name="new")])
    desk.flush()
    store.failing = lambda _: AWAY
    assert [entry.id for entry in desk.notebook.history(JobId("a"))] == ["new"]
    desk.wait_for_notice("is unavailable")
    calls = store.calls.count("history")
    assert [entry.id for entry in desk.notebook.history(JobId("a"))] == ["new"]
    assert store.calls.count("history") == calls


# --- the end


def test_close_writes_the_queue_and_closes_the_store():
    store = MemoryStore()
    desk = Desk(store)
    desk.notebook.open(wait_seconds=LIMIT_SECONDS)
    desk.notebook.observe(KIND, [speed_seen()])
    desk.notebook.observe(OTHER, [speed_seen()])
    assert desk.notebook.close(LIMIT_SECONDS) == 0
    assert store.profiles().keys() == {KIND, OTHER}
    assert store.is_closed


def test_late_writes_are_dropped_after_close():
    """The write under way cannot be taken back, but the thread ends with it, and closes the store."""
    store = MemoryStore()
    is_asked, may_answer = threading.Event(), threading.Event()

    def answer_late(method: str) -> None:
        if method == "record":
            is_asked.set()
            assert may_answer.wait(LIMIT_SECONDS)

    store.failing = answer_late
    desk = Desk(store)
    desk.notebook.open(wait_seconds=LIMIT_SECONDS)
    desk.notebook.record([make_entry()])
    assert is_asked.wait(LIMIT_SECONDS)
    desk.notebook.observe(KIND, [speed_seen()])
    assert desk.notebook.close(0.05) == 2
    may_answer.set()
    wait_until(lambda: store.is_closed, "the end of the thread")
    assert len(store.history()) == 1
    assert store.profiles() == {}


# --- real stores that go and come back


def learn(desk: Desk, numbers: range) -> None:
    for number in numbers:
        desk.notebook.observe(KIND, [speed_seen(1.0 + number)])
        desk.notebook.record([make_entry("a", float(number), name=str(number))])


def check_nothing_was_lost(store: Store, count: int) -> None:
    profile = store.profiles()[KIND].profile
    assert profile is not None
    assert profile.speeds[SHAPE].recent == tuple(1.0 + each for each in range(count - 9, count))
    assert len(store.history(JobId("a"), limit=1000)) == count


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("ROLLBACK")


def test_a_file_that_is_locked_for_a_while_loses_nothing(desks, tmp_path: Path):
    path = tmp_path / "store.db"
    desk = desks(SqliteStore(path, busy_seconds=0.05), ROOMY)
    learn(desk, range(20))
    desk.flush()
    with locked(path):
        learn(desk, range(20, 60))
        desk.wait_for_notice("is locked by another process")
        assert not desk.notebook.flush(0.0)
    learn(desk, range(60, 80))
    desk.flush()
    with closing(SqliteStore(path)) as store:
        check_nothing_was_lost(store, 80)
    desk.wait_for_notice("is back")
    assert len(desk.notices) == 2


# The server comes first, so that it is up until the desk has been closed.
@pytest.mark.processes
def test_a_server_that_is_killed_and_started_again_loses_nothing(server: MongoServer, desks):
    # Longer than a busy machine keeps the server from its answer, because the store is to be away once.
    store = open_store(server.url("dljob"), environment={}, patience_seconds=15.0)
    desk = desks(store, ROOMY)
    learn(desk, range(20))
    # Killed while it writes.
    server.kill()
    learn(desk, range(20, 60))
    desk.wait_for_notice("does not answer")
    assert desk.notebook.profiles()[KIND].speeds[SHAPE].recent[-1] == 60.0
    server.start()
    learn(desk, range(60, 80))
    desk.flush()
    desk.wait_for_notice("is back")
    with closing(open_patiently(server.url("dljob"))) as store:
        check_nothing_was_lost(store, 80)
    assert len(desk.notices) == 2
    assert desk.notebook.state().dropped == Dropped()
