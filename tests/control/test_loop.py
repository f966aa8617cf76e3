"""The loop: one decision for many changes, and no job or failure that stops it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from dljob.control import pacing
from dljob.control.loop import Controller
from dljob.control.pacing import BatchResult, BatchSize, Effort, Pace
from dljob.control.reporting.reports import find_waits
from dljob.control.scheduling import Options
from dljob.control.situation.ports import Fenced
from dljob.control.situation.status import ConditionType
from dljob.core import policies
from dljob.core.checking import Law
from dljob.core.contract import Decision, Share, View
from dljob.core.model import Cause, CauseCode, Checkpoint, JobId, NodeName, Phase
from dljob.core.planning import Start
from dljob.core.profiles import JobType
from tests.builders import make_job
from tests.control.callers import living
from tests.control.governing import (
    ADAPTIVE,
    PlayedMemory,
    PlayedMetrics,
    governed,
    has_begun,
    status,
    submit,
    told,
)
from tests.control.played import Leash, PlayedPlatform, World
from tests.control.played_network import PlayedDialer
from tests.control.scenes import cast, make_scene
from tests.control.training import Trainings

# --- many changes, one decision -------------------------------------------------------------


class Counting(PlayedMetrics):
    """Wakes the test at each decision."""

    def __init__(self) -> None:
        super().__init__()
        self.decided = asyncio.Event()

    def cycle(self, seconds: float, *, decided: bool) -> None:
        super().cycle(seconds, decided=decided)
        if decided:
            self.decided.set()


PATIENT = Pace(settle_seconds=0.3, longest_settle_seconds=60.0, look_seconds=60.0)


def controlled(pace: Pace) -> tuple[Any, World, Counting]:
    """Make a controller that uses the event loop and the clock of this test."""
    world = World("run", {"n0": 4})
    world.epoch, leash, metrics = 1, Leash(), Counting()
    controller = Controller(
        PlayedPlatform(world, 1, leash),
        PlayedDialer(world, 1, leash, lambda: None),
        learning=PlayedMemory(),
        metrics=metrics,
        options=Options(policy=ADAPTIVE, pace=pace),
        epoch=1,
        clock=time.monotonic,
    )
    return controller, world, metrics


@asynccontextmanager
async def running(pace: Pace = PATIENT) -> AsyncIterator[tuple[Any, World, Counting]]:
    """A controller that has taken its first decision, without a job."""
    controller, world, metrics = controlled(pace)
    task = asyncio.create_task(controller.run())
    await until(metrics.decided)
    yield controller, world, metrics
    task.cancel()
    await asyncio.wait({task}, timeout=60)
    assert task.done()


def hold_launches(controller: Any) -> tuple[list[JobId], asyncio.Event]:
    """Let no pod start before an event; return the jobs with requested pods, and the event."""
    platform, asked, may_end = controller.observer._platform, [], asyncio.Event()
    launch = platform.launch

    async def launch_when_told(order):
        asked.append(order.entry.job.id)
        await may_end.wait()
        await launch(order)

    platform.launch = launch_when_told
    return asked, may_end


def submit_some(world: World, count: int) -> list[JobId]:
    jobs = [make_job(f"job-{number}", options=(1,)) for number in range(count)]
    for job in jobs:
        world.submit(job)
    return [job.id for job in jobs]


async def until(event: asyncio.Event) -> None:
    await event.wait()
    event.clear()


@living
async def test_hundred_submissions_are_one_decision():
    async with running() as (controller, world, metrics):
        for number in range(100):
            world.submit(make_job(f"job-{number}", options=(1,)))
            controller.wake(burst=True)
            await asyncio.sleep(0)
        await until(metrics.decided)
        assert metrics.decisions == 2
        phases = [entry.status.phase for entry in world.entries.values()]
        assert (phases.count(Phase.INITIALIZED), phases.count(Phase.QUEUED)) == (4, 96)


@living
async def test_large_decision_comes_in_batches_and_impossible_jobs_first():
    # News that comes alone is decided at once: the settle time would be too long here.
    bites = replace(PATIENT, most_steps=3, settle_seconds=1000.0)
    async with running(bites) as (controller, world, metrics):
        jobs = submit_some(world, 8)
        world.submit(make_job("giant", options=(64,)))
        controller.wake()
        await until(metrics.decided)
        entries = world.entries
        assert entries[JobId("giant")].status.cause == Cause(CauseCode.TOO_LARGE, None, 64)
        assert [job for job in jobs if entries[job].status.cause is not None] == jobs[:3]
        for _ in range(2):
            await until(metrics.decided)
        phases = [world.entries[job].status.phase for job in jobs]
        assert (phases.count(Phase.INITIALIZED), phases.count(Phase.QUEUED)) == (4, 4)


@living
async def test_next_decision_begins_before_the_last_launches_end():
    bites = replace(PATIENT, most_steps=2, trailing_launches=2)
    async with running(bites) as (controller, world, metrics):
        asked, may_end = hold_launches(controller)
        platform, looks = controller.observer._platform, [0]
        observe = platform.observe

        async def count_looks():
            looks.append(len(asked))
            return await observe()

        platform.observe = count_looks
        submit_some(world, 4)
        controller.wake()
        await until(metrics.decided)
        while looks[-1] < 2:
            await asyncio.sleep(0.01)
        placed = [entry for entry in world.entries.values() if entry.status.placement]
        assert (len(placed), len(asked)) == (2, 2), (
            "no more is recorded before these two pods have started"
        )
        may_end.set()
        await until(metrics.decided)
        assert all(entry.status.placement for entry in world.entries.values())


@living
async def test_urgent_newcomer_interrupts_the_launches():
    pace = replace(PATIENT, most_steps=4, bite_seconds=0.0, launches_at_once=1)
    async with running(pace) as (controller, world, metrics):
        asked, may_end = hold_launches(controller)
        submit_some(world, 3)
        controller.wake()
        while not asked:
            await asyncio.sleep(0.01)
        world.submit(make_job("newcomer", options=(1,)))
        controller.wake(urgent=True)
        may_end.set()
        await until(metrics.decided)
        assert len(asked) == 1, "the others are left"
        await until(metrics.decided)
        while len(asked) < 4:
            await asyncio.sleep(0.01)
        assert sorted(asked) == ["job-0", "job-1", "job-2", "newcomer"], "each was once"
        assert all(entry.status.placement for entry in world.entries.values())


@living
async def test_launches_end_with_the_controller():
    ended = []
    async with running(replace(PATIENT, trailing_launches=4)) as (controller, world, metrics):

        async def launch_for_ever(order):
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(order.entry.job.id)

        controller.observer._platform.launch = launch_for_ever
        jobs = submit_some(world, 1)
        controller.wake()
        await until(metrics.decided)
    assert ended == jobs


@living
async def test_errors_do_not_end_the_loop_but_a_new_leader_does():
    controller, world, metrics = controlled(Pace(look_seconds=0.01))
    platform, failures = controller.observer._platform, list[int]()
    observe = platform.observe

    async def fail_twice():
        if len(failures) < 2:
            failures.append(1)
            raise OSError("the API server is away")
        return await observe()

    platform.observe = fail_twice
    task = asyncio.create_task(controller.run())
    await until(metrics.decided)
    world.epoch = 2
    submit_some(world, 1)
    controller.wake()
    with pytest.raises(Fenced):
        await task


@living
async def test_loop_rests_longer_than_it_works():
    """Others get turns on the event loop, even if there is much news."""
    busy = Pace(look_seconds=0.0, period_seconds=0.0, rest_share=1e9, longest_rest_seconds=1e9)
    async with running(busy) as (controller, _, metrics):
        for _ in range(20):
            controller.wake()
            await asyncio.sleep(0.001)
        assert metrics.cycles == 1


def test_leftovers_come_first_and_are_not_left_again():
    bites = BatchSize(Pace(most_steps=256, bite_seconds=2.0))
    bites.note(BatchResult(steps=100, seconds=2.0, effort=0.5, is_hurried=False))
    assert (bites.most, bites.is_long) == (256, True)
    bites.note(BatchResult(steps=256, seconds=2.5, effort=0.5, left=120))
    assert not bites.is_long, "the next batch is not cut short again"
    assert bites.most == 40, "a hundred less the leftovers, of which half is done"
    bites.note(BatchResult(steps=40, seconds=2.5, effort=0.5))
    bites.note_rest(1.0)
    assert bites.most == 100, "the speed of leftovers does not count"
    bites.note(BatchResult(steps=100, seconds=4.0, effort=0.5))
    assert bites.most == 50
    bites.note(BatchResult(steps=50, seconds=2.0, left=1000))
    assert bites.most == 8, "it never stops"


def test_batch_size_follows_the_time_it_takes():
    bites = BatchSize(Pace(most_steps=64, bite_seconds=2.0))
    bites.note(BatchResult(steps=64, seconds=4.0))
    assert bites.most == 32
    bites.note(BatchResult(steps=0, seconds=9.0))
    assert bites.most == 32, "a decision without steps teaches nothing"
    bites.note(BatchResult(steps=32, seconds=60.0))
    assert bites.most == 8, "each look costs something too"
    bites.note(BatchResult(steps=8, seconds=0.01))
    assert bites.most == 64
    bites.note(BatchResult(steps=8, seconds=2.0, effort=1.0))
    assert bites.most == 12, "where a look takes a second, looks take no more than a quarter of all"
    bites.note(BatchResult(steps=12, seconds=2.0, effort=60.0))
    assert bites.most == 36, "a newcomer does not wait for minutes"
    bites.note(BatchResult(steps=36, seconds=6.0, effort=0.1, is_hurried=False))
    assert bites.most == 12, "cheap looks are frequent"
    bites.note(BatchResult(steps=12, seconds=2.0, effort=0.25, is_hurried=False))
    assert bites.most == 18, "batches are larger if no job waits"
    bites.note(BatchResult(steps=18, seconds=3.0, effort=9.0, is_hurried=False))
    assert bites.most == 36
    unlimited = BatchSize(Pace())
    unlimited.note(BatchResult(steps=1000, seconds=60.0))
    assert unlimited.most == 0


def test_rest_is_owed_only_for_own_work(monkeypatch):
    now = 0.0
    clock = SimpleNamespace(thread_time=lambda: now, perf_counter=lambda: now)
    monkeypatch.setattr(pacing, "time", clock)
    effort = Effort()
    now = 2.0
    assert effort.rest(Pace(rest_share=3.0, longest_rest_seconds=10.0)) == 6.0
    assert effort.rest(Pace(rest_share=3.0, longest_rest_seconds=0.5)) == 0.5
    with effort.aside():
        now = 6.0
    assert effort.seconds == 2.0
    assert effort.rest(Pace(rest_share=1.0)) == 0.0, "others had their turn already"


def test_obeying_another_leader_ends_the_former_one():
    with governed() as government:
        job = submit(government, "job")
        former = government.begin(run=20.0)
        assert has_begun(government, job)
        government.begin(run=5.0)
        assert former.is_over
        told = [entry for entry in government.world.log if "[1] ends: Fenced" in entry]
        assert "obeys another controller" in told[0]


# --- jobs set aside -------------------------------------------------------------------------


@dataclass
class Lawless:
    """Gives each job a GPU, and two to jobs that cannot use two, unless it is meek."""

    name: ClassVar[str] = "lawless"
    paper: ClassVar[str] = ""
    needs: ClassVar[str] = ""
    breaks: ClassVar[frozenset[Law]] = frozenset()
    meek: bool = False
    raises: list[Exception] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)

    def allocate(self, view: View) -> Decision:
        self.seen.append(len(view.running) + len(view.pending))
        if self.raises:
            raise self.raises[0]
        states = [*view.running, *view.pending]
        turn = Cause(CauseCode.ITS_TURN)
        greedy = set() if self.meek else {s.id for s in states if s.id.startswith("bad")}
        return Decision({s.id: Share(2 if s.id in greedy else 1, turn) for s in states})


def test_job_without_a_valid_plan_is_set_aside_alone():
    with governed({"n0": 4}, Lawless()) as government:
        good, bad, other = (submit(government, name) for name in ("good", "bad", "other"))
        government.begin(run=20.0)
        assert has_begun(government, good, other)
        condition = status(government, bad).condition(ConditionType.SET_ASIDE)
        assert condition.status
        assert "job bad cannot run on 2 GPUs" in condition.message
        assert status(government, bad).placement is None
        for job in (good, other):
            assert status(government, job).condition(ConditionType.SET_ASIDE) is None
        assert [error.job for error in government.metrics.broken] == [bad]
        # A change by its user brings a new attempt.
        demand = replace(government.world.entries[bad].job.gpus, options=(1, 2))
        government.world.change(bad, gpus=demand)
        government.world.run(60.0)
        assert has_begun(government, bad)


def test_job_set_aside_keeps_its_gpus():
    """It trains on one GPU; the policy wants to give it two, which it cannot use."""
    policy = Lawless(meek=True)
    with governed({"n0": 2}, policy) as government:
        bad = submit(government, "bad")
        government.begin(run=20.0)
        assert has_begun(government, bad)
        policy.meek = False
        late, later = submit(government, "late"), submit(government, "later")
        government.world.run(60.0)
        assert status(government, bad).condition(ConditionType.SET_ASIDE).status
        assert (has_begun(government, bad), status(government, bad).generation) == (True, 1)
        assert has_begun(government, late)
        assert status(government, later).phase is Phase.QUEUED


def test_failing_policy_stops_no_training_and_says_so():
    policy = Lawless()
    with governed({"n0": 4}, policy) as government:
        first = submit(government, "first")
        government.begin(run=20.0)
        policy.raises.append(ZeroDivisionError("division by zero"))
        late = submit(government, "late")
        government.world.run(20.0)
        assert status(government, late).message == (
            "waits: the policy lawless cannot decide (ZeroDivisionError: division by zero)"
        )
        scheduled = status(government, late).condition(ConditionType.SCHEDULED)
        assert (scheduled.status, scheduled.reason) == (False, "PolicyFailed")
        assert has_begun(government, first)
        policy.raises.clear()
        government.world.run(40.0)
        assert has_begun(government, late)


def test_wait_message_is_renewed_when_a_named_job_ends():
    fifo = policies.make("fifo")
    with governed({"n0": 2, "n1": 2}, fifo) as government:
        first, second = (submit(government, name, options=(2,)) for name in ("first", "second"))
        government.begin(run=20.0)
        assert has_begun(government, first, second)
        wide = submit(government, "wide", options=(4,))
        government.world.run(20.0)
        before = status(government, wide)
        assert "first" in before.message
        government.world.cancel(first)
        government.world.run(40.0)
        after = status(government, wide)
        assert (after.phase, after.cause) == (Phase.QUEUED, before.cause)
        assert "first" not in after.message
        assert after.condition(ConditionType.SCHEDULED).message == after.message
        # Users know the reason already.
        assert len([reason for reason, _ in told(government, wide) if reason == "Waiting"]) == 1


def test_nonsensical_record_stops_no_other_job():
    with governed() as government:
        odd, fine = submit(government, "odd"), submit(government, "fine")
        world = government.world
        entry = world.entries[odd]
        nonsense: Any = None
        world.entries[odd] = replace(entry, status=replace(entry.status, service=nonsense))
        government.begin(run=20.0)
        assert has_begun(government, fine)
        assert status(government, odd).condition(ConditionType.SET_ASIDE).status
        assert "contradicts itself" in status(government, odd).message
        entry = world.entries[odd]
        world.entries[odd] = replace(entry, status=replace(entry.status, service=0.0))
        world.run(60.0)
        assert has_begun(government, odd)
        assert not status(government, odd).condition(ConditionType.SET_ASIDE).status


# --- reports to users -----------------------------------------------------------------------


def test_each_decision_is_an_event_with_its_reason():
    with governed() as government:
        first = submit(government, "first", options=(2, 4))
        government.begin(run=20.0)
        submit(government, "second", options=(2, 4))
        government.world.run(20.0)
        government.world.change(first, suspend=True)
        government.wake()
        government.world.run(20.0)
        decisions = [(r, text) for r, text in told(government, first) if r != "Running"]
        assert [reason for reason, _ in decisions] == ["Scheduled", "Reshaping", "Stopping"]
        assert decisions[0][1] == "starts on 4 GPUs on n0: it is its turn"
        shrinks = "goes from 4 to 2 GPUs on n0: it makes room for second, which starts up to "
        assert decisions[1][1].startswith(shrinks)
        assert decisions[2][1].startswith("gives back 2 GPUs: it is suspended")


def test_wait_is_reported_once_per_reason():
    with governed() as government:
        first = submit(government, "first", options=(4,))
        government.begin(run=20.0)
        second = submit(government, "second", options=(4,))
        government.world.run(100.0)
        [(reason, message)] = told(government, second)
        assert (reason, message[:15]) == ("Waiting", "needs 4 GPUs; n")
        assert government.metrics.decisions > 4
        government.world.cancel(first)
        government.wake()
        government.world.run(20.0)
        assert [reason for reason, _ in told(government, second)][:2] == ["Waiting", "Scheduled"]


def test_each_wait_is_counted_once_across_controllers():
    with governed() as government:
        first = submit(government, "first", options=(4,))
        government.begin(run=20.0)
        second = submit(government, "second", options=(4,))
        government.world.run(100.0)
        [(job, outcome, seconds)] = government.metrics.waits
        assert (job, outcome) == (first, "started")
        assert 0.0 < seconds < 20.0
        government.succeed(run=20.0)
        for job in (second, first):
            government.world.cancel(job)
            government.wake()
            government.world.run(20.0)
        (cancelled,) = government.metrics.waits[1:]
        assert cancelled[:2] == (second, "cancelled")
        assert 120.0 < cancelled[2] < 150.0


@pytest.mark.parametrize(
    ("running", "phase", "outcomes"),
    [
        pytest.param(0, Phase.FAILED, ["failed"], id="fails before it trains"),
        pytest.param(0, Phase.COMPLETED, ["started"], id="is done before DLJob saw it train"),
        pytest.param(3, Phase.FAILED, [], id="fails after it trained"),
    ],
)
def test_end_before_training_ends_the_wait(running, phase, outcomes):
    before = make_scene(cast("a", phase=Phase.INITIALIZED, running=running))
    [entry] = before.entries.values()
    found = find_waits(before, {entry.job.id: replace(entry.status, phase=phase)})
    assert [waited.outcome for _, waited in found] == outcomes
    assert not list(find_waits(before, {entry.job.id: entry.status}))


def test_impossible_job_is_reported_once_across_controllers():
    with governed() as government:
        large = submit(government, "large", options=(8,))
        government.begin(run=20.0)
        government.succeed(run=60.0)
        [(reason, message)] = told(government, large)
        assert (reason, "at least 8 GPUs" in message) == ("Waiting", True)


def test_job_set_aside_is_reported_and_so_is_its_return():
    with governed() as government:
        odd = submit(government, "odd")
        world = government.world
        world.entries[odd] = replace(world.entries[odd], problem="gpus.options: is not a list")
        government.begin(run=40.0)
        assert told(government, odd) == [("SetAside", "is set aside: gpus.options: is not a list")]
        assert status(government, odd).placement is None
        world.entries[odd] = replace(world.entries[odd], problem="", spec_generation=2)
        world.run(40.0)
        assert "Readmitted" in [reason for reason, _ in told(government, odd)]


# --- failures of others ---------------------------------------------------------------------


class Forgetful(PlayedMemory):
    """A store that raises each time."""

    def fail(self, *_: Any, **__: Any) -> None:
        raise OSError("the store is away")

    update = note = note_news = fail


def test_failing_store_and_failing_events_end_nothing():
    async def fail(*_: Any, **__: Any) -> None:
        raise OSError("no events today")

    with governed() as government:
        job = submit(government, "job")
        government.memory = Forgetful()
        platform: Any = government.begin().platform
        platform.tell = fail
        government.world.run(20.0)
        assert has_begun(government, job)


# --- times of decisions ---------------------------------------------------------------------


def test_new_controller_hears_the_sidecars_before_it_decides():
    policy = Lawless()
    with governed({"n0": 4}, policy) as government:
        job = submit(government, "job")
        government.begin(run=20.0)
        assert has_begun(government, job)
        policy.seen.clear()
        world = government.world
        world.silent.add(NodeName("n0"))
        government.succeed(run=5.0)
        assert policy.seen == []
        world.run(8.0)
        assert policy.seen != [], "the wait has a limit"
        policy.seen.clear()
        government.succeed(run=5.0)
        assert policy.seen == []
        world.silent.clear()
        world.run(10.0)
        assert policy.seen != []
        assert government.scene.job_pods[job][NodeName("n0")].is_stamped(government.leader.epoch)


@dataclass
class Remembering(Lawless):
    """Counts its decisions in its state."""

    name: ClassVar[str] = "remembering"
    remembered: list[object] = field(default_factory=list)

    def allocate(self, view: View) -> Decision:
        self.remembered.append(view.state)
        count = view.state["count"] if isinstance(view.state, dict) else 0
        return replace(super().allocate(view), state={"count": count + 1})


def test_policy_state_outlives_the_controller():
    policy = Remembering()
    with governed({"n0": 4}, policy) as government:
        submit(government, "job")
        government.begin(run=20.0)
        assert policy.remembered[0] is None
        last = policy.remembered[-1]
        government.succeed()
        policy.remembered.clear()
        government.world.run(20.0)
        assert isinstance(last, dict)
        assert policy.remembered[0] == {"count": last["count"] + 1}


def test_steady_state_is_silent():
    with governed() as government:
        job = submit(government, "job")
        government.begin()
        world = government.world
        world.run(30.0)
        assert has_begun(government, job)
        before = (world.witness.commands, world.records, government.metrics.decisions)
        world.run(100.0)
        period = government.options.pace.period_seconds
        assert world.witness.commands == before[0]
        # Progress is recorded now and then, together with GPU-seconds.
        assert world.records - before[1] <= 100 / 30 + 1
        assert government.metrics.decisions - before[2] <= 100 / period + 1


def test_unmeasured_job_grows_with_its_first_speed():
    with governed() as government:
        government.memory.known = {}
        kind = JobType.of_one_job("job")
        job = submit(government, "job", options=(1, 4), model=kind.model)
        government.begin()
        Trainings(government.world).begin()
        government.world.run(12.0)
        begun = government.memory.plans[0].steps[0]
        assert isinstance(begun, Start)
        assert begun.placement.gpus == 1
        assert status(government, job).placement.gpus == 4
        assert government.options.pace.period_seconds > 12.0


def test_job_of_a_lost_node_restarts_elsewhere_soon():
    with governed({"n0": 4, "n1": 4}) as government:
        job = submit(government, "job", checkpoint=Checkpoint(shared=True))
        government.begin()
        world = government.world
        world.run(20.0)
        assert has_begun(government, job)
        (lost,) = status(government, job).placement.nodes
        decisions = government.metrics.decisions
        # Its pod lives on, as if the node had another name.
        del world.nodes[lost]
        world.run(2.5)
        assert government.options.pace.period_seconds > 2.5
        assert status(government, job).placement is not None
        assert lost not in status(government, job).placement.nodes
        assert government.metrics.decisions - decisions <= 4


def test_job_with_refused_pods_releases_gpus_soon(monkeypatch):
    orders = []
    take = PlayedPlatform.launch

    async def launch(self, order):
        if order.entry.job.id != "greedy":
            return await take(self, order)
        orders.append(order)
        raise OSError("exceeded quota")

    monkeypatch.setattr(PlayedPlatform, "launch", launch)
    with governed({"n0": 1}) as government:
        rules = replace(government.options.rules, initialize_seconds=900.0)
        government.options = replace(government.options, rules=rules)
        greedy, world = submit(government, "greedy"), government.world
        began = world.now
        government.begin()
        world.run(500.0, until=lambda: status(government, greedy).setbacks == 1)
        assert world.now - began < rules.stuck_seconds + 10
        # Less than once a look, every two seconds.
        assert len(orders) < 10
        modest = submit(government, "modest")
        world.run(60.0, until=lambda: has_begun(government, modest))
        assert has_begun(government, modest)
        assert not status(government, greedy).pods


@dataclass
class Sleeper(Lawless):
    """Sets the time of its next decision."""

    seconds: float = 3.0
    wakes: list[float] = field(default_factory=list)

    def allocate(self, view: View) -> Decision:
        self.wakes.append(view.now)
        return replace(super().allocate(view), wake_at=view.now + self.seconds)


def test_policy_sets_its_next_decision_and_may_err():
    policy = Sleeper()
    with governed({"n0": 4}, policy) as government:
        submit(government, "job")
        government.begin(run=60.0)
        pauses = [b - a for a, b in zip(policy.wakes, policy.wakes[1:], strict=False)]
        assert max(pauses) < 3.2
        assert len(policy.wakes) < 60 / 3 + 6
        policy.seconds = -1.0
        before = government.metrics.cycles
        government.world.run(10.0)
        assert government.leader.controller._next_cycle > government.scene.now
        assert government.metrics.cycles - before < 600
