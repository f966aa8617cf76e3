"""
The checks of a SideCar right before a start: the GPUs are those that are meant, and empty.

Below it are stand-ins for NVML and CUDA, loaded as the real ones. The witness is the stand-in for CUDA:
it knows by slots which program has taken memory, under every numbering of the GPUs.
"""

import os
import signal
import subprocess

import pytest

from dljob_wire.messages import Phase, State
from tests.sidecar.drivers import LIMIT_SECONDS, read_proc, wait_until
from tests.sidecar.standins import Witness, consume

pytestmark = pytest.mark.processes

POLL = {"pollSeconds": 0.1}
BY_INDEX = {**POLL, "gpuIds": "index"}
ENDS = (Phase.RUNNING, Phase.FAILED)
"""The phases in which a start results."""


def is_running(generation: int):
    return lambda s: s.phase is Phase.RUNNING and s.held_generation == generation


def names(state: State) -> set[str]:
    return {problem.name for problem in state.problems}


def shown(driver, slot: int) -> str:
    """Return the names of the GPUs in the environment of the program on a GPU."""
    [pid] = driver.users()[slot]
    words = read_proc(pid, "environ").split(b"\0")
    return next(w for w in words if w.startswith(b"CUDA_VISIBLE_DEVICES=")).decode().split("=")[1]


def wait_users(driver, slots: set[int]) -> dict[int, list[int]]:
    return wait_until(
        lambda: users if (users := driver.users()).keys() == slots else None,
        what=f"a program on {slots}, not on {driver.users()}",
    )


# --- which GPUs -----------------------------------------------------------------------------


def test_a_uuid_finds_its_gpu_after_the_gpus_have_moved_up(start, driver, token):
    """A GPU dies between two starts: the next one is GPU 1 to all that begin after that."""
    driver.count(3)
    first = start(name="first", options=BY_INDEX, command=consume(700, token, "first"))
    first.wait_ready()
    first.run(1, "GPU-standin-2")
    first.wait_for(is_running(1))
    assert wait_users(driver, {2})
    assert shown(driver, 2) == "2"
    driver.set("lost-1")
    driver.set("gone-1")
    first.wait_for(lambda s: "GPUsVanished" in names(s))

    # A program that begins now takes another GPU for index 1, which was a fault while jobs got
    # indices.
    second = start(name="second", options=BY_INDEX, command=consume(700, token, "second"))
    second.wait_ready()
    second.run(1, "GPU-standin-1")
    state = second.wait_for(lambda s: s.phase is Phase.FAILED)
    assert names(state) == {"UnknownGPUs"}
    assert [gpu.uuid for gpu in state.gpus] == ["GPU-standin-0", "GPU-standin-2"]
    assert len(wait_users(driver, {2})[2]) == 1

    # The GPU that moved up is found under its new index by a SideCar that begins now,
    first.stop(2)
    first.wait_for(lambda s: s.released)
    second.run(3, "GPU-standin-2")
    second.wait_for(is_running(3))
    assert wait_users(driver, {2})
    assert shown(driver, 2) == "1"
    second.stop(4)
    second.wait_for(lambda s: s.released)

    # and by its UUID by one that still counts as before: the order in which CUDA counts is unknown.
    first.run(5, "GPU-standin-2")
    first.wait_for(is_running(5))
    assert wait_users(driver, {2})
    assert shown(driver, 2) == "GPU-standin-2"
    first.run(6, "GPU-standin-0")
    first.wait_for(is_running(6))
    wait_users(driver, {0})
    assert shown(driver, 0) == "0"


@pytest.mark.parametrize("told", ["1", "GPU-standin-1"])
def test_a_job_whose_gpu_has_died_starts_on_no_neighbours_gpu(start, driver, token, told):
    """CUDA counts what is left, so that index 1 of the next start was GPU 2, where the neighbour trains."""
    driver.count(3)
    sidecars = {}
    soon = {"checkpoint.graceSeconds": 0.2, "killSeconds": 0.3, "releaseSeconds": 0.5}
    for name, gpu in (("neighbour", "2"), ("job", told)):
        command = consume(700, token, name)
        sidecars[name] = start(name=name, options={**BY_INDEX, **soon}, command=command)
        sidecars[name].wait_ready()
        sidecars[name].run(1, gpu)
        sidecars[name].wait_for(is_running(1))
    users = wait_users(driver, {1, 2})
    driver.set("unknown-1")
    driver.set("gone-1")
    with Witness(driver) as witness:
        os.kill(users[1][0], signal.SIGKILL)
        # The machine is shared, so that the release does not wait for the dead GPU for ever.
        sidecars["job"].wait_for(lambda s: s.released)
        sidecars["job"].run(2, told)
        state = sidecars["job"].wait_for(lambda s: s.held_generation == 2 and s.phase in ENDS)
        assert state.phase is Phase.FAILED
        assert "GPUsVanished" in names(state)
    assert witness.shared == {}
    assert wait_users(driver, {2}) == {2: users[2]}


def test_a_uuid_that_cannot_be_made_an_index_starts_nothing(start, driver, token):
    driver.hang()
    sidecar = start(options=BY_INDEX)
    sidecar.wait_ready()
    sidecar.run(1, "GPU-standin-1")
    state = sidecar.wait_for(lambda s: s.phase is Phase.FAILED)
    problem = next(each for each in state.problems if each.name == "GPUsNotResolved")
    assert problem.message == "GPU GPU-standin-1 cannot be named by index: NVML does not answer"
    driver.answer()


# --- whether they are empty -----------------------------------------------------------------


@pytest.fixture
def stranger(driver, token):
    """Start a program of another owner on GPU 1, by CUDA and by no SideCar."""
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


def test_nothing_is_started_beside_a_program_of_somebody_else(start, driver, token, stranger):
    other = stranger()
    sidecar = start(options=POLL, command=consume(700, token, "job"))
    sidecar.wait_ready()
    sidecar.run(1, "GPU-standin-0", "GPU-standin-1")
    state = sidecar.wait_for(lambda s: s.phase is Phase.FAILED)
    [problem] = state.problems
    assert (problem.name, problem.gpus) == ("GPUNotEmpty", ("GPU-standin-1",))
    assert f"GPU 1 (GPU-standin-1): process {other.pid} (python" in problem.message
    assert [gpu.busy_unassigned for gpu in state.gpus] == [False, True]
    assert wait_users(driver, {1})[1] == [other.pid]
    # It trains on what is empty, and on the other one as soon as that is seen empty.
    sidecar.run(2, "GPU-standin-0")
    sidecar.wait_for(is_running(2))
    wait_users(driver, {0, 1})
    other.kill()
    other.wait(LIMIT_SECONDS)
    sidecar.wait_for(lambda s: not any(gpu.busy_unassigned for gpu in s.gpus))
    sidecar.run(3, "GPU-standin-0", "GPU-standin-1")
    assert names(sidecar.wait_for(is_running(3))) == set()


PATIENT = """
import sys
from dljob_sidecar.__main__ import main
from dljob_sidecar.serving.admitting import Admission
Admission.patience_seconds = 60.0
sys.exit(main())
"""
"""A SideCar that refuses no start before a slow machine has ended what is in its way."""


def test_an_echo_of_what_has_ended_only_delays_a_start(start, driver, token, stranger):
    other = stranger()
    command = consume(700, token, "job")
    sidecar = start(options=POLL, command=command, program=("-c", PATIENT))
    sidecar.wait_ready()
    state = sidecar.wait_for(lambda s: s.gpus and s.gpus[1].busy_unassigned)
    sidecar.run(1, "1")
    sidecar.wait_for(lambda s: s.phase is Phase.STARTING)
    other.send_signal(signal.SIGKILL)
    other.wait(LIMIT_SECONDS)
    state = sidecar.wait_for(is_running(1))
    assert names(state) == set()
