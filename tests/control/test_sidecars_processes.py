"""A controller and real SideCars with real training processes, which are killed and stopped."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dlwire.messages import Phase, Run
from tests.control.callers import HURRIED, calling
from tests.sidecar.clients import live_through
from tests.sidecar.drivers import is_alive, wait_until, witnessed
from tests.sidecar.sidecars import TRAINER, SideCar, read_children

pytestmark = pytest.mark.processes

Start = Callable[[], SideCar]


@pytest.fixture
def token() -> Iterator[str]:
    """Name this test in the command line of every process of it, and see that none survives."""
    with witnessed() as name:
        yield name


@pytest.fixture
def start(tmp_path: Path, token: str) -> Iterator[Start]:
    """Start SideCars at one socket, one after the other; they are ended after the test."""
    started = []

    def begin() -> SideCar:
        command = (sys.executable, "-S", TRAINER, token)
        started.append(SideCar(tmp_path, token, *command))
        return started[-1]

    yield begin
    for sidecar in started:
        sidecar.close()


def is_running(generation: int):
    return lambda contact: (
        contact.state.phase is Phase.RUNNING and contact.state.held_generation == generation
    )


def kill_all(sidecar: SideCar) -> None:
    """End a SideCar and its keeper as if the machine had lost them; the socket is free when both have ended."""
    both = (*read_children(sidecar.process.pid), sidecar.process.pid)
    # Neither sees the other end, however long it takes to kill both.
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in both:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    sidecar.process.wait()
    wait_until(lambda: not any(map(is_alive, both)), what="the end of the SideCar")


def test_a_training_is_started_reshaped_and_stopped_as_declared(start):
    async def story():
        sidecar = start()
        async with calling() as caller:
            await caller.meet(sidecar.socket)
            caller.run(3, "0", "1")
            first = await caller.until(is_running(3))
            caller.run(5, "0", "1", "2", "3")
            second = await caller.until(is_running(5))
            assert second.state.held == ("0", "1", "2", "3")
            assert second.state.processes[0].pid != first.state.processes[0].pid
            caller.stop(6)
            contact = await caller.until(lambda contact: contact.state.released)
            assert contact.state.held == ()
            assert sidecar.trainings() == []
            caller.stop(7, leave=True)
            contact = await caller.until(lambda contact: not contact.reachable)
            assert contact.declared.leave

    live_through(story())


def test_a_sidecar_that_was_killed_comes_back_as_another_one_that_was_told_nothing(start):
    async def story():
        sidecar = start()
        async with calling() as caller:
            before = await caller.meet(sidecar.socket)
            caller.run(3, "0", "1")
            await caller.until(is_running(3))
            kill_all(sidecar)
            contact = await caller.until(lambda contact: not contact.reachable)
            # Its silence does not prove that its GPUs are free.
            assert contact.state.held == ("0", "1")
            run = caller.run(5, "2")
            assert contact.state.incarnation == run.incarnation
            assert caller.contact().unanswered == (run,)
            start()
            contact = await caller.until(lambda c: c.state.incarnation != before.incarnation)
            assert (contact.reachable, contact.state.released) == (True, True)
            assert (contact.declared, contact.unanswered) == (None, ())
            caller.run(7, "2")
            contact = await caller.until(is_running(7))
            assert contact.state.held == ("2",)

    live_through(story())


def test_a_sidecar_that_hangs_is_silent_and_does_what_it_was_told_when_it_goes_on(start):
    hasty = replace(HURRIED, wait_seconds=0.3, silence_seconds=0.3)

    async def story():
        sidecar = start()
        async with calling(hasty) as caller:
            await caller.meet(sidecar.socket)
            caller.run(3, "0")
            await caller.until(is_running(3))
            [pid] = read_children(sidecar.process.pid)
            os.kill(pid, signal.SIGSTOP)
            try:
                contact = await caller.until(lambda contact: not contact.reachable)
                assert "no answer" in contact.problem
                run = caller.run(5, "0", "1")
                assert isinstance(run, Run)
                told = len(caller.counts.failures)
                while len(caller.counts.failures) < told + 3:
                    await asyncio.sleep(0.01)
                caller.stop(6)
                # It lies in the socket, and is the first that it will read.
                assert caller.contact().unanswered == (run,)
            finally:
                os.kill(pid, signal.SIGCONT)
            contact = await caller.until(
                lambda contact: contact.state.generation == 6 and contact.state.released
            )
            assert contact.unanswered == ()
            await caller.until(lambda contact: contact.reachable)
            wait_until(lambda: not sidecar.trainings() or None, what="the end of the training")

    live_through(story())


def test_a_leader_that_was_replaced_moves_nothing_any_more(start):
    async def story():
        sidecar = start()
        async with calling(epoch=1) as former, calling(epoch=2) as present:
            await former.meet(sidecar.socket)
            await present.meet(sidecar.socket)
            former.run(3, "0", epoch=1)
            running = await present.until(is_running(3))
            # Stamped: the same run under another epoch, which no process notices.
            present.run(3, "0", epoch=2)
            await former.until(lambda contact: contact.doubt)
            former.stop(4, epoch=1)
            asked = former.counts.polls
            while former.counts.polls < asked + 3:
                await asyncio.sleep(0.01)
            assert former.contact().doubt
            contact = present.contact()
            assert contact.state.phase is Phase.RUNNING
            assert contact.state.processes == running.state.processes

    live_through(story())
