"""
Live changes with real processes: some join or leave, and the others go on.

The training is ``live_trainers.py``, which speaks the board without a framework; one test has the library.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dljob import training
from dljob_wire.messages import Live, Phase, Run, State
from tests.sidecar.drivers import HERE, read_proc, wait_until
from tests.sidecar.sidecars import SideCar, problem_names
from tests.sidecar.targets import live_run, run
from tests.sidecar.witnesses import find_held_gpus

pytestmark = pytest.mark.processes

OPTIONS = {
    "framework": "pytorch",
    "processes": "perGpu",
    "progress.log": r"step (?P<iteration>\d+)",
    "pollSeconds": 0.1,
}


class LiveJob:
    """A job that changes live, with its journal."""

    def __init__(self, sidecar: SideCar, folder: Path) -> None:
        self.sidecar, self.folder = sidecar, folder
        self.run = run(0)

    def start(self, processes: int) -> State:
        """Start it, and wait until all processes can change live."""
        self.declare(run(1, gpus=processes, processes=processes))
        return self.sidecar.wait_for(lambda s: s.live is not None and s.live.capable == processes)

    def declare(self, target: Run) -> None:
        self.run = replace(target, incarnation=self.sidecar.incarnation)
        answer = self.sidecar.declare(self.run)
        assert answer.status == 200, answer

    def change(self, *keep: int, joins: int = 0) -> State:
        self.declare_change(*keep, joins=joins)
        return self.wait_changed()

    def declare_change(self, *keep: int, joins: int = 0) -> None:
        self.declare(live_run(self.run, self.run.generation + 2, keep=keep, joins=joins))

    def wait_changed(self) -> State:
        """Wait until the job runs as declared, live or not."""
        generation = self.run.generation
        return self.sidecar.wait_for(
            lambda s: s.phase is Phase.RUNNING and s.held_generation == generation
        )

    def journal(self) -> list[str]:
        file = self.folder / "journal"
        return file.read_text().splitlines() if file.exists() else []

    def pids(self) -> list[int]:
        return [one.pid for one in self.sidecar.state().processes]

    def find(self, rank: int) -> int:
        """Return the process of the first start with this rank, as the machine numbers it."""
        entry = f"RANK={rank}".encode()
        pids = self.sidecar.trainings()
        return next(pid for pid in pids if entry in read_proc(pid, "environ").split(b"\0"))

    def count(self, words: str) -> int:
        return sum(line.startswith(words) for line in self.journal())

    def begun(self) -> int:
        """Return how many processes have begun in all."""
        return self.count("began")


@pytest.fixture
def live_job(
    start: Callable[..., SideCar], tmp_path: Path, token: str
) -> Iterator[Callable[..., LiveJob]]:
    jobs: list[LiveJob] = []

    def make(*manners: str, program: str = "live_trainers.py", **options: Any) -> LiveJob:
        command = (sys.executable, "-S", str(HERE / program), token, str(tmp_path), *manners)
        jobs.append(LiveJob(start(command=command, options={**OPTIONS, **options}), tmp_path))
        return jobs[-1]

    yield make
    for job in jobs:
        assert not [line for line in job.journal() if line.startswith("TWICE")]


def test_members_change_while_the_others_go_on(live_job):
    job = live_job()
    job.start(4)
    first = job.pids()
    state = job.change(0, 1)
    assert job.pids() == first[:2]
    assert (state.held, state.live.change.generation) == (("0", "1"), 3)
    assert find_held_gpus(job.folder) == ["gpu-0", "gpu-1"]
    assert state.change.live
    assert 0 < state.change.pause_seconds < 5
    state = job.change(0, 1, joins=2)
    assert job.pids()[:2] == first[:2]
    assert state.live.change.state_bytes == 1234
    # The first process leaves, so that another one is the first from now on.
    job.change(1, 2, 3)
    assert job.pids()[0] == first[1]
    state = job.change(2)
    assert [one.rank for one in state.processes] == [0]
    assert state.live.capable == 1
    assert job.begun() == 6, "nothing was restarted"
    progress = state.progress.iteration
    job.sidecar.wait_for(lambda s: s.progress.iteration > progress)


def test_trial_changes_nothing_but_is_reported(live_job):
    job = live_job()
    job.start(2)
    first = job.pids()
    job.declare(replace(job.run, live_trial=1))
    trial = job.sidecar.wait_for(lambda s: s.live.trial.succeeded is not None).live.trial
    assert (trial.number, trial.succeeded, trial.ended, trial.message) == (1, True, False, "")
    assert 0 < trial.seconds < 5
    job.change(1)
    assert job.pids() == first[1:]


def test_newer_change_withdraws_one_that_is_not_agreed(live_job):
    job = live_job("late")
    job.start(2)
    first, begun = job.pids(), job.run
    job.declare_change(0, 1, joins=1)
    job.sidecar.wait_phase(Phase.CHANGING)
    wait_until(lambda: job.begun() == 3, what="the process that joins")
    assert job.sidecar.state().held == ("0", "1", "2")
    job.declare(live_run(begun, 5, keep=(1,)))
    state = job.wait_changed()
    assert job.pids() == first[1:]
    assert (state.held, state.live.change.message) == (("1",), "")
    assert find_held_gpus(job.folder) == ["gpu-1"]


def test_stop_withdraws_the_change_first(live_job):
    job = live_job("late")
    job.start(2)
    job.declare_change(0, 1, joins=1)
    job.sidecar.wait_phase(Phase.CHANGING)
    job.sidecar.stop(5)
    state = job.sidecar.wait_phase(Phase.STOPPED)
    assert (state.released, job.sidecar.trainings()) == (True, [])


def restarted(job: LiveJob, why: str) -> State:
    """Wait until the job runs as declared, and assert that it fell back once and for this reason."""
    state, processes = job.wait_changed(), job.run.processes
    starts = f"began {job.run.generation} "
    wait_until(lambda: job.count(starts) >= processes, what="the restart")
    assert state.live is not None
    assert state.live.change is not None
    assert why in state.live.change.message
    assert state.live.change.generation == job.run.generation
    assert state.change is not None
    assert not state.change.live
    assert state.failure is None
    assert job.count(starts) == processes, "it is restarted once"
    return state


def test_killed_process_leads_to_one_restart(live_job):
    job = live_job("late")
    job.start(2)
    job.declare_change(0, 1, joins=1)
    job.sidecar.wait_phase(Phase.CHANGING)
    wait_until(lambda: job.begun() == 3, what="the process that joins")
    os.kill(job.find(1), signal.SIGKILL)
    restarted(job, "the process of rank 1 ended with signal 9")


@pytest.mark.parametrize(
    ("manner", "why"),
    [
        (
            "hang=1",
            "it took longer than liveSeconds (1 s); it waited for rank 0, 1 to pass the boundary",
        ),
        ("fail=1", "rank 1: RuntimeError: the group cannot be made"),
        ("crash", "rank 2, which joins, ended by exit code 3"),
    ],
)
def test_failure_leads_to_one_restart(live_job, manner, why):
    job = live_job(manner, liveSeconds=1.0)
    job.start(2)
    keep, joins = ((0, 1), 1) if manner == "crash" else ((0,), 0)
    job.declare_change(*keep, joins=joins)
    restarted(job, why)


def test_failure_before_the_boundary_costs_nothing_where_no_restart_may_follow(live_job):
    job = live_job("crash")
    job.start(2)
    first, begun = job.pids(), job.run
    larger = live_run(begun, 3, keep=(0, 1), joins=1)
    job.declare(replace(larger, live=Live(1, (0, 1, -1), only=True)))
    state = job.sidecar.wait_for(lambda s: s.live.change is not None and s.phase is Phase.RUNNING)
    assert "rank 2, which joins, ended" in state.live.change.message
    assert (job.pids(), state.held, state.live.present.generation) == (first, ("0", "1"), 1)
    # The same processes go on under a generation of their own, and can change again.
    job.declare(live_run(begun, 5, keep=(0, 1)))
    state = job.wait_changed()
    assert (job.pids(), state.live.change.message, state.live.present) == (first, "", None)
    job.change(1)
    assert job.pids() == first[1:]
    assert job.begun() == 3, "only the process that joined was new"


def test_processes_that_are_never_ready_are_given_up(live_job):
    job = live_job("late", liveSeconds=0.1)
    job.start(1)
    job.declare_change(0, joins=1)
    restarted(
        job, "the processes that join were not ready in 1 s; it waited for rank 1 to be ready"
    )


def test_process_that_left_and_stays_is_killed(live_job):
    job = live_job("stay", **{"checkpoint.graceSeconds": 0.2})
    job.start(2)
    first = job.pids()
    state = job.change(1)
    assert (job.pids(), state.held) == (first[1:], ("1",))
    assert find_held_gpus(job.folder) == ["gpu-1"]


def test_orphan_of_a_process_that_left_is_ended(live_job):
    job = live_job("child")
    job.start(2)
    assert len(job.sidecar.trainings()) == 4
    job.change(1)
    assert find_held_gpus(job.folder) == ["gpu-1"]
    assert len(job.sidecar.trainings()) == 2, "the child of the process that stays lives"


def test_memory_on_the_gpu_of_a_process_that_left_ends_the_change(live_job, driver):
    """A process that stays may have mapped the memory of its peer."""
    driver.count(2)
    job = live_job(liveSeconds=1.0)
    job.start(2)
    driver.hold(700)
    job.declare_change(1)
    state = job.sidecar.wait_phase(Phase.STOPPING)
    assert set(state.held) == {"0", "1"}
    job.sidecar.wait_for(lambda s: "GPUMemoryNotReleased" in problem_names(s))
    driver.hold(0)
    state = restarted(job, "holds 700 MiB more than before the start")
    assert state.held == ("1",)


def test_training_that_never_registers_is_restarted(live_job):
    job = live_job("never")
    job.declare(run(1, gpus=2, processes=2))
    job.sidecar.wait_running(1)
    wait_until(lambda: job.begun() == 2, what="the training")
    job.declare_change(0)
    state = job.wait_changed()
    wait_until(lambda: job.begun() == 3, what="the restart")
    assert (state.live.capable, state.live.change) == (0, None)


def test_killed_sidecar_ends_both_sides_of_a_change(live_job):
    job = live_job("late")
    job.start(2)
    job.declare_change(0, 1, joins=1)
    wait_until(lambda: job.begun() == 3, what="the process that joins")
    job.sidecar.kill()
    wait_until(lambda: not find_held_gpus(job.folder), what="the end of all processes")


@pytest.mark.skipif(not hasattr(training, "live"), reason="dljob.training has no live changes yet")
def test_library_of_the_training_goes_through_changes(live_job):
    job = live_job(program="live_counters.py")
    job.start(4)
    first = job.pids()
    job.declare(replace(job.run, live_trial=1))
    job.sidecar.wait_for(lambda s: s.live.trial.succeeded)
    job.change(0, 1)
    assert job.pids() == first[:2]
    job.change(0, 1, joins=2)
    # The first process leaves.
    job.change(1, 2, 3)
    job.change(0)
    assert job.pids() == [first[1]]
    assert job.begun() == 6, "nothing was restarted"
    ends = job.count(f"{first[1]} 0 of 1 step")
    wait_until(lambda: job.count(f"{first[1]} 0 of 1 step") > ends, what="another step")
    steps = [line.split() for line in job.journal() if " step " in line]
    for *_, step, _, total in steps:
        assert int(total) == int(step) * (int(step) + 1) // 2, "each step counts once"
