"""A controller and real SideCars with real training processes, which it stops and the test kills."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dljob_wire.messages import Phase
from tests.control.callers import calling, living
from tests.sidecar.drivers import is_alive, read_children, wait_until, witnessed
from tests.sidecar.sidecars import TRAINER, SideCar

pytestmark = pytest.mark.processes

Start = Callable[[], SideCar]


@pytest.fixture
def token() -> Iterator[str]:
    """A token in the command line of every process of this test; asserts that none survives."""
    with witnessed() as name:
        yield name


@pytest.fixture
def start(tmp_path: Path, token: str) -> Iterator[Start]:
    """Start SideCars at one socket, one after the other; close them after the test."""
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
    """Kill a SideCar and its keeper as a crash of the machine does; free the socket."""
    both = (*read_children(sidecar.process.pid), sidecar.process.pid)
    # Neither sees the other end, however long it takes to kill both.
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in both:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    sidecar.process.wait(timeout=240)
    wait_until(lambda: not any(map(is_alive, both)), what="the end of the SideCar")


@pytest.mark.story
@living
async def test_training_is_started_reshaped_and_stopped(start):
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


@living
async def test_killed_sidecar_returns_without_commands(start):
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
