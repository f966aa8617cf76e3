from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dljob.core.predicting.usual_costs import find_costs
from dljob.core.profiles import CostSeen, CostTerm, JobType, Observation, Profile
from dljob.store.notebook.knowledge import ENDED, MOST_FOLDED_AGAIN, Knowledge
from dljob.store.store import FREE, StoredProfile, fold_all
from tests.control.store.places import KIND, OTHER, SHAPE, observations, speed_seen

NOTHING = StoredProfile(None)


class Desk:
    """Knowledge between an observing loop and a store that this class fills."""

    def __init__(self) -> None:
        self.waiting: dict[JobType, list[Observation]] = {}
        self.stored: dict[JobType, StoredProfile] = {}
        self.knowledge = Knowledge(FREE, lambda kind: tuple(self.waiting.get(kind, ())))

    def observe(self, *seen: Observation, kind: JobType = KIND) -> None:
        for each in seen:
            if self.knowledge.learn(kind, each):
                self.waiting.setdefault(kind, []).append(each)

    def write(self, count: int = 1000, kind: JobType = KIND) -> None:
        """Write the first ``count`` waiting observations into the store."""
        waiting = self.waiting.setdefault(kind, [])
        batch, self.waiting[kind] = waiting[:count], waiting[count:]
        expected = self.knowledge.expect(kind, batch)
        self.others(*batch, kind=kind)
        self.knowledge.confirm(kind, expected, stored=self.stored[kind])

    def others(self, *seen: Observation, kind: JobType = KIND) -> None:
        """Another writer changes the store."""
        old = self.stored.get(kind, NOTHING)
        profile = fold_all(old.profile or Profile(kind), seen, defaults=FREE)
        self.stored[kind] = StoredProfile(profile, old.revision + 1)

    def speeds(self, kind: JobType = KIND) -> Sequence[float]:
        return self.knowledge.profiles()[kind].speeds[SHAPE].recent


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_mapping_changes_only_with_new_knowledge(desk: Desk):
    first = desk.knowledge.profiles()
    assert desk.knowledge.profiles() is first
    desk.observe(speed_seen())
    assert first == {}
    assert desk.knowledge.profiles() is not first


def test_costs_of_ended_jobs_are_the_usual_costs(desk: Desk):
    for number, seconds in enumerate((10.0, 30.0, 20.0)):
        kind = JobType.of_one_job(f"job-{number}")
        desk.observe(speed_seen(), CostSeen(CostTerm.CHECKPOINT, seconds), kind=kind)
        desk.knowledge.forget(kind)
    (left,) = desk.knowledge.profiles().values()
    assert left.type == ENDED
    assert not left.speeds
    assert find_costs({ENDED: left}, None, defaults=FREE).checkpoint == 20.0


def test_knowledge_of_others_returns_with_a_write(desk: Desk):
    desk.others(speed_seen(1.0))
    desk.observe(speed_seen(5.0), speed_seen(7.0))
    desk.write(1)
    assert desk.speeds() == (1.0, 5.0, 7.0)
    desk.write()
    assert desk.speeds() == (1.0, 5.0, 7.0)


def test_stored_knowledge_precedes_unwritten_observations(desk: Desk):
    desk.observe(speed_seen(5.0))
    desk.others(speed_seen(1.0))
    desk.knowledge.reload(KIND, desk.stored[KIND])
    assert desk.speeds() == (1.0, 5.0)
    assert desk.knowledge.revisions() == {KIND: 1}


def test_profiles_forgotten_elsewhere_are_forgotten(desk: Desk):
    for kind in (KIND, OTHER):
        desk.observe(speed_seen(5.0), kind=kind)
        desk.write(kind=kind)
    desk.observe(speed_seen(7.0), kind=OTHER)
    desk.knowledge.forget_all_but({})
    # Observations that are not written yet count as news.
    assert desk.knowledge.profiles().keys() == {OTHER}
    assert desk.speeds(OTHER) == (7.0,)


def test_long_queue_hears_others_when_it_is_written(desk: Desk):
    desk.others(speed_seen(1.0, shape=SHAPE._replace(gpus=8)))
    desk.observe(*(speed_seen(5.0) for _ in range(3 * MOST_FOLDED_AGAIN)))
    desk.write(MOST_FOLDED_AGAIN)
    assert len(desk.knowledge.profiles()[KIND].speeds) == 1
    desk.write(MOST_FOLDED_AGAIN)
    assert len(desk.knowledge.profiles()[KIND].speeds) == 2


@settings(max_examples=30)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("observe"), st.lists(observations, max_size=4)),
            st.tuples(st.just("others"), st.lists(observations, max_size=4)),
            st.tuples(st.just("write"), st.integers(1, 3)),
        ),
        max_size=12,
    )
)
def test_knowledge_is_the_store_and_the_queue(steps):
    desk = Desk()
    for word, argument in steps:
        if word == "write":
            desk.write(argument)
        else:
            getattr(desk, word)(*argument)
    desk.write()
    known = desk.knowledge.profiles().get(KIND, Profile(KIND))
    assert known.says_the_same_as(desk.stored[KIND].profile or Profile(KIND))
