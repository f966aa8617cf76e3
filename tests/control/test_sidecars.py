"""
A controller's conversation with SideCars: the real client, server and table on one event loop, over
a proxy that a test controls.
"""

import asyncio
import contextlib
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from dljob.control.sidecars import following
from dljob.control.sidecars.contacts import LONGEST_S
from dljob.control.situation.dialer import NO_CONTACT, ForeignEpoch
from dljob.control.situation.ports import PodKey
from dljob.core.model import JobId, NodeName
from dljob.core.primitives.rate_limit import RateLimit
from dljob_sidecar.settings import Serving
from dljob_wire.messages import Phase, Post, Problem, Progress, State, Stop
from tests.control.callers import HURRIED, POD, calling, contained, living, wired
from tests.control.proxies import Fate, Proxy, of

PATIENT = replace(
    HURRIED, wait_seconds=60.0, shortest_pause_seconds=60.0, longest_pause_seconds=60.0
)
"""Retries nothing within the time of a test."""

OTHER = PodKey(JobId("bert"), NodeName("n1"))


def has_begun(generation: int):
    return lambda contact: contact.state is not None and contact.state.generation >= generation


def is_lost(contact) -> bool:
    return not contact.reachable


# --- declarations -------------------------------------------------------------------------


@living
async def test_declaration_is_sent_and_its_outcome_heard(tmp_path):
    async with contained(tmp_path / "a") as container, calling() as caller:
        first = await caller.meet(tmp_path / "a")
        assert (first.phase, first.released) == (Phase.READY, True)
        target = caller.run(3, "0", "1")
        assert caller.contact().unanswered == (target,)
        contact = await caller.until(has_begun(3))
        assert (contact.unanswered, contact.state.held) == ((), ("0", "1"))
        assert contact.state.installation == "ours"
        container.agent.happen(container.supervisor.started())
        await caller.until(lambda contact: contact.state.phase is Phase.RUNNING)
        caller.stop(4)
        await caller.until(has_begun(4))
        container.agent.happen(container.supervisor.gone())
        contact = await caller.until(lambda contact: contact.state.released)
        assert (contact.state.phase, contact.state.held) == (Phase.STOPPED, ())
        assert container.supervisor.demanded == ["start 3", "terminate"]


@living
async def test_takeover_uses_the_first_connection(tmp_path, monkeypatch):
    # The command comes in time, however long this process stands still.
    monkeypatch.setattr(following, "STAMP_S", 60.0)
    async with contained(tmp_path / "a"), Proxy(tmp_path / "p", tmp_path / "a") as proxy:
        async with calling() as former:
            await former.meet(tmp_path / "a")
            former.run(3)
            await former.until(has_begun(3))
        async with calling(epoch=2) as caller:
            await caller.meet(proxy.path)
            # The next question would come in one of these turns.
            for _ in range(20):
                await asyncio.sleep(0)
            caller.run(3, epoch=2)
            await caller.until(lambda contact: contact.state.epoch == 2)
            while proxy.count("GET") < 2:
                await asyncio.sleep(0.001)
            assert proxy.opened == 1


@living
async def test_sidecar_without_a_takeover_is_still_polled(tmp_path, monkeypatch):
    monkeypatch.setattr(following, "STAMP_S", 0.05)
    async with contained(tmp_path / "a") as container:
        async with calling() as former:
            await former.meet(tmp_path / "a")
            former.run(3)
            await former.until(has_begun(3))
        async with calling(PATIENT, epoch=2) as caller:
            await caller.meet(tmp_path / "a")
            container.agent.happen(container.supervisor.started())
            contact = await caller.until(lambda contact: contact.state.phase is Phase.RUNNING)
            assert contact.state.epoch == 1


@living
async def test_burst_sends_only_the_newest_once(tmp_path):
    async with contained(tmp_path / "a") as container, calling() as caller:
        await caller.meet(tmp_path / "a")
        for generation in range(1, 50):
            caller.run(generation, str(generation % 4))
        for _ in range(5):
            caller.run(49, "1")
        caller.sidecars.declare(POD, Stop(1, 51, "another-start"))
        await caller.until(has_begun(49))
        assert container.supervisor.demanded == ["start 49"]
        assert (len(caller.counts.round_trips), caller.contact().problem) == (1, "")


@living
async def test_newer_declaration_overtakes_a_hanging_one(tmp_path):
    gate = asyncio.Event()
    async with wired(tmp_path) as (container, proxy, caller):
        proxy.fate_of = of(b"PUT", Fate(request_gate=gate))
        run = caller.run(3, "0", "1")
        while not proxy.count("PUT"):
            await asyncio.sleep(0.001)
        proxy.fate_of = lambda _: Fate()
        caller.stop(4)
        # The run is on the wire, and cannot be called back.
        assert caller.contact().unanswered == (run,)
        contact = await caller.until(has_begun(4))
        assert contact.unanswered == ()
        assert container.supervisor.demanded == []


@living
async def test_late_run_is_ended_by_the_newer_stop(tmp_path):
    late = asyncio.Event()
    async with wired(tmp_path) as (container, proxy, caller):
        proxy.fate_of = of(b"PUT", Fate(answer_gate=asyncio.Event()))
        caller.run(3, "0", "1")
        # Its answer is lost; the next report shows the run.
        await caller.until(has_begun(3))
        assert caller.contact().unanswered == ()
        proxy.fate_of = of(b"PUT", Fate(request_gate=late))
        caller.stop(4)
        assert caller.contact().state.held == ("0", "1")
        late.set()
        await caller.until(has_begun(4))
        container.agent.happen(container.supervisor.gone())
        await caller.until(lambda contact: contact.state.released)
        assert container.supervisor.demanded == ["start 3", "terminate"]


@pytest.mark.parametrize("cut", [0, 30])
@living
async def test_broken_requests_and_answers_are_retried(tmp_path, cut):
    async with wired(tmp_path) as (_, proxy, caller):
        fates = [Fate(request_cut=cut)] * 3
        proxy.fate_of = of(b"PUT", lambda: fates.pop() if fates else Fate())
        caller.run(1)
        contact = await caller.until(has_begun(1))
        assert (fates, contact.unanswered) == ([], ())
        proxy.fate_of = lambda _: Fate(answer_cut=cut)
        proxy.cut()
        target = caller.run(3)
        contact = await caller.until(is_lost)
        while len(caller.counts.failures) < 3:
            await asyncio.sleep(0.001)
        assert caller.contact().unanswered == (target,)
        proxy.fate_of = lambda _: Fate()
        contact = await caller.until(has_begun(3))
        assert (contact.reachable, contact.unanswered) == (True, ())


# --- refusals -----------------------------------------------------------------------------


@pytest.mark.parametrize("tells", [True, False])
@living
async def test_later_leader_makes_the_sidecar_doubtful(tmp_path, tells):
    async with contained(tmp_path / "a"), calling(epoch=1) as ours, calling(epoch=2) as theirs:
        await ours.meet(tmp_path / "a")
        await theirs.meet(tmp_path / "a")
        ours.run(3, epoch=1)
        await theirs.until(has_begun(3))
        theirs.run(3, epoch=2)
        if tells:
            ours.stop(4, epoch=1)
        contact = await ours.until(lambda contact: contact.foreign)
        assert contact.foreign == ForeignEpoch(2)
        assert "it is not believed" in contact.problem
        assert not contact.reachable
        assert contact.state.epoch < 2
        assert theirs.contact().foreign is None


@living
async def test_epoch_of_another_installation_is_doubtful(tmp_path):
    async with contained(tmp_path / "a") as container, calling(epoch=7) as ours:
        state = await ours.meet(tmp_path / "a")
        container.agent.declare(Stop(1, 3, state.incarnation, installation="theirs"))
        contact = await ours.until(lambda contact: contact.foreign)
        assert contact.foreign == ForeignEpoch(1, "theirs")
        assert not contact.state.installation


@living
async def test_left_message_is_checked_like_an_answer():
    left = State("first-start", 3, Phase.EXITED, released=True, epoch=7, installation="ours")
    async with calling(epoch=7) as ours:
        assert ours.sidecars.believe(left) == left
        for what in ({"epoch": 8}, {"installation": "theirs"}):
            assert ours.sidecars.believe(replace(left, **what)) is None, what
        endless = replace(left, progress=Progress(idle_seconds=1e300))
        assert ours.sidecars.believe(endless).progress.idle_seconds == LONGEST_S


@living
async def test_next_incarnation_ends_the_doubt(tmp_path):
    async with calling(epoch=1) as ours:
        async with contained(tmp_path / "a") as container:
            state = await ours.meet(tmp_path / "a")
            container.agent.declare(Stop(2, 3, state.incarnation))
            await ours.until(lambda contact: contact.foreign)
        async with contained(tmp_path / "a", incarnation="second-start"):
            contact = await ours.until(lambda contact: contact.reachable)
            assert (contact.foreign, contact.state.incarnation) == (None, "second-start")


@living
async def test_refused_target_is_not_repeated_before_a_pause(tmp_path):
    patient = replace(HURRIED, refused_pause_seconds=3600.0)
    async with contained(tmp_path / "a"), calling() as ours, calling(patient) as again:
        await ours.meet(tmp_path / "a")
        ours.run(3, "0")
        await ours.until(has_begun(3))
        await again.meet(tmp_path / "a")
        again.stop(3)
        contact = await again.until(lambda contact: contact.problem)
        assert ("SameTermOtherTarget" in contact.problem, contact.foreign) == (True, None)
        told = len(again.counts.round_trips)
        # A loop that the refusal wakes declares it again.
        for _ in range(100):
            again.stop(3)
            assert again.contact().declared is None
        again.stop(4)
        contact = await again.until(has_begun(4))
        assert contact.problem == ""
        assert len(again.counts.round_trips) == told + 1


@living
async def test_leaving_sidecar_gets_no_more_commands(tmp_path):
    async with contained(tmp_path / "a"), calling() as caller:
        await caller.meet(tmp_path / "a")
        caller.stop(3, leave=True)
        await caller.until(lambda contact: contact.state.leaving)
        caller.run(5)
        contact = await caller.until(lambda contact: contact.declared is None)
        assert (contact.problem, contact.unanswered) == ("", ())
        assert contact.foreign is None


@pytest.mark.parametrize(("leave", "word"), [(True, "has ended"), (False, "is silent")])
@living
async def test_ordered_end_is_not_logged_as_silence(tmp_path, caplog, leave, word):
    caplog.set_level(logging.INFO, logger="dljob.control.sidecars.following")
    async with calling() as caller:
        async with contained(tmp_path / "a"):
            await caller.meet(tmp_path / "a")
            caller.stop(3, leave=leave)
            await caller.until(lambda contact: contact.state.generation == 3)
        await caller.until(is_lost)
    (told,) = [line for line in caplog.messages if "answers" not in line]
    assert told.startswith(f"the SideCar of {POD} {word}: ")


@living
async def test_full_sidecar_is_polled_without_waiting(tmp_path):
    serving = Serving(most_waiting=1)
    async with (
        contained(tmp_path / "a", serving=serving) as container,
        calling() as first,
        calling() as second,
    ):
        await first.meet(tmp_path / "a")
        await container.polled()
        await second.meet(tmp_path / "a")
        while second.counts.polls < 4:
            await asyncio.sleep(0.001)
        container.agent.complain(Problem("Something", "is wrong"))
        contact = await second.until(lambda contact: contact.state.problems)
        assert (contact.reachable, contact.problem) == (True, "")
        assert second.counts.failures == []


# --- news ---------------------------------------------------------------------------------


@living
async def test_progress_is_distinguished_from_urgent_news(tmp_path):
    async with contained(tmp_path / "a") as container, calling() as caller:
        await caller.meet(tmp_path / "a")
        await container.polled()
        caller.heard.clear()
        container.agent.post(Post(iteration=7))
        container.agent.changed()
        await caller.until(lambda contact: contact.state.progress.iteration == 7)
        assert caller.heard == [(POD, False)]
        await container.polled()
        container.agent.complain(Problem("Something", "is wrong"))
        await caller.until(lambda contact: contact.state.problems)
        assert caller.heard == [(POD, False), (POD, True)]


@living
async def test_failing_listener_does_not_end_the_listening(tmp_path, caplog):
    async with contained(tmp_path / "a"), calling() as caller:
        await caller.meet(tmp_path / "a")
        caller.heard = None
        caller.run(3)
        while "cannot send the command" not in caplog.text:
            await asyncio.sleep(0.001)
        caller.heard = []
        caller.stop(4)
        await caller.until(has_begun(4))


@living
async def test_refusal_by_a_new_incarnation_ends_an_old_poll(tmp_path):
    async with (
        wired(tmp_path, PATIENT) as (first, proxy, caller),
        contained(tmp_path / "b", incarnation="second-start"),
    ):
        await first.polled()
        # The connection to the first one stays open, as when a machine loses its power.
        proxy.upstream = tmp_path / "b"
        caller.run(3)
        contact = await caller.until(lambda c: c.state.incarnation == "second-start")
        assert (contact.declared, contact.problem) == (None, "")
        assert caller.counts.failures == []


@living
async def test_lost_answers_of_the_dead_are_no_silence_of_the_living(tmp_path):
    async with (
        wired(tmp_path) as (_, proxy, caller),
        contained(tmp_path / "b", incarnation="second-start"),
    ):
        proxy.fate_of = of(b"PUT", Fate(request_gate=asyncio.Event()))
        caller.run(3)
        while not proxy.count("PUT"):
            await asyncio.sleep(0.001)
        proxy.upstream = tmp_path / "b"
        proxy.cut(b"GET")
        await caller.until(lambda contact: contact.state.incarnation == "second-start")
        failures = len(caller.counts.failures)
        proxy.fate_of = of(b"PUT", Fate(request_cut=0))
        proxy.cut(b"PUT")
        telling = caller.sidecars._followers[POD]._telling
        while not telling.done():
            await asyncio.sleep(0.001)
        assert len(caller.counts.failures) == failures
        assert caller.contact().reachable


@living
async def test_another_address_is_another_sidecar(tmp_path):
    async with (
        wired(tmp_path) as (_, proxy, caller),
        contained(tmp_path / "b", incarnation="second-start"),
    ):
        caller.follow(proxy.path)
        assert caller.contact().state is not None
        caller.follow(tmp_path / "b")
        assert caller.contact().state is None
        contact = await caller.until(lambda contact: contact.state)
        assert contact.state.incarnation == "second-start"
        while proxy.wires:
            await asyncio.sleep(0.001)


# --- silence ------------------------------------------------------------------------------


@living
async def test_sidecar_is_met_when_it_comes(tmp_path):
    async with calling() as caller:
        caller.follow(tmp_path / "a")
        contact = await caller.until(lambda contact: contact.problem)
        assert "cannot connect to" in contact.problem
        assert "No such file" in contact.problem
        assert not contact.reachable
        async with contained(tmp_path / "a"):
            contact = await caller.until(lambda contact: contact.reachable)
            assert (contact.problem, contact.state.version) == ("", 1)
            assert caller.counts.failures == [], "a start is no failure"
            caller.sidecars.forget(POD)


@living
async def test_cut_connection_is_silence_until_it_is_back(tmp_path):
    async with wired(tmp_path) as (container, proxy, caller):
        before = caller.contact()
        proxy.upstream = tmp_path / "nowhere"
        proxy.cut()
        contact = await caller.until(is_lost)
        assert contact.since >= before.since
        assert contact.state == before.state
        # A target declared meanwhile arrives in the end.
        target = caller.run(3)
        while len(caller.counts.failures) < 5:
            await asyncio.sleep(0.001)
        assert caller.contact().unanswered == (target,)
        proxy.upstream = tmp_path / "a"
        contact = await caller.until(has_begun(3))
        assert contact.reachable
        assert contact.first_seen == before.first_seen
        assert container.supervisor.demanded == ["start 3"]


@living
async def test_closed_connection_alone_is_no_silence(tmp_path):
    async with wired(tmp_path, PATIENT) as (container, proxy, caller):
        await container.polled()
        # A SideCar closes it after a renewal of its certificates.
        proxy.cut()
        container.agent.complain(Problem("Something", "is wrong"))
        await caller.until(lambda contact: contact.state.problems)
        assert caller.counts.failures == []


@living
async def test_answer_to_a_declaration_ends_the_pause(tmp_path):
    async with wired(tmp_path, PATIENT) as (container, proxy, caller):
        await container.polled()
        proxy.upstream = tmp_path / "nowhere"
        proxy.cut()
        await caller.until(is_lost)
        proxy.upstream = tmp_path / "a"
        caller.run(3)
        await caller.until(has_begun(3))
        container.agent.complain(Problem("Something", "is wrong"))
        await caller.until(lambda contact: contact.state.problems)


@living
async def test_missing_answers_are_silence(tmp_path):
    hasty = replace(HURRIED, wait_seconds=0.2, silence_seconds=0.2)
    gate = asyncio.Event()
    async with wired(tmp_path, hasty) as (_, proxy, caller):
        proxy.fate_of = lambda _: Fate(answer_gate=gate)
        contact = await caller.until(is_lost)
        assert "no answer from" in contact.problem
        gate.set()
        contact = await caller.until(lambda contact: contact.reachable)
        assert contact.problem == ""


# --- costs --------------------------------------------------------------------------------


def test_rate_limit_bounds_the_questions():
    allowance = RateLimit(per_second=10.0, at_once=3)
    assert [allowance.take(100.0) for _ in range(5)] == pytest.approx([0, 0, 0, 0.1, 0.2])
    assert allowance.take(200.0) == 0.0
    waits = [allowance.take(200.0 + 0.05 * step) for step in range(100)]
    assert sum(wait == 0.0 for wait in waits) <= 3 + 0.05 * 100 * 10


@pytest.mark.parametrize(
    "bound",
    [
        {"changes_per_second": 1e-6, "changes_at_once": 3},
        {"polls_per_second": 1e-6, "polls_at_once": 3},
        {"bytes_per_second": 1e-6, "bytes_at_once": 1},
    ],
    ids=["changes", "questions", "bytes"],
)
@living
async def test_flooding_sidecar_is_heard_at_a_bounded_rate(tmp_path, bound):
    async with contained(tmp_path / "a") as container, calling(replace(HURRIED, **bound)) as caller:
        await caller.meet(tmp_path / "a")
        for number in range(100):
            container.agent.complain(Problem(f"Number{number}", "is wrong"))
            container.agent.solve(f"Number{number - 1}")
            await asyncio.sleep(0.001)
        assert len(caller.heard) <= 5


@living
async def test_pause_after_a_failure_grows_and_is_random():
    draws = iter([1.0] * 6 + [0.0, 0.25, 0.5, 0.999])
    async with calling(chance=lambda: next(draws)) as caller:
        caller.follow(Path("/no/socket/here"))
        pause = caller.sidecars._followers[POD]._pause_after
        assert [pause(n) for n in range(6)] == [0.01, 0.02, 0.04, 0.08, 0.1, 0.1]
        apart = [pause(10) for _ in range(4)]
        assert apart == pytest.approx([0.01, 0.0325, 0.055, 0.09991])


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@living
async def test_many_requests_leak_nothing(tmp_path):
    async with wired(tmp_path) as (container, proxy, caller):
        caller.run(1)
        await caller.until(has_begun(1))
        await container.polled()
        before = (descriptors(), len(asyncio.all_tasks()))
        for number in range(2, 52):
            caller.stop(number)
            await caller.until(has_begun(number))
        await container.polled()
        assert caller.counts.polls > 30
        assert len(caller.counts.round_trips) == 51
        assert len(proxy.wires) == 2
        now = (descriptors(), len(asyncio.all_tasks()))
        assert now[0] <= before[0]
        assert now[1] <= before[1]


@living
async def test_forgotten_sidecar_leaks_nothing(tmp_path):
    async with (
        contained(tmp_path / "a"),
        Proxy(tmp_path / "p", tmp_path / "a") as proxy,
        calling() as caller,
    ):
        tasks, files = asyncio.all_tasks(), descriptors()
        for _ in range(20):
            await caller.meet(proxy.path)
            caller.run(3)
            caller.follow(tmp_path / "nowhere", OTHER)
            caller.sidecars.forget(POD)
            caller.sidecars.forget(OTHER)
            assert caller.contact() is NO_CONTACT
        heard = len(caller.heard)
        await caller.sidecars.close()
        while proxy.wires or asyncio.all_tasks() != tasks:
            await asyncio.sleep(0.001)
        assert descriptors() <= files
        assert len(caller.heard) == heard
        caller.sidecars.forget(POD)


# --- foreign answers ----------------------------------------------------------------------

GARBAGE = {
    "no HTTP": (b"hello\r\n\r\n", "no answer from"),
    "no state": (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "incarnation: it is missing"),
    "too much": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 5000000\r\n\r\n" + 5_000_000 * b" ",
        "is longer than",
    ),
    "elsewhere": (
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n",
        "(status 302) does not follow the protocol",
    ),
}


@pytest.mark.parametrize("name", GARBAGE)
@living
async def test_foreign_answer_is_reported_and_asked_again(tmp_path, name):
    answer, problem = GARBAGE[name]

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # The last question may be cut.
            with contextlib.suppress(asyncio.IncompleteReadError, OSError):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(answer)
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        finally:
            writer.transport.abort()

    server = await asyncio.start_unix_server(speak, tmp_path / "a")
    async with server, calling() as caller:
        caller.follow(tmp_path / "a")
        contact = await caller.until(lambda contact: contact.problem)
        assert problem in contact.problem
        assert (contact.reachable, contact.state) == (False, None)
        while caller.counts.polls < 3:
            await asyncio.sleep(0.001)
