"""
Right before a start the SideCar checks that its GPUs are the right ones, and empty.

Below it are stand-ins for NVML and CUDA. The latter knows by slot which program has taken memory, under
every numbering of the GPUs.
"""

import os
import signal
import subprocess

import pytest

from dljob_wire.messages import Phase
from tests.sidecar.drivers import LIMIT_SECONDS, read_proc, wait_until
from tests.sidecar.sidecars import problem_names
from tests.sidecar.standins import Witness, consume

pytestmark = pytest.mark.processes

POLL = {"pollSeconds": 0.1}
BY_INDEX = {**POLL, "gpuIds": "index"}
ENDS = (Phase.RUNNING, Phase.FAILED)
"""The possible phases after a start."""


def shown(driver, slot: int) -> str:
    """Return CUDA_VISIBLE_DEVICES of the program on a GPU."""
    [pid] = driver.users()[slot]
    words = read_proc(pid, "environ").split(b"\0")
    return next(w for w in words if w.startswith(b"CUDA_VISIBLE_DEVICES=")).decode().split("=")[1]


def wait_users(driver, slots: set[int]) -> dict[int, list[int]]:
    return wait_until(
        lambda: users if (users := driver.users()).keys() == slots else None,
        what=f"a program on {slots}, not on {driver.users()}",
    )


def test_uuid_finds_its_gpu_after_renumbering(start, driver, token):
    """A GPU dies between two starts, so that GPU 2 is GPU 1 for later programs."""
    driver.count(3)
    first = start(name="first", options=BY_INDEX, command=consume(700, token, "first"))
    first.train(1, "GPU-standin-2")
    assert wait_users(driver, {2})
    assert shown(driver, 2) == "2"
    driver.set("lost-1")
    driver.set("gone-1")
    first.wait_for(lambda s: "GPUsVanished" in problem_names(s))

    # A program that starts now takes another GPU for index 1.
    second = start(name="second", options=BY_INDEX, command=consume(700, token, "second"))
    second.run(1, "GPU-standin-1")
    state = second.wait_phase(Phase.FAILED)
    assert problem_names(state) == {"UnknownGPUs"}
    assert [gpu.uuid for gpu in state.gpus] == ["GPU-standin-0", "GPU-standin-2"]
    assert len(wait_users(driver, {2})[2]) == 1

    # A SideCar that starts now finds GPU 2 under its new index,
    first.stop(2)
    first.wait_for(lambda s: s.released)
    second.train(3, "GPU-standin-2")
    assert wait_users(driver, {2})
    assert shown(driver, 2) == "1"
    second.stop(4)
    second.wait_for(lambda s: s.released)

    # and one with the old numbering by its UUID, because CUDA's order is unknown.
    first.train(5, "GPU-standin-2")
    assert wait_users(driver, {2})
    assert shown(driver, 2) == "GPU-standin-2"
    first.train(6, "GPU-standin-0")
    wait_users(driver, {0})
    assert shown(driver, 0) == "0"


@pytest.mark.parametrize("named", ["1", "GPU-standin-1"])
def test_job_with_dead_gpu_does_not_start_on_another(start, driver, token, named):
    """CUDA renumbers the rest, so that index 1 would be GPU 2, where the neighbour trains."""
    driver.count(3)
    sidecars = {}
    soon = {"checkpoint.graceSeconds": 0.2, "killSeconds": 0.3, "releaseSeconds": 0.5}
    for name, gpu in (("neighbour", "2"), ("job", named)):
        command = consume(700, token, name)
        sidecars[name] = start(name=name, options={**BY_INDEX, **soon}, command=command)
        sidecars[name].train(1, gpu)
    users = wait_users(driver, {1, 2})
    driver.set("unknown-1")
    driver.set("gone-1")
    with Witness(driver) as witness:
        os.kill(users[1][0], signal.SIGKILL)
        # With releaseSeconds the release does not wait for the dead GPU for ever.
        sidecars["job"].wait_for(lambda s: s.released)
        sidecars["job"].run(2, named)
        state = sidecars["job"].wait_for(lambda s: s.held_generation == 2 and s.phase in ENDS)
        assert state.phase is Phase.FAILED
        assert "GPUsVanished" in problem_names(state)
    assert witness.shared == {}
    assert wait_users(driver, {2}) == {2: users[2]}


def test_unresolvable_uuid_fails_the_start(start, driver, token):
    driver.hang()
    sidecar = start(options=BY_INDEX)
    sidecar.run(1, "GPU-standin-1")
    state = sidecar.wait_phase(Phase.FAILED)
    problem = next(each for each in state.problems if each.name == "GPUsNotResolved")
    assert problem.message == "GPU GPU-standin-1 cannot be named by index: NVML does not answer"
    driver.answer()


@pytest.fixture
def stranger(driver, token):
    """Start a program of another owner on GPU 1, without a SideCar."""
    started = []

    def begin(mib: int = 300):
        given = {**os.environ, "CUDA_VISIBLE_DEVICES": "1"}
        command = consume(mib, token, "stranger")
        started.append(subprocess.Popen(command, env=given, stdout=subprocess.DEVNULL, text=True))
        wait_users(driver, {1})
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait(LIMIT_SECONDS)


def test_gpu_in_use_by_others_fails_the_start(start, driver, token, stranger):
    other = stranger()
    sidecar = start(options=POLL, command=consume(700, token, "job"))
    sidecar.run(1, "GPU-standin-0", "GPU-standin-1")
    state = sidecar.wait_phase(Phase.FAILED)
    [problem] = state.problems
    assert (problem.name, problem.gpus) == ("GPUNotEmpty", ("GPU-standin-1",))
    assert f"GPU 1 (GPU-standin-1): process {other.pid} (python" in problem.message
    assert [gpu.busy_unassigned for gpu in state.gpus] == [False, True]
    assert wait_users(driver, {1})[1] == [other.pid]
    # The job may train on the empty GPU, and on the other one when that is empty.
    sidecar.train(2, "GPU-standin-0")
    wait_users(driver, {0, 1})
    other.kill()
    other.wait(LIMIT_SECONDS)
    sidecar.wait_for(lambda s: not any(gpu.busy_unassigned for gpu in s.gpus))
    assert problem_names(sidecar.train(3, "GPU-standin-0", "GPU-standin-1")) == set()


PATIENT = """
import sys
from dljob_sidecar.__main__ import main
from dljob_sidecar.serving.admitting import Admission
Admission.patience_seconds = 60.0
sys.exit(main())
"""
"""A SideCar that waits long for the end of other programs on its GPUs."""


def test_ended_program_only_delays_a_start(start, driver, token, stranger):
    other = stranger()
    command = consume(700, token, "job")
    sidecar = start(options=POLL, command=command, program=("-c", PATIENT))
    state = sidecar.wait_for(lambda s: s.gpus and s.gpus[1].busy_unassigned)
    sidecar.run(1, "1")
    sidecar.wait_phase(Phase.STARTING)
    other.send_signal(signal.SIGKILL)
    other.wait(LIMIT_SECONDS)
    state = sidecar.wait_running(1)
    assert problem_names(state) == set()
