"""The loop: one decision for many changes, and nothing that stops it."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest

from dlcontrol.loop import Controller
from dlcontrol.pacing import Bites, Effort, Pace, Taken
from dlcontrol.scheduling import Options
from dlcontrol.situation.ports import Fenced
from dlcontrol.situation.status import ConditionType
from dlcore import policies
from dlcore.checking import Law
from dlcore.contract import Decision, Policy, Share, View
from dlcore.model import Cause, CauseCode, Checkpoint, JobId, NodeName, Phase
from dlcore.planning import Start
from dlcore.profiles import JobType, Profile, Speed
from dlwire.messages import Shape
from tests.builders import make_job
from tests.control.governing import Government, PlayedGauge, PlayedMemory
from tests.control.played import Leash, PlayedPlatform, World
from tests.control.played_network import PlayedDialer
from tests.control.training import Trainings

ADAPTIVE = policies.make("adaptive")


@contextmanager
def governed(policy: Policy = ADAPTIVE, **nodes: int) -> Iterator[Government]:
    """A small world that is kind, with a controller."""
    government = Government(World("loop", nodes or {"n0": 4}), policy)
    try:
        yield government
    finally:
        government.close()


def submit(government: Government, name: str, **rest) -> JobId:
    job = make_job(name, **{"options": (1,)} | rest)
    government.world.submit(job, iterations=10_000)
    if government.reigns:
        government.wake()
    return job.id


def status(government: Government, job: JobId):
    return government.world.entries[job].status


def has_begun(government: Government, *jobs: JobId) -> bool:
    return all(status(government, job).phase is Phase.RUNNING for job in jobs)


# --- many changes, one decision -------------------------------------------------------------


class Counting(PlayedGauge):
    """Lets others wait for the next decision."""

    def __init__(self) -> None:
        super().__init__()
        self.decided = asyncio.Event()

    def cycle(self, seconds: float, *, decided: bool) -> None:
        super().cycle(seconds, decided=decided)
        if decided:
            self.decided.set()


PATIENT = Pace(settle_seconds=0.3, longest_settle_seconds=60.0, look_seconds=60.0)


@contextmanager
def running(
    policy: Policy = ADAPTIVE, pace: Pace = PATIENT
) -> Iterator[tuple[Any, World, Counting]]:
    """A controller that runs on the event loop and by the clock of this test."""
    world = World("run", {"n0": 4})
    world.epoch, leash, gauge = 1, Leash(), Counting()
    platform = PlayedPlatform(world, 1, leash)
    dialer = PlayedDialer(world, 1, leash, lambda: None)
    options = Options(policy=policy, pace=pace)
    controller = Controller(
        platform,
        dialer,
        memory=PlayedMemory(),
        gauge=gauge,
        options=options,
        epoch=1,
        clock=time.monotonic,
    )
    yield controller, world, gauge


async def until(event: asyncio.Event) -> None:
    async with asyncio.timeout(240):
        await event.wait()
    event.clear()


def test_a_hundred_submissions_are_one_decision():
    async def play() -> None:
        with running() as (controller, world, gauge):
            task = asyncio.create_task(controller.run())
            await until(gauge.decided)
            for number in range(100):
                world.submit(make_job(f"job-{number}", options=(1,)))
                controller.wake(burst=True)
                await asyncio.sleep(0)
            await until(gauge.decided)
            task.cancel()
            assert gauge.decisions == 2
            phases = [entry.status.phase for entry in world.entries.values()]
            assert (phases.count(Phase.INITIALIZED), phases.count(Phase.QUEUED)) == (4, 96)

    asyncio.run(play())


def test_a_large_decision_is_taken_in_bites_and_who_can_never_run_is_told_first():
    async def play() -> None:
        bites = replace(PATIENT, most_steps=3)
        with running(pace=bites) as (controller, world, gauge):
            task = asyncio.create_task(controller.run())
            await until(gauge.decided)
            names = [f"job-{number}" for number in range(8)]
            for name in names:
                world.submit(make_job(name, options=(1,)))
            world.submit(make_job("giant", options=(64,)))
            controller.wake()
            await until(gauge.decided)
            entries = world.entries
            assert entries[JobId("giant")].status.cause == Cause(CauseCode.TOO_LARGE, None, 64)
            told = [name for name in names if entries[JobId(name)].status.cause is not None]
            assert told == names[:3]
            for _ in range(2):
                await until(gauge.decided)
            task.cancel()
            entries = world.entries
            phases = [entries[JobId(name)].status.phase for name in names]
            assert (phases.count(Phase.INITIALIZED), phases.count(Phase.QUEUED)) == (4, 4)

    asyncio.run(play())


def test_it_looks_and_decides_while_the_last_pods_are_asked_for_and_then_waits_for_them():
    async def play() -> None:
        bites = replace(PATIENT, most_steps=2, trailing_launches=2)
        with running(pace=bites) as (controller, world, gauge):
            platform, may_end = controller._observer._platform, asyncio.Event()
            launch, under_way = platform.launch, []
            observe, looks = platform.observe, []

            async def launch_when_told(order):
                under_way.append(order)
                await may_end.wait()
                await launch(order)

            async def count_looks():
                looks.append(len(under_way))
                return await observe()

            platform.launch, platform.observe = launch_when_told, count_looks
            task = asyncio.create_task(controller.run())
            await until(gauge.decided)
            for number in range(4):
                world.submit(make_job(f"job-{number}", options=(1,)))
            controller.wake()
            await until(gauge.decided)
            async with asyncio.timeout(240):
                while looks[-1] < 2:
                    await asyncio.sleep(0.01)
            placed = [entry for entry in world.entries.values() if entry.status.placement]
            assert (len(placed), len(under_way)) == (2, 2), (
                "no more is recorded before these two pods have started"
            )
            may_end.set()
            await until(gauge.decided)
            task.cancel()
            assert all(entry.status.placement for entry in world.entries.values())

    asyncio.run(play())


def test_who_comes_while_much_is_done_is_looked_at_before_all_of_it_is():
    async def play() -> None:
        pace = replace(PATIENT, most_steps=4, bite_seconds=0.0, launches_at_once=1)
        with running(pace=pace) as (controller, world, gauge):
            platform, may_end, asked = controller._observer._platform, asyncio.Event(), []
            launch = platform.launch

            async def launch_when_told(order):
                asked.append(order.entry.job.id)
                await may_end.wait()
                await launch(order)

            platform.launch = launch_when_told
            task = asyncio.create_task(controller.run())
            await until(gauge.decided)
            for number in range(3):
                world.submit(make_job(f"job-{number}", options=(1,)))
            controller.wake()
            async with asyncio.timeout(240):
                while not asked:
                    await asyncio.sleep(0.01)
            world.submit(make_job("newcomer", options=(1,)))
            controller.wake(urgent=True)
            may_end.set()
            await until(gauge.decided)
            assert len(asked) == 1, "the others are left"
            await until(gauge.decided)
            async with asyncio.timeout(240):
                while len(asked) < 4:
                    await asyncio.sleep(0.01)
            task.cancel()
            assert sorted(asked) == ["job-0", "job-1", "job-2", "newcomer"], "each was once"
            assert all(entry.status.placement for entry in world.entries.values())

    asyncio.run(play())


def test_pods_that_are_asked_for_at_the_end_are_asked_for_no_longer():
    async def play() -> None:
        with running(pace=replace(PATIENT, trailing_launches=4)) as (controller, world, gauge):
            platform, ended = controller._observer._platform, []

            async def launch_for_ever(order):
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.append(order.entry.job.id)

            platform.launch = launch_for_ever
            task = asyncio.create_task(controller.run())
            await until(gauge.decided)
            world.submit(make_job("job", options=(1,)))
            controller.wake()
            await until(gauge.decided)
            task.cancel()
            await asyncio.wait({task}, timeout=240)
            assert ended == [JobId("job")]

    asyncio.run(play())


def test_a_change_that_comes_alone_is_not_waited_with():
    async def play() -> None:
        slow = replace(PATIENT, settle_seconds=1000.0)
        with running(pace=slow) as (controller, world, gauge):
            task = asyncio.create_task(controller.run())
            await until(gauge.decided)
            world.submit(make_job("job", options=(1,)))
            controller.wake()
            await until(gauge.decided)
            task.cancel()

    asyncio.run(play())


def test_an_error_is_no_reason_to_end_and_another_leader_is():
    async def play() -> None:
        with running(pace=Pace(look_seconds=0.01)) as (controller, world, gauge):
            observe, failures = controller._observer._platform.observe, list[int]()

            async def fail_twice():
                if len(failures) < 2:
                    failures.append(1)
                    raise OSError("the API server is away")
                return await observe()

            controller._observer._platform.observe = fail_twice
            task = asyncio.create_task(controller.run())
            await until(gauge.decided)
            world.epoch = 2
            world.submit(make_job("job", options=(1,)))
            controller.wake()
            async with asyncio.timeout(240):
                with pytest.raises(Fenced):
                    await task

    asyncio.run(play())


def test_the_loop_rests_longer_than_it_works():
    """The loop leaves turns to others on the event loop, even if there is much news."""

    async def play() -> None:
        busy = Pace(look_seconds=0.0, period_seconds=0.0, rest_share=1e9, longest_rest_seconds=1e9)
        with running(pace=busy) as (controller, _, gauge):
            task = asyncio.create_task(controller.run())
            await until(gauge.decided)
            for _ in range(20):
                controller.wake()
                await asyncio.sleep(0.001)
            task.cancel()
            assert gauge.cycles == 1

    asyncio.run(play())


def test_what_is_only_done_when_the_next_look_has_begun_counts_too():
    bites = Bites(Pace(most_steps=256, bite_seconds=2.0))
    bites.note(Taken(steps=40, seconds=1.0))
    assert bites.most == 80
    bites.note_rest(3.0)
    assert bites.most == 20
    bites.note(Taken(steps=0, seconds=1.0))
    bites.note_rest(5.0)
    assert bites.most == 20, "where nothing was to be taken nothing is learnt"


def test_what_was_left_is_done_first_and_is_not_left_again():
    bites = Bites(Pace(most_steps=256, bite_seconds=2.0))
    bites.note(Taken(steps=100, seconds=2.0, effort=0.5, is_hurried=False))
    assert (bites.most, bites.is_long) == (256, True)
    bites.note(Taken(steps=256, seconds=2.5, effort=0.5, left=120))
    assert not bites.is_long, "so that it is not cut short again"
    assert bites.most == 40, "as many as a hundred less those that are left, of which half is done"
    bites.note(Taken(steps=40, seconds=2.5, effort=0.5))
    bites.note_rest(1.0)
    assert bites.most == 100, "how fast it went with those that were left says nothing"
    bites.note(Taken(steps=100, seconds=4.0, effort=0.5))
    assert bites.most == 50
    bites.note(Taken(steps=50, seconds=2.0, left=1000))
    assert bites.most == 8, "it always goes on"


def test_what_is_as_it_was_is_the_same_seat():
    with governed() as government:
        submit(government, "job")
        government.begin()
        government.world.run(1.0, until=lambda: bool(government.world.pods))
        controller = government.leader.controller
        observation = asyncio.run(controller._observer._platform.observe())
        (first,), (second,) = (
            [
                seat
                for seats in controller._observer.see(observation).seats.values()
                for seat in seats.values()
            ]
            for _ in range(2)
        )
        assert first is second
        (key,) = observation.pods
        other = replace(observation, pods={key: replace(observation.pods[key], message="else")})
        assert controller._observer.see(other).seats[key.job][key.node].pod.message == "else"


def test_a_bite_is_what_can_be_taken_in_time():
    bites = Bites(Pace(most_steps=64, bite_seconds=2.0))
    bites.note(Taken(steps=64, seconds=4.0))
    assert bites.most == 32
    bites.note(Taken(steps=0, seconds=9.0))
    assert bites.most == 32, "who decides nothing learns nothing"
    bites.note(Taken(steps=32, seconds=60.0))
    assert bites.most == 8, "each look costs something too"
    bites.note(Taken(steps=8, seconds=0.01))
    assert bites.most == 64
    bites.note(Taken(steps=8, seconds=2.0, effort=1.0))
    assert bites.most == 12, "where a look takes a second, looks take no more than a quarter of all"
    bites.note(Taken(steps=12, seconds=2.0, effort=60.0))
    assert bites.most == 36, "a newcomer does not wait for minutes"
    bites.note(Taken(steps=36, seconds=6.0, effort=0.1, is_hurried=False))
    assert bites.most == 12, "what is cheap to look at is looked at often"
    bites.note(Taken(steps=12, seconds=2.0, effort=0.25, is_hurried=False))
    assert bites.most == 18, "more is taken where no job waits for the next decision"
    bites.note(Taken(steps=18, seconds=3.0, effort=9.0, is_hurried=False))
    assert bites.most == 36
    unlimited = Bites(Pace())
    unlimited.note(Taken(steps=1000, seconds=60.0))
    assert unlimited.most == 0


def test_what_others_do_meanwhile_is_not_the_effort_of_a_look():
    effort = Effort()
    with effort.aside():
        until_then = time.thread_time() + 0.05
        while time.thread_time() < until_then:
            pass
    assert effort.seconds < 0.05
    assert effort.rest(Pace(rest_share=1.0)) == 0.0, "others had their turn already"


def test_rest_is_owed_for_work_that_nobody_waited_for():
    effort = Effort()
    until_then = time.thread_time() + 0.02
    while time.thread_time() < until_then:
        pass
    assert effort.rest(Pace(rest_share=3.0, longest_rest_seconds=10.0)) >= 0.06
    assert effort.rest(Pace(rest_share=3.0, longest_rest_seconds=0.01)) == 0.01


def test_a_sidecar_that_obeys_another_says_that_another_leads():
    with governed() as government:
        job = submit(government, "job")
        former = government.begin()
        government.world.run(20.0)
        assert has_begun(government, job)
        government.begin()
        government.world.run(5.0)
        assert former.is_over
        told = [entry for entry in government.world.log if "[1] ends: Fenced" in entry]
        assert "obeys another controller" in told[0]


# --- who is set aside -----------------------------------------------------------------------


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


def test_a_job_that_no_sound_plan_is_made_for_is_set_aside_alone():
    with governed(Lawless()) as government:
        good, bad, other = (submit(government, name) for name in ("good", "bad", "other"))
        government.begin()
        government.world.run(20.0)
        assert has_begun(government, good, other)
        condition = status(government, bad).condition(ConditionType.SET_ASIDE)
        assert condition.status
        assert "job bad cannot run on 2 GPUs" in condition.message
        assert status(government, bad).placement is None
        for job in (good, other):
            assert status(government, job).condition(ConditionType.SET_ASIDE) is None
        assert [error.job for error in government.gauge.broken] == [bad]


def test_a_job_that_was_set_aside_is_tried_again_when_its_spec_is_another_one():
    with governed(Lawless()) as government:
        bad = submit(government, "bad")
        government.begin()
        government.world.run(60.0)
        assert len(government.gauge.broken) == 1
        demand = replace(government.world.entries[bad].job.gpus, options=(1, 2))
        government.world.change(bad, gpus=demand)
        government.world.run(60.0)
        assert has_begun(government, bad)
        assert not status(government, bad).condition(ConditionType.SET_ASIDE).status


def test_a_job_that_is_set_aside_keeps_what_it_has_and_nobody_else_gets_it():
    """It trains on one GPU; the policy wants it to have two, which it cannot use."""
    policy = Lawless(meek=True)
    with governed(policy, n0=2) as government:
        bad = submit(government, "bad")
        government.begin()
        government.world.run(20.0)
        assert has_begun(government, bad)
        policy.meek = False
        late, later = submit(government, "late"), submit(government, "later")
        government.world.run(60.0)
        assert status(government, bad).condition(ConditionType.SET_ASIDE).status
        assert (has_begun(government, bad), status(government, bad).generation) == (True, 1)
        assert has_begun(government, late)
        assert status(government, later).phase is Phase.QUEUED


def test_a_policy_that_fails_ends_nothing_and_those_who_wait_are_told():
    policy = Lawless()
    with governed(policy) as government:
        first = submit(government, "first")
        government.begin()
        government.world.run(20.0)
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


def test_what_is_recorded_about_one_job_stops_no_other():
    with governed() as government:
        odd, fine = submit(government, "odd"), submit(government, "fine")
        world = government.world
        entry = world.entries[odd]
        nonsense: Any = None
        world.entries[odd] = replace(entry, status=replace(entry.status, service=nonsense))
        government.begin()
        world.run(20.0)
        assert has_begun(government, fine)
        assert status(government, odd).condition(ConditionType.SET_ASIDE).status
        assert "contradicts itself" in status(government, odd).message
        entry = world.entries[odd]
        world.entries[odd] = replace(entry, status=replace(entry.status, service=0.0))
        world.run(60.0)
        assert has_begun(government, odd)
        assert not status(government, odd).condition(ConditionType.SET_ASIDE).status


def test_a_spec_that_cannot_be_read_is_told_and_left_alone():
    with governed() as government:
        odd = submit(government, "odd")
        world = government.world
        world.entries[odd] = replace(world.entries[odd], problem="gpus.options: is not a list")
        government.begin()
        world.run(20.0)
        condition = status(government, odd).condition(ConditionType.SET_ASIDE)
        assert (condition.status, condition.message) == (True, "gpus.options: is not a list")
        assert status(government, odd).placement is None


# --- reports to users -----------------------------------------------------------------------


def told(government: Government, job: JobId) -> list[tuple[str, str]]:
    """All Events of a job."""
    reigns = government.reigns
    return [
        (reason, text)
        for each in reigns
        for name, reason, text in each.platform.told
        if name == job
    ]


def test_each_decision_is_told_in_an_event_with_its_reason():
    with governed() as government:
        first = submit(government, "first", options=(2, 4))
        government.begin()
        government.world.run(20.0)
        submit(government, "second", options=(2, 4))
        government.world.run(20.0)
        government.world.change(first, suspend=True)
        government.wake()
        government.world.run(20.0)
        decisions = [(r, text) for r, text in told(government, first) if r != "Running"]
        assert [reason for reason, _ in decisions] == ["Scheduled", "Reshaping", "Stopping"]
        assert decisions[0][1] == "starts on 4 GPUs on n0: it is its turn"
        assert decisions[1][1] == "goes from 4 to 2 GPUs on n0: it makes room for second"
        assert decisions[2][1].startswith("gives back 2 GPUs: it is suspended")


def test_a_job_that_waits_is_told_why_when_the_reason_is_another_one():
    with governed() as government:
        first = submit(government, "first", options=(4,))
        government.begin()
        government.world.run(20.0)
        second = submit(government, "second", options=(4,))
        government.world.run(100.0)
        [(reason, message)] = told(government, second)
        assert (reason, message[:15]) == ("Waiting", "needs 4 GPUs; n")
        assert government.gauge.decisions > 4
        government.world.cancel(first)
        government.wake()
        government.world.run(20.0)
        assert [reason for reason, _ in told(government, second)][:2] == ["Waiting", "Scheduled"]


def test_that_a_job_can_never_run_is_told_once_even_by_those_who_come_later():
    with governed() as government:
        large = submit(government, "large", options=(8,))
        government.begin()
        government.world.run(20.0)
        government.kill(government.leader)
        government.begin()
        government.world.run(60.0)
        [(reason, message)] = told(government, large)
        assert (reason, "at least 8 GPUs" in message) == ("Waiting", True)


def test_who_is_set_aside_is_told_and_told_when_it_is_over():
    with governed() as government:
        odd = submit(government, "odd")
        world = government.world
        world.entries[odd] = replace(world.entries[odd], problem="gpus.options: is not a list")
        government.begin()
        world.run(40.0)
        assert told(government, odd) == [("SetAside", "is set aside: gpus.options: is not a list")]
        world.entries[odd] = replace(world.entries[odd], problem="", spec_generation=2)
        world.run(40.0)
        assert "Readmitted" in [reason for reason, _ in told(government, odd)]


# --- what is away ---------------------------------------------------------------------------


class Forgetful(PlayedMemory):
    """A store that is away, and says so each time."""

    def look(self, *_: Any, **__: Any) -> None:
        raise OSError("the store is away")

    def note(self, *_: Any, **__: Any) -> None:
        raise OSError("the store is away")

    def note_news(self, *_: Any, **__: Any) -> None:
        raise OSError("the store is away")


def test_a_memory_that_fails_ends_nothing():
    with governed() as government:
        job = submit(government, "job")
        government.memory = Forgetful()
        government.begin()
        government.world.run(20.0)
        assert has_begun(government, job)


def test_people_that_cannot_be_told_end_nothing():
    with governed() as government:
        job = submit(government, "job")

        async def fail(*_: Any, **__: Any) -> None:
            raise OSError("no events today")

        platform: Any = government.begin().platform
        platform.tell = fail
        government.world.run(20.0)
        assert has_begun(government, job)


# --- when it decides ------------------------------------------------------------------------


def test_a_controller_that_begins_asks_the_sidecars_before_it_decides():
    policy = Lawless()
    with governed(policy) as government:
        job = submit(government, "job")
        government.begin()
        government.world.run(20.0)
        assert has_begun(government, job)
        policy.seen.clear()
        world = government.world
        world.silent.add(NodeName("n0"))
        government.kill(government.leader)
        government.begin()
        world.run(5.0)
        assert policy.seen == []
        world.silent.clear()
        world.run(10.0)
        assert policy.seen != []
        assert government.scene.seats[job][NodeName("n0")].is_stamped(government.leader.epoch)


@dataclass
class Remembering(Lawless):
    """Remembers how often it has decided."""

    name: ClassVar[str] = "remembering"
    remembered: list[object] = field(default_factory=list)

    def allocate(self, view: View) -> Decision:
        self.remembered.append(view.state)
        count = view.state["count"] if isinstance(view.state, dict) else 0
        return replace(super().allocate(view), state={"count": count + 1})


def test_what_a_policy_remembers_survives_its_controller():
    policy = Remembering()
    with governed(policy) as government:
        submit(government, "job")
        government.begin()
        government.world.run(20.0)
        assert policy.remembered[0] is None
        last = policy.remembered[-1]
        government.kill(government.leader)
        government.begin()
        policy.remembered.clear()
        government.world.run(20.0)
        assert isinstance(last, dict)
        assert policy.remembered[0] == {"count": last["count"] + 1}


def test_it_does_not_wait_for_ever_for_those_who_are_silent():
    policy = Lawless()
    with governed(policy) as government:
        submit(government, "job")
        government.begin()
        government.world.run(20.0)
        policy.seen.clear()
        government.world.silent.add(NodeName("n0"))
        government.kill(government.leader)
        government.begin()
        government.world.run(13.0)
        assert policy.seen != []


def test_where_nothing_changes_nothing_is_said_or_written_and_decisions_are_rare():
    with governed() as government:
        job = submit(government, "job")
        government.begin()
        world = government.world
        world.run(30.0)
        assert has_begun(government, job)
        before = (world.witness.commands, world.records, government.gauge.decisions)
        world.run(100.0)
        period = government.options.pace.period_seconds
        assert world.witness.commands == before[0]
        # How far it is is written now and then, together with its GPU-seconds.
        assert world.records - before[1] <= 100 / 30 + 1
        assert government.gauge.decisions - before[2] <= 100 / period + 1


def test_a_job_of_which_nothing_is_known_grows_as_soon_as_its_first_speed_is():
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


def test_a_speed_that_others_have_learnt_is_decided_with_at_once():
    policy = Lawless()
    with governed(policy) as government:
        kind = JobType("unheard of")
        submit(government, "job", model=kind.model)
        government.begin()
        Trainings(government.world).begin()
        government.world.run(20.0)
        before = len(policy.seen)
        government.world.run(60.0, until=lambda: len(policy.seen) > before)
        for shapes in (1, 2):
            seen = len(policy.seen)
            speeds = {Shape(gpus, 1, ""): Speed(5.0) for gpus in range(shapes)}
            government.memory.known = {kind: Profile(kind, speeds)}
            government.world.run(3.0)
            assert len(policy.seen) - seen == shapes - 1


def test_a_job_whose_node_is_lost_starts_elsewhere_as_soon_as_nothing_is_left_of_it():
    with governed(n0=4, n1=4) as government:
        job = submit(government, "job", checkpoint=Checkpoint(shared=True))
        government.begin()
        world = government.world
        world.run(20.0)
        assert has_begun(government, job)
        (lost,) = status(government, job).placement.nodes
        decisions = government.gauge.decisions
        # Its pod lives on, as when the node is called by another name.
        del world.nodes[lost]
        world.run(2.5)
        assert government.options.pace.period_seconds > 2.5
        assert status(government, job).placement is not None
        assert lost not in status(government, job).placement.nodes
        assert government.gauge.decisions - decisions <= 4


def test_a_job_whose_pods_are_refused_frees_its_gpus_soon_and_fails_in_the_end(monkeypatch):
    orders = []
    take = PlayedPlatform.launch

    async def launch(self, order):
        if order.entry.job.id != "greedy":
            return await take(self, order)
        orders.append(order)
        raise OSError("exceeded quota")

    monkeypatch.setattr(PlayedPlatform, "launch", launch)
    with governed(n0=1) as government:
        rules = replace(government.options.rules, initialize_seconds=900.0)
        government.options = replace(government.options, rules=rules)
        greedy, world = submit(government, "greedy"), government.world
        began = world.now
        government.begin()
        world.run(500.0, until=lambda: status(government, greedy).setbacks == 1)
        assert world.now - began < rules.stuck_seconds + 10
        # Not once a look: those are two seconds apart.
        assert len(orders) < 10
        modest = submit(government, "modest")
        world.run(60.0, until=lambda: has_begun(government, modest))
        assert has_begun(government, modest)
        assert not status(government, greedy).pods
        world.cancel(modest)
        world.run(3000.0, until=lambda: status(government, greedy).is_final)
        assert status(government, greedy).phase is Phase.FAILED
        assert "exceeded quota" in status(government, greedy).message


@dataclass
class Sleeper(Lawless):
    """Wants to be asked again at a certain time."""

    wakes: list[float] = field(default_factory=list)

    def allocate(self, view: View) -> Decision:
        self.wakes.append(view.now)
        return replace(super().allocate(view), wake_at=view.now + 3.0)


def test_a_policy_is_asked_again_when_it_wants():
    policy = Sleeper()
    with governed(policy) as government:
        submit(government, "job")
        government.begin()
        government.world.run(60.0)
        pauses = [b - a for a, b in zip(policy.wakes, policy.wakes[1:], strict=False)]
        assert max(pauses) < 3.2
        assert len(policy.wakes) < 60 / 3 + 6


def test_a_wish_in_the_past_does_not_keep_the_loop_from_waiting():
    class Hasty(Lawless):
        def allocate(self, view: View) -> Decision:
            return replace(super().allocate(view), wake_at=view.now - 1.0)

    with governed(Hasty()) as government:
        submit(government, "job")
        government.begin()
        government.world.run(20.0)
        before = government.gauge.cycles
        government.world.run(10.0)
        scene = government.scene
        assert government.leader.controller._next_look > scene.now
        assert government.gauge.cycles - before < 600


def test_a_finished_job_is_kept_as_long_as_its_user_wants():
    with governed() as government:
        job = submit(government, "job")
        government.begin()
        government.world.run(20.0)
        government.world.cancel(job)
        government.wake()
        government.world.run(20.0)
        assert job not in government.world.entries
        assert not government.world.witness.living
