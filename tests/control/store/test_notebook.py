"""The loop never waits for the store, nothing is lost, and each fault is reported once."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from dljob.core.model import JobId, NodeName
from dljob.core.profiles import Costs, CostSeen, CostTerm, JobType, Profile
from dljob.store.notebook import availability
from dljob.store.notebook.availability import AvailabilityChange
from dljob.store.notebook.notebook import Notebook
from dljob.store.notebook.pending import Dropped
from dljob.store.notebook.store_thread import NotebookSettings
from dljob.store.opening import open_store
from dljob.store.sqlite.store import SqliteStore
from dljob.store.store import MOST_TICKETS, Store, StoreError, StoreUnusableError, Ticket, fold_into
from dljob.store.tables import GpuRow, JobRow
from tests.control.store.memory import MemoryStore
from tests.control.store.places import (
    AWAY,
    KIND,
    OTHER,
    SHAPE,
    Place,
    locked,
    make_entry,
    open_patiently,
    speed_seen,
)
from tests.servers.mongo import MongoServer

LIMIT_SECONDS = 60.0
QUICK = NotebookSettings(
    first_retry_seconds=0.01, longest_retry_seconds=0.05, refresh_seconds=0.02, most_waiting=50
)
UNUSABLE = StoreUnusableError("memory", "is damaged", "mend it")


class Desk:
    """A notebook with its notifications."""

    def __init__(self, store: Store, settings: NotebookSettings = QUICK, **rest) -> None:
        self.notices: list[AvailabilityChange] = []
        self.told = threading.Condition()
        self.notebook = Notebook(
            store, notify=self._hear, settings=settings, chance=random.Random(0), **rest
        )

    def _hear(self, notice: AvailabilityChange) -> None:
        with self.told:
            self.notices.append(notice)
            self.told.notify_all()

    def wait_for_notice(self, *, is_there: bool) -> str:
        def found() -> str:
            return next((n.message for n in self.notices if n.is_there is is_there), "")

        with self.told:
            assert self.told.wait_for(found, LIMIT_SECONDS)
            return found()

    def flush(self) -> None:
        assert self.notebook.flush(LIMIT_SECONDS)


@pytest.fixture
def desks() -> Iterator[Callable[..., Desk]]:
    """Make desks with open notebooks; close them after the test."""
    made: list[Desk] = []

    def make(store: Store, settings: NotebookSettings = QUICK, **rest) -> Desk:
        made.append(Desk(store, settings, **rest))
        made[-1].notebook.open(wait_seconds=LIMIT_SECONDS if is_up(store) else 0.0)
        return made[-1]

    yield make
    for desk in made:
        desk.notebook.close(LIMIT_SECONDS if is_up(desk.notebook._store) else 0.0)


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


# --- an available store


def test_writes_arrive_in_the_store(place: Place, desks):
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


def test_next_controller_reads_the_policy_state(place: Place, desks):
    desk = desks(place.open())
    state = {"decisions": 7, "population": [[["job", "V100", 2]]], "rate": 0.1}
    desk.notebook.keep_policy_state("ones", {"decisions": 6})
    desk.notebook.keep_policy_state("ones", state)
    desk.notebook.keep_policy_state("tiresias", (1, 2))
    desk.flush()
    later = desks(place.open()).notebook
    assert later.policy_state("ones") == state
    assert later.policy_state("tiresias") is None


def test_unreadable_policy_state_is_none(place: Place, desks):
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
        wait_until(partial(knows, desk, stored), "the knowledge of the other")
    place.open().change(KIND, lambda _: None)
    wait_until(lambda: KIND not in one.notebook.profiles(), "the removal")


def test_jobs_without_a_model_share_nothing(desks):
    with pytest.raises(ValueError, match="have no profile to share"):
        desks(MemoryStore()).notebook.observe(JobType(""), [speed_seen()])


# --- an unavailable store


def test_no_caller_waits_for_an_unavailable_store(desks):
    """The store hangs until the end of the test."""
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
def test_outage_and_its_end_are_each_reported_once(desks, error: StoreError):
    store = MemoryStore()
    desk = desks(store)
    store.failing = lambda _: error
    for number in range(10):
        desk.notebook.observe(KIND, [speed_seen(1.0 + number)])
        desk.notebook.record([make_entry("a", float(number))])
    away = desk.wait_for_notice(is_there=False)
    failures = desk.notebook.state().failures
    wait_until(lambda: desk.notebook.state().failures > failures + 5, "more failures")
    state = desk.notebook.state()
    assert (state.connected, state.waiting, state.error) == (False, 20, str(error))
    store.failing = lambda _: None
    desk.flush()
    back = desk.wait_for_notice(is_there=True)
    assert [notice.is_there for notice in desk.notices] == [False, True]
    assert away.startswith(f"the store is unavailable: {error} (scheduling continues from memory")
    assert back.startswith("the store memory is back after ")
    assert back.endswith("and 0 were given up")
    assert desk.notebook.state()[:3] == (True, 0, Dropped())
    assert len(store.history()) == 10


def test_hiccup_is_not_reported(desks, monkeypatch):
    # A slow test process must not make it an outage.
    monkeypatch.setattr(availability, "LONG_SECONDS", LIMIT_SECONDS)
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


def test_store_that_comes_late_is_read(desks):
    store = MemoryStore()
    fold_into(store, KIND, observations=[speed_seen(1.0)])
    store.failing = lambda _: AWAY
    desk = desks(store)
    desk.notebook.observe(KIND, [speed_seen(5.0)])
    desk.wait_for_notice(is_there=False)
    assert desk.notebook.profiles()[KIND].speeds[SHAPE].recent == (5.0,)
    store.failing = lambda _: None
    desk.flush()
    assert desk.notebook.profiles()[KIND].speeds[SHAPE].recent == (1.0, 5.0)
    assert len(desk.notices) == 2


def test_lost_answer_does_not_count_twice(desks):
    store = MemoryStore()

    def lose_answer(_: str) -> StoreError | None:
        """Lose the answer to the first change; many others write before the next try."""
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


def test_impossible_write_is_given_up_alone(desks, tmp_path: Path, caplog):
    store = SqliteStore(tmp_path / "store.db")
    desk = desks(store)
    desk.notebook.observe(JobType("Modell für Bäume"), [speed_seen()])
    desk.notebook.observe(KIND, [speed_seen()])
    desk.flush()
    wait_until(lambda: KIND in store.profiles(), "the other profile")
    assert desk.notebook.state().dropped == Dropped(observations=1)
    assert "is given up" in caplog.text
    assert desk.notices == []


def test_failing_listener_stops_nothing(caplog):
    store = MemoryStore()
    store.failing = lambda _: UNUSABLE

    def fail(_: AvailabilityChange) -> None:
        raise RuntimeError("no listener")

    notebook = Notebook(store, notify=fail, settings=QUICK)
    notebook.open(wait_seconds=0.0)
    notebook.observe(KIND, [speed_seen()])
    wait_until(lambda: "no event could be written" in caplog.text, "the complaint")
    store.failing = lambda _: None
    assert notebook.flush(LIMIT_SECONDS)
    assert notebook.close(LIMIT_SECONDS) == 0


# --- the history


def test_history_comes_from_store_and_memory(desks):
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


def test_history_is_from_memory_during_an_outage(desks):
    store = MemoryStore()
    store.record([make_entry("a", 1.0, name="old")])
    desk = desks(store)
    desk.notebook.record([make_entry("a", 2.0, name="new")])
    desk.flush()
    store.failing = lambda _: AWAY
    assert [entry.id for entry in desk.notebook.history(JobId("a"))] == ["new"]
    desk.wait_for_notice(is_there=False)
    calls = store.calls.count("history")
    assert [entry.id for entry in desk.notebook.history(JobId("a"))] == ["new"]
    assert store.calls.count("history") == calls


# --- the end


def test_closing_writes_all_and_closes_the_store():
    store = MemoryStore()
    desk = Desk(store)
    desk.notebook.open(wait_seconds=LIMIT_SECONDS)
    desk.notebook.observe(KIND, [speed_seen()])
    desk.notebook.observe(OTHER, [speed_seen()])
    assert desk.notebook.close(LIMIT_SECONDS) == 0
    assert store.profiles().keys() == {KIND, OTHER}
    assert store.is_closed


def test_overdue_writes_are_not_made_after_closing():
    """A write that has begun cannot be taken back, but the thread ends with it and closes the store."""
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


# --- real stores that go and return


def learn(desk: Desk, numbers: range) -> None:
    for number in numbers:
        desk.notebook.observe(KIND, [speed_seen(1.0 + number)])
        desk.notebook.record([make_entry("a", float(number), name=str(number))])


def check_nothing_was_lost(store: Store, count: int) -> None:
    profile = store.profiles()[KIND].profile
    assert profile is not None
    assert profile.speeds[SHAPE].recent == tuple(1.0 + each for each in range(count - 9, count))
    assert len(store.history(JobId("a"), limit=1000)) == count


ROOMY = NotebookSettings(first_retry_seconds=0.02, longest_retry_seconds=0.2, refresh_seconds=0.1)


def test_locked_file_loses_nothing(desks, tmp_path: Path):
    path = tmp_path / "store.db"
    desk = desks(SqliteStore(path, busy_seconds=0.05), ROOMY)
    learn(desk, range(20))
    desk.flush()
    with locked(path):
        learn(desk, range(20, 60))
        assert "is locked by another process" in desk.wait_for_notice(is_there=False)
        assert not desk.notebook.flush(0.0)
    learn(desk, range(60, 80))
    desk.flush()
    with closing(SqliteStore(path)) as store:
        check_nothing_was_lost(store, 80)
    assert [notice.is_there for notice in desk.notices] == [False, True]


# The server comes first: it must outlive the desk.
@pytest.mark.processes
def test_killed_server_loses_nothing(server: MongoServer, desks):
    # More than a busy machine delays an answer, because the store is to be away exactly once.
    store = open_store(server.url("dljob"), environment={}, patience_seconds=15.0)
    desk = desks(store, ROOMY)
    learn(desk, range(20))
    # Killed while it writes.
    server.kill()
    learn(desk, range(20, 60))
    assert "does not answer" in desk.wait_for_notice(is_there=False)
    assert desk.notebook.profiles()[KIND].speeds[SHAPE].recent[-1] == 60.0
    server.start()
    learn(desk, range(60, 80))
    desk.flush()
    desk.wait_for_notice(is_there=True)
    with closing(open_patiently(server.url("dljob"))) as store:
        check_nothing_was_lost(store, 80)
    assert [notice.is_there for notice in desk.notices] == [False, True]
    assert desk.notebook.state().dropped == Dropped()
