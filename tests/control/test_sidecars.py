"""
How a controller speaks to SideCars: the real client, the real server and the real table on one
event loop, and a wire between them that does what the test says.
"""

import asyncio
import contextlib
import logging
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from dlcontrol.sidecars import following
from dlcontrol.situation.ports import Address, PodKey
from dlcontrol.situation.scene import NO_CONTACT, Doubt
from dlcore.model import JobId, NodeName
from dlcore.primitives.allowance import Allowance
from dlsidecar.settings import Serving
from dlwire.messages import Phase, Post, Problem, Stop
from tests.control.callers import HURRIED, POD, calling, contained
from tests.control.proxies import Fate, Proxy, of
from tests.sidecar.clients import Client, live_through

PATIENT = replace(
    HURRIED, wait_seconds=60.0, shortest_pause_seconds=60.0, longest_pause_seconds=60.0
)
"""Does nothing again within the time that a test has."""

OTHER = PodKey(JobId("bert"), NodeName("n1"))


def has_begun(generation: int):
    return lambda contact: contact.state is not None and contact.state.generation >= generation


def is_lost(contact) -> bool:
    return not contact.reachable


# --- what shall be ------------------------------------------------------------------------


def test_what_is_declared_is_told_and_what_becomes_of_it_is_heard(tmp_path):
    async def story():
        async with contained(tmp_path / "a") as container, calling() as caller:
            first = await caller.meet(tmp_path / "a")
            assert (first.phase, first.released) == (Phase.READY, True)
            target = caller.run(3, "0", "1")
            assert caller.contact().unanswered == (target,)
            contact = await caller.until(has_begun(3))
            assert (contact.unanswered, contact.state.held) == ((), ("0", "1"))
            container.agent.happen(container.supervisor.started())
            await caller.until(lambda contact: contact.state.phase is Phase.RUNNING)
            caller.stop(4)
            await caller.until(has_begun(4))
            container.agent.happen(container.supervisor.gone())
            contact = await caller.until(lambda contact: contact.state.released)
            assert (contact.state.phase, contact.state.held) == (Phase.STOPPED, ())
            assert container.supervisor.demanded == ["start 3", "terminate"]

    live_through(story())


def test_the_same_declaration_again_is_not_said_again(tmp_path):
    async def story():
        async with (
            contained(tmp_path / "a"),
            Proxy(tmp_path / "p", tmp_path / "a") as proxy,
            calling() as caller,
        ):
            await caller.meet(proxy.path)
            for _ in range(5):
                caller.run(3)
            await caller.until(has_begun(3))
            for _ in range(5):
                caller.run(3)
            caller.stop(4)
            await caller.until(has_begun(4))
            assert proxy.count("PUT") == 2

    live_through(story())


def test_a_sidecar_is_taken_over_on_the_connection_on_which_it_was_met(tmp_path, monkeypatch):
    # The command comes before, however long this process stands still.
    monkeypatch.setattr(following, "STAMP_S", 60.0)

    async def story():
        async with (
            contained(tmp_path / "a"),
            Proxy(tmp_path / "p", tmp_path / "a") as proxy,
        ):
            async with calling() as former:
                await former.meet(tmp_path / "a")
                former.run(3)
                await former.until(has_begun(3))
            async with calling(epoch=2) as caller:
                await caller.meet(proxy.path)
                # It would ask its next question in one of these turns.
                for _ in range(20):
                    await asyncio.sleep(0)
                caller.run(3, epoch=2)
                await caller.until(lambda contact: contact.state.epoch == 2)
                while proxy.count("GET") < 2:
                    await asyncio.sleep(0.001)
                assert proxy.opened == 1

    live_through(story())


def test_a_sidecar_that_is_not_taken_over_is_asked_for_news_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(following, "STAMP_S", 0.05)

    async def story():
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

    live_through(story())


def test_of_a_burst_only_the_newest_is_said(tmp_path):
    async def story():
        async with contained(tmp_path / "a") as container, calling() as caller:
            await caller.meet(tmp_path / "a")
            for generation in range(1, 50):
                caller.run(generation, str(generation % 4))
            await caller.until(has_begun(49))
            assert container.supervisor.demanded == ["start 49"]
            assert len(caller.counts.round_trips) == 1

    live_through(story())


def test_a_newer_declaration_does_not_wait_for_an_older_one_that_hangs(tmp_path):
    async def story():
        gate = asyncio.Event()
        async with (
            contained(tmp_path / "a") as container,
            Proxy(tmp_path / "p", tmp_path / "a") as proxy,
            calling() as caller,
        ):
            await caller.meet(proxy.path)
            proxy.fate_of = of(b"PUT", Fate(request_gate=gate))
            run = caller.run(3, "0", "1")
            while not proxy.count("PUT"):
                await asyncio.sleep(0.001)
            proxy.fate_of = lambda _: Fate()
            caller.stop(4)
            # It is on the wire, and cannot be called back.
            assert caller.contact().unanswered == (run,)
            contact = await caller.until(has_begun(4))
            assert contact.unanswered == ()
            assert container.supervisor.demanded == []

    live_through(story())


def test_what_was_given_up_and_arrives_first_is_ended_by_what_is_newer(tmp_path):
    async def story():
        late = asyncio.Event()
        async with (
            contained(tmp_path / "a") as container,
            Proxy(tmp_path / "p", tmp_path / "a") as proxy,
            calling() as caller,
        ):
            await caller.meet(proxy.path)
            proxy.fate_of = of(b"PUT", Fate(answer_gate=asyncio.Event()))
            caller.run(3, "0", "1")
            while not container.supervisor.demanded:
                await asyncio.sleep(0.001)
            proxy.fate_of = of(b"PUT", Fate(request_gate=late))
            caller.stop(4)
            contact = await caller.until(has_begun(3))
            assert contact.state.held == ("0", "1")
            late.set()
            await caller.until(has_begun(4))
            container.agent.happen(container.supervisor.gone())
            await caller.until(lambda contact: contact.state.released)
            assert container.supervisor.demanded == ["start 3", "terminate"]

    live_through(story())


@pytest.mark.parametrize("cut", [0, 1, 30, 300])
def test_a_declaration_that_breaks_off_is_said_again(tmp_path, cut):
    async def story():
        fates = [Fate(request_cut=cut)] * 3
        async with (
            contained(tmp_path / "a") as container,
            Proxy(tmp_path / "p", tmp_path / "a") as proxy,
            calling() as caller,
        ):
            await caller.meet(proxy.path)
            proxy.fate_of = lambda request: (
                fates.pop() if fates and request.startswith(b"PUT") else Fate()
            )
            caller.run(3)
            contact = await caller.until(has_begun(3))
            assert fates == []
            assert contact.unanswered == ()
            assert container.supervisor.demanded == ["start 3"]

    live_through(story())


@pytest.mark.parametrize("cut", [0, 1, 30, 300])
def test_answers_that_break_off_are_made_good(tmp_path, cut):
    async def story():
        async with (
            contained(tmp_path / "a") as container,
            Proxy(tmp_path / "p", tmp_path / "a") as proxy,
            calling() as caller,
        ):
            await caller.meet(proxy.path)
            proxy.fate_of = lambda _: Fate(answer_cut=cut)
            proxy.cut()
            target = caller.run(3)
            contact = await caller.until(is_lost)
            while len(caller.counts.failures) < 3:
                await asyncio.sleep(0.001)
            assert container.supervisor.demanded == ["start 3"]
            assert caller.contact().unanswered == (target,)
            proxy.fate_of = lambda _: Fate()
            contact = await caller.until(has_begun(3))
            assert (contact.reachable, contact.unanswered) == (True, ())
            assert container.supervisor.demanded == ["start 3"]

    live_through(story())


def test_a_lost_answer_is_made_good_by_the_news(tmp_path):
    async def story():
        async with (
            contained(tmp_path / "a") as container,
            Proxy(tmp_path / "p", tmp_path / "a") as proxy,
            calling() as caller,
        ):
            await caller.meet(proxy.path)
            proxy.fate_of = of(b"PUT", Fate(answer_gate=asyncio.Event()))
            caller.run(3)
            contact = await caller.until(has_begun(3))
            assert contact.unanswered == ()
            assert container.supervisor.demanded == ["start 3"]

    live_through(story())


def test_what_is_meant_for_another_start_of_the_container_is_not_even_sent(tmp_path):
    async def story():
        async with contained(tmp_path / "a"), calling() as caller:
            await caller.meet(tmp_path / "a")
            caller.sidecars.declare(POD, Stop(1, 3, "another-start"))
            caller.stop(4)
            await caller.until(has_begun(4))
            assert caller.contact().problem == ""
            assert len(caller.counts.round_trips) == 1

    live_through(story())


# --- refusals -----------------------------------------------------------------------------


def test_every_command_names_the_installation_it_comes_from(tmp_path):
    async def story():
        async with contained(tmp_path / "a") as container, calling() as caller:
            await caller.meet(tmp_path / "a")
            caller.run(3)
            contact = await caller.until(has_begun(3))
            assert contact.state.installation == "ours"
            assert container.agent.state().target.installation == "ours"

    live_through(story())


@pytest.mark.parametrize("tells", [True, False])
def test_the_word_of_a_later_leader_is_a_doubt_and_not_taken_in(tmp_path, tells):
    async def story():
        async with (
            contained(tmp_path / "a"),
            calling(epoch=1) as ours,
            calling(epoch=2) as theirs,
        ):
            await ours.meet(tmp_path / "a")
            await theirs.meet(tmp_path / "a")
            ours.run(3, epoch=1)
            await theirs.until(has_begun(3))
            theirs.run(3, epoch=2)
            if tells:
                ours.stop(4, epoch=1)
            contact = await ours.until(lambda contact: contact.doubt)
            assert contact.doubt == Doubt(2)
            assert "it is not believed" in contact.problem
            assert not contact.reachable
            assert contact.state.epoch < 2
            assert theirs.contact().doubt is None

    live_through(story())


def test_the_epoch_of_another_installation_is_a_doubt_however_low_it_is(tmp_path):
    async def story():
        async with contained(tmp_path / "a") as container, calling(epoch=7) as ours:
            state = await ours.meet(tmp_path / "a")
            container.agent.declare(Stop(1, 3, state.incarnation, installation="theirs"))
            contact = await ours.until(lambda contact: contact.doubt)
            assert contact.doubt == Doubt(1, "theirs")
            assert not contact.state.installation

    live_through(story())


def test_a_doubt_is_over_when_it_is_another_start_of_the_container(tmp_path):
    async def story():
        async with calling(epoch=1) as ours:
            async with contained(tmp_path / "a") as container:
                state = await ours.meet(tmp_path / "a")
                container.agent.declare(Stop(2, 3, state.incarnation))
                await ours.until(lambda contact: contact.doubt)
            async with contained(tmp_path / "a", incarnation="second-start"):
                contact = await ours.until(lambda contact: contact.reachable)
                assert (contact.doubt, contact.state.incarnation) == (None, "second-start")

    live_through(story())


def test_what_contradicts_our_own_word_is_a_problem_and_no_fence(tmp_path):
    async def story():
        async with contained(tmp_path / "a"), calling() as ours, calling() as again:
            await ours.meet(tmp_path / "a")
            ours.run(3, "0")
            await ours.until(has_begun(3))
            await again.meet(tmp_path / "a")
            again.stop(3)
            contact = await again.until(lambda contact: contact.problem)
            assert "SameTermOtherTarget" in contact.problem
            assert again.contact().doubt is None

    live_through(story())


def test_what_was_refused_for_good_is_not_said_again_before_a_pause(tmp_path):
    async def story():
        patient = replace(HURRIED, refused_pause_seconds=3600.0)
        async with contained(tmp_path / "a"), calling() as ours, calling(patient) as again:
            await ours.meet(tmp_path / "a")
            ours.run(3, "0")
            await ours.until(has_begun(3))
            await again.meet(tmp_path / "a")
            again.stop(3)
            await again.until(lambda contact: contact.problem)
            told = len(again.counts.round_trips)
            # As a loop does that is woken by the refusal.
            for _ in range(100):
                again.stop(3)
                assert again.contact().declared is None
            again.stop(4)
            contact = await again.until(has_begun(4))
            assert contact.problem == ""
            assert len(again.counts.round_trips) == told + 1

    live_through(story())


def test_a_sidecar_that_leaves_is_told_nothing_more(tmp_path):
    async def story():
        async with contained(tmp_path / "a"), calling() as caller:
            await caller.meet(tmp_path / "a")
            caller.stop(3, leave=True)
            await caller.until(lambda contact: contact.state.leaving)
            caller.run(5)
            contact = await caller.until(lambda contact: contact.declared is None)
            assert (contact.problem, contact.unanswered) == ("", ())
            assert contact.doubt is None

    live_through(story())


@pytest.mark.parametrize(("leave", "word"), [(True, "has ended"), (False, "is silent")])
def test_that_a_sidecar_ended_in_order_is_not_told_as_a_silence(tmp_path, caplog, leave, word):
    async def story():
        async with calling() as caller:
            async with contained(tmp_path / "a"):
                await caller.meet(tmp_path / "a")
                caller.stop(3, leave=leave)
                await caller.until(lambda contact: contact.state.generation == 3)
            await caller.until(is_lost)

    with caplog.at_level(logging.INFO, logger="dlcontrol.sidecars.following"):
        live_through(story())
    (told,) = [line for line in caplog.messages if "answers" not in line]
    assert told.startswith(f"the SideCar of {POD} {word}: ")


def test_where_too_many_wait_it_is_asked_without_waiting(tmp_path):
    async def story():
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

    live_through(story())


# --- news ---------------------------------------------------------------------------------


def test_progress_is_told_from_news_that_cannot_wait(tmp_path):
    async def story():
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

    live_through(story())


def test_a_listener_that_fails_does_not_end_the_listening(tmp_path, caplog):
    async def story():
        async with contained(tmp_path / "a"), calling() as caller:
            await caller.meet(tmp_path / "a")
            caller.heard = None
            caller.run(3)
            while "cannot send the command" not in caplog.text:
                await asyncio.sleep(0.001)
            caller.heard = []
            caller.stop(4)
            await caller.until(has_begun(4))

    live_through(story())


def test_an_answer_of_an_earlier_start_of_the_container_comes_too_late(tmp_path):
    async def story():
        gate = asyncio.Event()
        async with (
            contained(tmp_path / "a"),
            contained(tmp_path / "b", incarnation="second-start") as second,
            Proxy(tmp_path / "p", tmp_path / "a") as proxy,
            calling() as caller,
        ):
            await caller.meet(proxy.path)
            proxy.fate_of = of(b"PUT", Fate(answer_gate=gate))
            caller.run(3, "0")
            await caller.until(has_begun(3))
            # The first one has accepted it, and its answer is still on the wire.
            proxy.upstream = tmp_path / "b"
            proxy.cut(b"GET")
            contact = await caller.until(lambda c: c.state.incarnation == "second-start")
            assert (contact.declared, contact.unanswered) == (None, ())
            gate.set()
            caller.run(5, "1")
            await caller.until(has_begun(5))
            assert second.supervisor.demanded == ["start 5"]
            assert caller.contact().state.incarnation == "second-start"

    live_through(story())


def test_who_waits_for_news_of_the_dead_is_told_by_the_refusal_of_the_living(tmp_path):
    async def story():
        async with (
            contained(tmp_path / "a") as first,
            contained(tmp_path / "b", incarnation="second-start"),
            Proxy(tmp_path / "p", tmp_path / "a") as proxy,
            calling(PATIENT) as caller,
        ):
            await caller.meet(proxy.path)
            await first.polled()
            # The wire to the first one stays as it is, as when a machine has lost its power.
            proxy.upstream = tmp_path / "b"
            caller.run(3)
            contact = await caller.until(lambda c: c.state.incarnation == "second-start")
            assert (contact.declared, contact.problem) == (None, "")
            assert caller.counts.failures == []

    live_through(story())


def test_what_the_dead_do_not_answer_is_no_silence_of_the_living(tmp_path):
    async def story():
        async with (
            contained(tmp_path / "a"),
            contained(tmp_path / "b", incarnation="second-start"),
            Proxy(tmp_path / "p", tmp_path / "a") as proxy,
            calling() as caller,
        ):
            await caller.meet(proxy.path)
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

    live_through(story())


def test_another_address_is_another_sidecar(tmp_path):
    async def story():
        async with (
            contained(tmp_path / "a"),
            contained(tmp_path / "b", incarnation="second-start"),
            Proxy(tmp_path / "p", tmp_path / "a") as proxy,
            calling() as caller,
        ):
            await caller.meet(proxy.path)
            caller.follow(proxy.path)
            assert caller.contact().state is not None
            caller.follow(tmp_path / "b")
            assert caller.contact().state is None
            contact = await caller.until(lambda contact: contact.state)
            assert contact.state.incarnation == "second-start"
            while proxy.wires:
                await asyncio.sleep(0.001)

    live_through(story())


# --- silence ------------------------------------------------------------------------------


def test_a_sidecar_that_is_not_there_yet_is_met_when_it_comes(tmp_path):
    async def story():
        async with calling() as caller:
            caller.follow(tmp_path / "a")
            contact = await caller.until(lambda contact: contact.problem)
            assert "cannot connect to" in contact.problem
            assert "No such file" in contact.problem
            assert not contact.reachable
            async with contained(tmp_path / "a"):
                contact = await caller.until(lambda contact: contact.reachable)
                assert (contact.problem, contact.state.version) == ("", 1)
                caller.sidecars.forget(POD)

    live_through(story())


def test_a_wire_that_is_cut_is_silence_until_it_is_mended(tmp_path):
    async def story():
        async with (
            contained(tmp_path / "a") as container,
            Proxy(tmp_path / "p", tmp_path / "a") as proxy,
            calling() as caller,
        ):
            await caller.meet(proxy.path)
            before = caller.contact()
            proxy.upstream = tmp_path / "nowhere"
            proxy.cut()
            contact = await caller.until(is_lost)
            assert contact.since >= before.since
            assert contact.state == before.state
            # A target that is declared meanwhile arrives in the end.
            target = caller.run(3)
            while len(caller.counts.failures) < 5:
                await asyncio.sleep(0.001)
            assert caller.contact().unanswered == (target,)
            proxy.upstream = tmp_path / "a"
            contact = await caller.until(has_begun(3))
            assert contact.reachable
            assert contact.first_seen == before.first_seen
            assert container.supervisor.demanded == ["start 3"]

    live_through(story())


def test_a_connection_that_is_only_closed_is_no_silence(tmp_path):
    async def story():
        async with (
            contained(tmp_path / "a") as container,
            Proxy(tmp_path / "p", tmp_path / "a") as proxy,
            calling(PATIENT) as caller,
        ):
            await caller.meet(proxy.path)
            await container.polled()
            # As the SideCar does when its certificates were renewed.
            proxy.cut()
            container.agent.complain(Problem("Something", "is wrong"))
            await caller.until(lambda contact: contact.state.problems)
            assert caller.counts.failures == []

    live_through(story())


def test_a_wire_that_is_mended_is_noticed_though_nothing_is_new(tmp_path):
    async def story():
        async with (
            contained(tmp_path / "a") as container,
            Proxy(tmp_path / "p", tmp_path / "a") as proxy,
            calling(replace(HURRIED, wait_seconds=60.0)) as caller,
        ):
            before = await caller.meet(proxy.path)
            await container.polled()
            proxy.upstream = tmp_path / "nowhere"
            proxy.cut()
            await caller.until(is_lost)
            proxy.upstream = tmp_path / "a"
            contact = await caller.until(lambda contact: contact.reachable)
            assert contact.state.version == before.version

    live_through(story())


def test_an_answer_to_a_declaration_ends_the_pause_before_the_next_question(tmp_path):
    async def story():
        async with (
            contained(tmp_path / "a") as container,
            Proxy(tmp_path / "p", tmp_path / "a") as proxy,
            calling(PATIENT) as caller,
        ):
            await caller.meet(proxy.path)
            await container.polled()
            proxy.upstream = tmp_path / "nowhere"
            proxy.cut()
            await caller.until(is_lost)
            proxy.upstream = tmp_path / "a"
            caller.run(3)
            await caller.until(has_begun(3))
            container.agent.complain(Problem("Something", "is wrong"))
            await caller.until(lambda contact: contact.state.problems)

    live_through(story())


def test_who_accepts_and_never_answers_is_silent(tmp_path):
    async def story():
        hasty = replace(HURRIED, wait_seconds=0.2, silence_seconds=0.2)
        gate = asyncio.Event()
        async with (
            contained(tmp_path / "a"),
            Proxy(tmp_path / "p", tmp_path / "a") as proxy,
            calling(hasty) as caller,
        ):
            await caller.meet(proxy.path)
            proxy.fate_of = lambda _: Fate(answer_gate=gate)
            contact = await caller.until(is_lost)
            assert "no answer from" in contact.problem
            gate.set()
            contact = await caller.until(lambda contact: contact.reachable)
            assert contact.problem == ""

    live_through(story())


def test_the_pause_after_a_failure_grows_up_to_its_bound(tmp_path):
    async def story():
        slow = replace(HURRIED, shortest_pause_seconds=0.02, longest_pause_seconds=0.1)
        async with calling(slow, chance=lambda: 1.0) as caller:
            caller.follow(tmp_path / "missing")
            while len(caller.counts.failures) < 6:
                await asyncio.sleep(0.001)
        times = caller.counts.failures
        pauses = [later - earlier for earlier, later in pairwise(times)]
        for pause, least in zip(pauses, [0.02, 0.04, 0.08, 0.1, 0.1], strict=False):
            assert pause >= least

    live_through(story())


def test_hundreds_do_not_come_back_at_once():
    async def story():
        draws = iter([0.0, 0.25, 0.5, 0.999])
        async with calling(chance=lambda: next(draws)) as caller:
            caller.follow(Path("/no/socket/here"))
            follower = caller.sidecars._followers[POD]
            pauses = [follower._pause_after(10) for _ in range(4)]
        shortest, longest = HURRIED.shortest_pause_seconds, HURRIED.longest_pause_seconds
        assert pauses == sorted(pauses)
        assert pauses[0] == shortest
        assert longest * 0.99 < pauses[-1] < longest

    live_through(story())


# --- what it costs ------------------------------------------------------------------------


def test_a_sidecar_that_always_has_news_is_asked_only_so_often():
    allowance = Allowance(per_second=10.0, at_once=3)
    assert [allowance.take(100.0) for _ in range(5)] == pytest.approx([0, 0, 0, 0.1, 0.2])
    assert allowance.take(200.0) == 0.0
    waits = [allowance.take(200.0 + 0.05 * step) for step in range(100)]
    assert sum(wait == 0.0 for wait in waits) <= 3 + 0.05 * 100 * 10


def test_one_that_floods_with_changes_is_heard_at_a_bounded_rate(tmp_path):
    async def story():
        bounded = replace(HURRIED, changes_per_second=20.0, changes_at_once=3)
        async with contained(tmp_path / "a") as container, calling(bounded) as caller:
            loop = asyncio.get_running_loop()
            begin = loop.time()
            await caller.meet(tmp_path / "a")
            while loop.time() < begin + 1.0:
                # Another problem each time is more than progress.
                container.agent.complain(Problem(f"P{loop.time():.9f}".replace(".", "_"), "x"))
                container.agent.solve(next(iter(container.agent._own_problems)))
                await asyncio.sleep(0.001)
            material = sum(is_material for _, is_material in caller.heard)
            assert material <= 5 + 20.0 * (loop.time() - begin)

    live_through(story())


def test_one_that_says_much_is_asked_more_seldom(tmp_path):
    async def story():
        bounded = replace(HURRIED, bytes_per_second=20_000.0, bytes_at_once=20_000)
        async with contained(tmp_path / "a") as container, calling(bounded) as caller:
            loop = asyncio.get_running_loop()
            begin = loop.time()
            await caller.meet(tmp_path / "a")
            while loop.time() < begin + 1.0:
                container.agent.complain(Problem("Long", f"{loop.time()} {'x' * 1900}"))
                await asyncio.sleep(0.001)
            follower = caller.sidecars._followers[POD]
            assert follower._line.received <= 50_000 + 20_000 * (loop.time() - begin)

    live_through(story())


def test_news_without_end_is_asked_for_at_a_bounded_rate(tmp_path):
    async def story():
        bounded = replace(HURRIED, polls_per_second=50.0, polls_at_once=2)
        async with contained(tmp_path / "a") as container, calling(bounded) as caller:
            loop = asyncio.get_running_loop()
            begin = loop.time()
            await caller.meet(tmp_path / "a")
            number = 0
            while caller.counts.polls < 30:
                number += 1
                container.agent.complain(Problem(f"Number{number}", "is wrong"))
                container.agent.solve(f"Number{number - 1}")
                await asyncio.sleep(0.001)
            assert loop.time() - begin >= (caller.counts.polls - 2 - 1) / 50.0

    live_through(story())


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_many_questions_and_answers_leave_nothing_behind(tmp_path):
    async def story():
        async with (
            contained(tmp_path / "a") as container,
            Proxy(tmp_path / "p", tmp_path / "a") as proxy,
            calling() as caller,
        ):
            await caller.meet(proxy.path)
            caller.run(1)
            await caller.until(has_begun(1))
            await container.polled()
            before = (descriptors(), len(asyncio.all_tasks()))
            for number in range(2, 152):
                caller.stop(number)
                await caller.until(has_begun(number))
            await container.polled()
            assert caller.counts.polls > 100
            assert len(caller.counts.round_trips) == 151
            assert len(proxy.wires) == 2
            now = (descriptors(), len(asyncio.all_tasks()))
            assert now[0] <= before[0]
            assert now[1] <= before[1]

    live_through(story())


def test_who_is_forgotten_leaves_nothing_behind(tmp_path):
    async def story():
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

    live_through(story())


def test_nobody_is_told_anything_who_is_not_followed():
    async def story():
        async with calling() as caller:
            with pytest.raises(KeyError):
                caller.sidecars.declare(POD, Stop(1, 1, "first-start"))
            caller.sidecars.follow(POD, Address(socket="/no/socket/here"))
            caller.sidecars.declare(POD, Stop(1, 1, "first-start"))
            assert caller.contact().declared is None

    live_through(story())


# --- answers that are none ----------------------------------------------------------------

GARBAGE = {
    "no HTTP": (b"hello\r\n\r\n", "no answer from"),
    "another server": (
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\n<html>",
        "(status 404) does not follow the protocol",
    ),
    "no state": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        "incarnation: is missing",
    ),
    "an end too early": (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", "no answer from"),
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
def test_whoever_speaks_something_else_is_told_of_and_asked_again(tmp_path, name):
    answer, problem = GARBAGE[name]

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # The last question may be broken off.
            with contextlib.suppress(asyncio.IncompleteReadError, OSError):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(answer)
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        finally:
            writer.transport.abort()

    async def story():
        server = await asyncio.start_unix_server(speak, tmp_path / "a")
        async with server, calling() as caller:
            caller.follow(tmp_path / "a")
            contact = await caller.until(lambda contact: contact.problem)
            assert problem in contact.problem
            assert (contact.reachable, contact.state) == (False, None)
            while caller.counts.polls < 3:
                await asyncio.sleep(0.001)

    live_through(story())


def test_the_socket_of_the_training_is_not_that_of_the_controller(tmp_path):
    async def story():
        serving = Serving(inner_socket=str(tmp_path / "inner"))
        async with contained(tmp_path / "a", serving=serving), calling() as caller:
            caller.follow(tmp_path / "inner")
            contact = await caller.until(lambda contact: contact.problem)
            assert "NotFound" in contact.problem
            assert not contact.reachable
            await Client(socket=tmp_path / "a").get("/v1/state")

    live_through(story())
