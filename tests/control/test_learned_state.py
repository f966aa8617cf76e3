"""What a controller learns, for which jobs it keeps it, and the cost of changes."""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from dljob.control.learning.learned_state import LearnedState
from dljob.control.situation.ports import Entry, PodKey
from dljob.control.situation.rules import News
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import DecisionNumber, Status
from dljob.core.measuring import SpeedSamples
from dljob.core.model import (
    Cause,
    CauseCode,
    Cluster,
    JobId,
    JobState,
    Node,
    NodeName,
    Phase,
    Placement,
    Snapshot,
    Training,
)
from dljob.core.planning import Plan, Reshape, Start
from dljob.core.profiles import JobType
from dljob.core.recording.record import Decided, Happened
from dljob.store.notebook import ENDED, Notebook
from dljob.store.opening import open_store
from dljob.store.rows import LONGEST_TEXT, read_history
from dljob_wire.messages import Change, Progress, State
from dljob_wire.messages import Phase as SideCarPhase
from tests.builders import make_job

JOB, NODE = JobId("job"), NodeName("n0")
ONE, TWO = Placement.of({NODE: (0,)}), Placement.of({NODE: (0, 1)})
OWN = JobType.of_one_job(JOB)
LONG_S = 60.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "profiles.db"


@pytest.fixture
def memory(file: Path) -> Iterator[LearnedState]:
    notebook = Notebook(open_store(str(file), environment={})).open(wait_seconds=LONG_S)
    remembrance = LearnedState(notebook, SpeedSamples(sample_seconds=1.0), epoch=1)
    yield remembrance
    remembrance.close()


def entry(generation: int, placement: Placement | None, kind: JobType = OWN, **status) -> Entry:
    number = DecisionNumber(generation)
    now = Status(phase=Phase.RUNNING, generation=number, placement=placement, **status)
    return Entry(make_job(JOB, options=(1, 2), model=kind.model), 0, now)


def trains(memory: LearnedState, there: Entry, *, since: float, until: float) -> None:
    """Let it train ten iterations a second, with a report each second."""
    generation = there.status.run_generation
    for second in range(int(until - since) + 1):
        iteration = 10 * second
        state = State(
            "incarnation",
            second + 1,
            SideCarPhase.RUNNING,
            released=False,
            held_generation=generation,
            progress=Progress(
                iteration=iteration,
                iterations_per_second=10.0 if second > 1 else 0.0,
                begun=iteration > 0,
            ),
            change=Change(generation, checkpoint_seconds=2.0, stop_seconds=0.5, start_seconds=0.25),
        )
        memory.hear(there, PodKey(JOB, NODE), state, since + second)


def scene(*entries: Entry, now: float = 1.0) -> Scene:
    return Scene(
        now=now,
        epoch=1,
        entries={each.job.id: each for each in entries},
        job_pods={},
        nodes={NODE: Node.of(NODE, 2)},
    )


def speeds_of(memory: LearnedState, kind: JobType) -> list[float]:
    profile = memory.profiles().get(kind)
    return [] if profile is None else [each.iterations_per_s for each in profile.speeds.values()]


def test_speeds_count_for_the_batch_that_was_trained(memory):
    kind = JobType("resnet", "imagenet", 64)
    there = entry(1, ONE, kind, batch_size=128)
    job = replace(there.job, type=kind, training=Training(iterations=1000, batch_size=64))
    trains(memory, replace(there, job=job), since=100.0, until=110.0)
    # Ten iterations of its own batch a second are five of the larger one.
    assert speeds_of(memory, kind._replace(batch_size=128)) == pytest.approx([5.0])
    assert speeds_of(memory, kind) == []


def test_job_without_a_type_learns_from_itself(memory):
    there = entry(1, ONE, batch_size=128)
    job = replace(there.job, training=Training(iterations=1000, batch_size=64))
    there = replace(there, job=job)
    trains(memory, there, since=100.0, until=110.0)
    memory.update(scene(there))
    assert speeds_of(memory, OWN._replace(batch_size=128)) == pytest.approx([5.0])
    over = replace(there, status=replace(there.status, phase=Phase.COMPLETED))
    memory.update(scene(over))
    assert list(memory.profiles()) == [ENDED]


def test_knowledge_of_one_job_is_not_stored(memory, file):
    shared = JobType("resnet50")
    trains(memory, entry(1, ONE), since=100.0, until=110.0)
    trains(memory, entry(2, ONE, shared), since=200.0, until=210.0)
    assert memory.notebook.flush(LONG_S)
    with closing(open_store(str(file), environment={})) as store:
        assert set(store.profiles()) == {shared}
    assert memory.notebook.state().dropped == (0, 0)


def test_knowledge_of_one_job_lasts_until_its_end(memory, file):
    there = entry(1, ONE)
    trains(memory, there, since=100.0, until=110.0)
    memory.update(scene(there))
    with closing(open_store(str(file), environment={})) as store:
        store.change(JobType("bert"), lambda _: None)
    assert OWN in memory.profiles()
    over = replace(there, status=replace(there.status, phase=Phase.COMPLETED, placement=None))
    memory.update(scene(over))
    assert OWN not in memory.profiles()


def test_next_leader_knows_it_while_the_job_lives(memory, file):
    there = entry(1, ONE)
    trains(memory, there, since=100.0, until=110.0)
    notebook = Notebook(open_store(str(file), environment={})).open(wait_seconds=LONG_S)
    notebook.adopt(memory.profiles().values())
    with closing(LearnedState(notebook, SpeedSamples(sample_seconds=1.0), epoch=2)) as later:
        later.update(scene(there))
        assert later.profiles()[OWN] is memory.profiles()[OWN]
        over = replace(there, status=replace(there.status, phase=Phase.COMPLETED, placement=None))
        later.update(scene(over))
        assert OWN not in later.profiles()


def test_job_table_shows_no_made_up_type(memory, file):
    memory.update(scene(entry(1, ONE), now=1000.0))
    assert memory.notebook.flush(LONG_S)
    with closing(open_store(str(file), environment={})) as store:
        assert [row.type for row in store.jobs()] == [JobType("")]


def note(memory: LearnedState, step: Start | Reshape, there: Entry) -> None:
    state = JobState(job=there.job, order=0, iterations_total=1000.0)
    snapshot = Snapshot(now=time.time(), cluster=Cluster([Node.of(NODE, 2)]), pending=(state,))
    memory.note(Plan((step,)), snapshot, {JOB: there.status})


def costs(memory: LearnedState) -> list[tuple[str, float | None]]:
    found = read_history(reversed(memory.notebook.history(JOB)))
    return [(line.step, line.cost_seconds) for _, line in found if isinstance(line, Decided)]


def test_start_costs_are_known_with_the_first_step(memory):
    there = entry(1, ONE)
    note(memory, Start(JOB, ONE, Cause(CauseCode.ITS_TURN)), there)
    trains(memory, there, since=100.0, until=101.0)
    ((kind, seconds),) = costs(memory)
    assert kind == "start"
    assert seconds == pytest.approx(1.25 + 2.5)


def test_change_costs_match_the_job_status(memory):
    """The history and the sum in the status contain the same figures."""
    there = entry(2, TWO)
    note(memory, Reshape(JOB, ONE, TWO, Cause(CauseCode.IDLE_GPUS)), there)
    trains(memory, there, since=100.0, until=103.0)
    resumed = memory.resumptions()[JOB]
    assert (resumed.generation, resumed.at) == (2, 101.0)
    assert resumed.lost_seconds == pytest.approx(1.25 + 2.5)
    assert costs(memory) == [("reshape", None)]
    memory.note_cost(JOB, 1, 99.0, "live")
    memory.note_cost(JOB, 2, 31.0, "restarted")
    assert costs(memory) == [("reshape", 31.0)]
    # The cost of repeated work is known later.
    memory.note_cost(JOB, 2, 4.0, "live")
    assert costs(memory) == [("reshape", 35.0)]
    [(_, line)] = read_history(reversed(memory.notebook.history(JOB)))
    assert isinstance(line, Decided)
    assert line.how == "restarted"


def test_warnings_are_kept_as_warnings(memory: LearnedState):
    memory.note_news(JOB, News("Crashed", "exited with status 7", warning=True), 1.0)
    memory.note_news(JOB, News("Running", "trains on n0[0]"), 2.0)
    memory.note_news(JOB, News("Long", "x" * 10_000), 0.0)
    lines = [line for _, line in read_history(memory.notebook.history(JOB))]
    told = [(line.name, line.warning) for line in lines if isinstance(line, Happened)]
    assert told == [("Running", False), ("Crashed", True), ("Long", False)]
    assert isinstance(lines[-1], Happened)
    assert len(lines[-1].message) == LONGEST_TEXT


def test_news_come_before_the_decision_of_the_same_time(memory: LearnedState):
    for turn in range(5):
        state = JobState(job=entry(1, ONE).job, order=0, iterations_total=1000.0)
        now = 100.0 + turn
        snapshot = Snapshot(now=now, cluster=Cluster([Node.of(NODE, 2)]), pending=(state,))
        step = Start(JOB, ONE, Cause(CauseCode.ITS_TURN))
        memory.note(Plan((step,)), snapshot, {JOB: entry(1, ONE).status})
        memory.note_news(JOB, News("Resumed", "it is in the queue again"), now)
    told = [each.kind for each in reversed(memory.notebook.history(JOB))]
    assert told == ["happened", "decided"] * 5
