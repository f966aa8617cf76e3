"""The agent with events, actions and time, above fakes."""

import asyncio
import errno
import os
from types import SimpleNamespace
from typing import Any

from dljob_sidecar.agent import Agent, limits_of
from dljob_sidecar.behaviour.events import Gone, Interrupted, StartFailed
from dljob_sidecar.behaviour.machine import Limits
from dljob_sidecar.processes.supervising import Hooks, Processes
from dljob_sidecar.serving.admitting import Admitted
from dljob_sidecar.serving.serving import write_metrics
from dljob_wire import codec
from dljob_wire.checkpoints import Checkpoint
from dljob_wire.messages import Gpu, Phase, Post, Problem, Process, Refused, State
from dljob_wire.messages import Saving as Saved
from dljob_wire.training import Training
from tests.sidecar.clients import live_through, lived
from tests.sidecar.fakes import Container, FakeFacts, FakeSupervisor
from tests.sidecar.targets import INCARNATION, run, stop


@lived
async def test_timeout_is_an_event():
    below = FakeSupervisor()
    limits = Limits(saves=True, checkpoint_seconds=0, grace_seconds=0, kill_seconds=0.001)
    agent = Agent(incarnation=INCARNATION, limits=limits)
    agent.begin(below, FakeFacts())
    agent.declare(run(1))
    agent.happen(below.started())
    agent.declare(stop(2))
    while below.demanded.count("kill") < 3:
        await asyncio.sleep(0)
    assert below.demanded[:5] == ["start 1", "checkpoint", "terminate", "kill", "kill"]
    assert {problem.name for problem in agent.state().problems} == {
        "CheckpointTimedOut",
        "ProcessesDoNotEnd",
    }
    # The proof cancels the timer.
    agent.happen(below.gone())
    demanded = list(below.demanded)
    await asyncio.sleep(0.01)
    assert below.demanded == demanded


class BrokenSupervisor(FakeSupervisor):
    """Raises in each call, as on a machine without descriptors, until it is mended."""

    is_broken = True

    def _demand(self, what):
        self.demanded.append(what)
        if self.is_broken:
            raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))

    def start(self, run, attempt, *, joins=False):
        self.run, self.attempt = run, attempt
        self._demand("start")

    def terminate(self):
        self._demand("terminate")

    def kill(self):
        self._demand("kill")


@lived
async def test_failing_supervisor_is_retried_and_reported():
    below = BrokenSupervisor()
    agent = Agent(incarnation=INCARNATION, limits=Limits(grace_seconds=0, kill_seconds=0))
    agent.begin(below, FakeFacts())
    assert agent.declare(run(1)) is None
    while below.demanded.count("kill") < 3:
        await asyncio.sleep(0)
    assert below.demanded[:2] == ["start", "terminate"]
    assert "CannotStart" in {problem.name for problem in agent.state().problems}
    assert not agent.state().released
    below.is_broken = False
    agent.happen(below.gone())
    assert agent.state().phase is Phase.FAILED
    assert agent.declare(run(2)) is None
    assert agent.state().phase is Phase.STARTING


class LateAdmission:
    """Admits later, after the agent has carried out the start, as a thread that reads GPUs does."""

    gpu_thread = None

    def ask(self, _run, hear, *, is_wanted):
        asyncio.get_running_loop().call_soon(hear, Admitted())


def test_start_that_breaks_after_late_admission_fails(caplog):
    reported: list[Any] = []

    def lack_descriptors():
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def story():
        # Without processes the release is proven at once.
        nothing: Any = SimpleNamespace(collected=0, reap=lambda: None, members=list, kill=list)
        admission: Any = LateAdmission()
        processes = Processes(
            Training(command=("true",)),
            environment={},
            outputs=nothing,
            reaper=nothing,
            process_tree=nothing,
            spare_pool=nothing,
            admission=admission,
            hooks=Hooks(reported.append, lack_descriptors),
        )
        processes.start(run(1), 1)
        for _ in range(100):
            await asyncio.sleep(0)

    live_through(story())
    failed, gone = reported
    assert isinstance(failed, StartFailed)
    assert (failed.attempt, failed.problem.name) == (1, "CannotStart")
    assert "Too many open files" in failed.problem.message
    assert gone == Gone(1)


@lived
async def test_waiters_wake_on_a_change_only():
    agent = Container().agent
    version = agent.version
    waiting = [asyncio.ensure_future(agent.wait_for_change(version)) for _ in range(3)]
    await asyncio.sleep(0)
    assert agent.declare(stop(1)) is None
    await asyncio.gather(*waiting)
    version = agent.version
    assert agent.declare(stop(1)) is None
    assert agent.declare(stop(0)) is Refused.OLDER
    assert agent.version == version


@lived
async def test_any_state_survives_the_codec():
    container = Container()
    container.facts.given_processes = (
        Process(rank=0, pid=7, gpus=("0",), warm=True),
        Process(rank=1, pid=8, gpus=("GPU-1a",), exit_code=None, signal=9),
    )
    container.facts.given_gpus = (Gpu(index=0, uuid="GPU-1a", xid_errors=(79,)),)
    container.facts.given_problems = tuple(
        Problem(f"Problem{number}", "m" * 9999, "r" * 9999) for number in range(99)
    )
    container.agent.declare(run(1))
    container.agent.post(Post(iteration=5))
    state = container.agent.state()
    assert codec.decode(State, codec.encode(state)) == state
    assert state.progress.iteration == 5
    assert write_metrics(state).count("\ndljob_sidecar_problem{") == len(state.problems)


@lived
async def test_own_problem_is_shown_until_solved():
    agent = Container().agent
    agent.complain(Problem("CertificatesUnreadable", "they are half written"))
    version = agent.version
    agent.complain(Problem("CertificatesUnreadable", "they are half written"))
    assert agent.version == version
    assert [problem.name for problem in agent.state().problems] == ["CertificatesUnreadable"]
    agent.solve("CertificatesUnreadable")
    assert agent.state().problems == ()


@lived
async def test_interrupt_ends_the_container():
    for is_running in (False, True):
        container = Container(saves=False)
        agent, below = container.agent, container.supervisor
        if is_running:
            agent.declare(run(1, processes=1))
            agent.happen(below.started())
        agent.happen(Interrupted())
        assert agent.state().leaving
        assert agent.left.done() != is_running
        if is_running:
            agent.happen(below.ended(code=3))
            agent.happen(below.gone())
        assert await agent.left == (3 if is_running else 0)
        # Once more does no harm.
        agent.happen(Interrupted())


@lived
async def test_cost_of_a_change_is_measured():
    times = iter(range(0, 1000, 10))
    below = FakeSupervisor()
    agent = Agent(incarnation=INCARNATION, limits=Limits(saves=True), now=lambda: next(times))
    agent.begin(below, FakeFacts())
    agent.declare(run(1))
    agent.happen(below.started())
    first = agent.state().change
    assert first is not None
    assert (first.generation, first.start_seconds, first.stop_seconds) == (1, 10, 0)
    agent.declare(run(2))
    agent.happen(below.saved())
    agent.happen(below.gone())
    agent.happen(below.started())
    change = agent.state().change
    assert change is not None
    assert change.generation == 2
    assert change.saving is Saved.CONFIRMED
    seconds = (change.checkpoint_seconds, change.stop_seconds, change.start_seconds)
    assert seconds == (10, 10, 10)


def test_limits_follow_the_checkpoint_settings():
    training = Training(
        command=("true",), checkpoint=Checkpoint(signal="SIGUSR1", timeout_seconds=7)
    )
    assert limits_of(training) == Limits(saves=True, leader_saves=True, checkpoint_seconds=7)
    saving = Checkpoint(signal="SIGUSR1", to="all")
    assert limits_of(Training(command=("true",), checkpoint=saving)) == Limits(saves=True)
    assert not limits_of(Training(command=("true",))).saves
