"""A real SideCar above a stand-in for NVML in C, with two GPUs that the test controls."""

import sys

import pytest

from dljob_wire.messages import Phase
from tests.sidecar.drivers import wait_until
from tests.sidecar.sidecars import TRAINER, problem_names

pytestmark = pytest.mark.processes

POLL = {"pollSeconds": 0.1}
SOON = {"checkpoint.graceSeconds": 0.2, "killSeconds": 0.3}


def test_unknown_gpus_fail_the_start(start, driver):
    sidecar = start(options=POLL)
    sidecar.run(1, "0", "7", "GPU-of-another-node")
    state = sidecar.wait_phase(Phase.FAILED)
    [problem] = state.problems
    assert problem.name == "UnknownGPUs"
    assert problem.message.endswith("7, GPU-of-another-node")
    assert "UnknownGPUs" in sidecar.read_log()
    assert sidecar.trainings() == []
    assert problem_names(sidecar.train(2, "0", "GPU-standin-1")) == set()


@pytest.mark.story
def test_release_waits_for_gpu_memory(start, driver):
    driver.hold(100)
    sidecar = start(options={**POLL, **SOON})
    sidecar.train(1, "0")
    driver.hold(5000)
    sidecar.run(2, "1")
    wait_until(lambda: sidecar.trainings() == [] or None, what="the end of the processes")
    # No process is left that SIGKILL could end.
    state = sidecar.wait_for(lambda s: problem_names(s) == {"GPUMemoryNotReleased"})
    assert "GPU-standin-0 holds 4900 MiB more" in state.problems[0].message
    assert (state.phase, state.held, state.released) == (Phase.STOPPING, ("0",), False)
    driver.hold(100)
    assert sidecar.wait_running(2).held == ("1",)


def test_shared_gpu_is_released_after_a_time(start, driver):
    # Long after the problem is reported, even if the SideCar stalls before.
    sidecar = start(options={**POLL, **SOON, "releaseSeconds": 6})
    sidecar.train(1, "0")
    driver.hold(5000)
    sidecar.run(2, "1")
    state = sidecar.wait_for(lambda s: "GPUReleasedInUse" in problem_names(s))
    (released,) = [each for each in state.problems if each.name == "GPUReleasedInUse"]
    assert "GPU-standin-0 holds 5000 MiB more" in released.message
    assert "releaseSeconds releases them after 6 s" in sidecar.read_log()
    assert sidecar.wait_running(2).held == ("1",)


def test_hanging_driver_delays_only_the_release(start, driver):
    sidecar = start(options={**POLL, **SOON})
    sidecar.train(1, "0")
    driver.hang()
    # Long polls still return.
    state = sidecar.wait_for(lambda s: "GPUsDoNotAnswer" in problem_names(s))
    assert state.phase is Phase.RUNNING
    assert "GPUsDoNotAnswer" in sidecar.read_log()
    sidecar.stop(2)
    state = sidecar.wait_for(lambda s: "GPUMemoryNotReleased" in problem_names(s))
    assert "ProcessesDoNotEnd" not in problem_names(state)
    assert not state.released
    assert sidecar.trainings() == []
    driver.answer()
    state = sidecar.wait_for(lambda s: s.released and not s.problems)
    assert state.phase is Phase.STOPPED


def test_spares_are_wanted_before_the_driver_answers(start, driver, token):
    """Otherwise the controller takes the pod for one without spares, and starts it cold."""
    driver.hang()
    command = (sys.executable, TRAINER, token)
    sidecar = start(
        command=command, options={**POLL, "preload": ["colorsys"], "processes": "perGpu"}
    )
    warmth = sidecar.wait_for(lambda s: s.warmth.ready).warmth
    assert (warmth.ready, warmth.wanted) == (1, 2)
    driver.answer()
    warmth = sidecar.wait_for(lambda s: s.warmth.ready == 2).warmth
    assert warmth.wanted == 2


def test_lost_gpu_is_reported_and_not_used(start, driver):
    sidecar = start(options=POLL)
    sidecar.train(1, "0")
    (driver.folder / "lost-1").touch()
    state = sidecar.wait_for(lambda s: "GPUsVanished" in problem_names(s))
    assert [gpu.lost_because for gpu in state.gpus] == ["", "NVML says that it is lost"]
    assert state.phase is Phase.RUNNING, "what does not use it goes on"
    sidecar.run(2, "1")
    state = sidecar.wait_phase(Phase.FAILED)
    assert [problem.name for problem in state.problems] == ["GPUsVanished"]
    (driver.folder / "lost-1").unlink()
    sidecar.wait_for(lambda s: s.gpus and not any(gpu.lost_because for gpu in s.gpus))
    assert problem_names(sidecar.train(3, "1")) == set()
