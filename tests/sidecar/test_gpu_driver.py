"""
NVML below a real SideCar: a library of two GPUs that say what a test wants, loaded as the real one.

It is C, compiled here, so that everything on the way to it is what it is in production.
"""

import sys

import pytest

from dljob_wire.messages import Phase, State
from tests.sidecar.drivers import wait_until
from tests.sidecar.sidecars import TRAINER

pytestmark = pytest.mark.processes

POLL = {"pollSeconds": 0.1}
SOON = {"checkpoint.graceSeconds": 0.2, "killSeconds": 0.3}


def names(state: State) -> set[str]:
    return {problem.name for problem in state.problems}


def is_running(generation: int):
    return lambda s: s.phase is Phase.RUNNING and s.held_generation == generation


def test_gpus_that_the_machine_does_not_have_are_named_and_the_next_start_is_well(start, driver):
    sidecar = start(options=POLL)
    sidecar.wait_ready()
    sidecar.run(1, "0", "7", "GPU-of-another-node")
    state = sidecar.wait_for(lambda s: s.phase is Phase.FAILED)
    [problem] = state.problems
    assert problem.name == "UnknownGPUs"
    assert problem.message.endswith("7, GPU-of-another-node")
    assert "UnknownGPUs" in sidecar.told()
    assert sidecar.trainings() == []
    sidecar.run(2, "0", "GPU-standin-1")
    assert names(sidecar.wait_for(is_running(2))) == set()


@pytest.mark.story
def test_nothing_is_released_before_the_memory_of_the_gpu_is(start, driver):
    driver.hold(100)
    sidecar = start(options={**POLL, **SOON})
    sidecar.wait_ready()
    sidecar.run(1, "0")
    sidecar.wait_for(is_running(1))
    driver.hold(5000)
    sidecar.run(2, "1")
    wait_until(lambda: sidecar.trainings() == [] or None, what="the end of the processes")
    # SIGKILL and the steps after it do not help: no process is left to be killed.
    state = sidecar.wait_for(lambda s: names(s) == {"GPUMemoryNotReleased"})
    assert "GPU-standin-0 holds 4900 MiB more" in state.problems[0].message
    assert (state.phase, state.held, state.released) == (Phase.STOPPING, ("0",), False)
    driver.hold(100)
    assert sidecar.wait_for(is_running(2)).held == ("1",)


def test_on_a_shared_machine_memory_that_no_process_is_known_for_keeps_no_gpu_for_ever(
    start, driver
):
    # Long after it is said that the memory keeps them, also where the SideCar stands still before.
    sidecar = start(options={**POLL, **SOON, "releaseSeconds": 6})
    sidecar.wait_ready()
    sidecar.run(1, "0")
    sidecar.wait_for(is_running(1))
    driver.hold(5000)
    sidecar.run(2, "1")
    state = sidecar.wait_for(lambda s: "GPUReleasedInUse" in names(s))
    (released,) = [each for each in state.problems if each.name == "GPUReleasedInUse"]
    assert "GPU-standin-0 holds 5000 MiB more" in released.message
    assert "releaseSeconds releases them after 6 s" in sidecar.told()
    assert sidecar.wait_for(is_running(2)).held == ("1",)


def test_a_driver_that_hangs_holds_nobody_up_but_the_release(start, driver):
    sidecar = start(options={**POLL, **SOON})
    sidecar.wait_ready()
    sidecar.run(1, "0")
    sidecar.wait_for(is_running(1))
    driver.hang()
    # Long polls are answered, which is how this is heard of.
    state = sidecar.wait_for(lambda s: "GPUsDoNotAnswer" in names(s))
    assert state.phase is Phase.RUNNING
    assert "GPUsDoNotAnswer" in sidecar.told()
    sidecar.stop(2)
    state = sidecar.wait_for(lambda s: "GPUMemoryNotReleased" in names(s))
    assert "ProcessesDoNotEnd" not in names(state)
    assert not state.released
    assert sidecar.trainings() == []
    driver.answer()
    state = sidecar.wait_for(lambda s: s.released and not s.problems)
    assert state.phase is Phase.STOPPED


def test_spares_are_awaited_before_the_driver_has_said_how_many_there_can_be(start, driver, token):
    """A controller that hears of no spares takes the pod for one without them, and starts it cold."""
    driver.hang()
    command = (sys.executable, TRAINER, token)
    sidecar = start(
        command=command, options={**POLL, "preload": ["colorsys"], "processes": "perGpu"}
    )
    sidecar.wait_ready()
    warmth = sidecar.wait_for(lambda s: s.warmth.ready).warmth
    assert (warmth.ready, warmth.wanted) == (1, 2)
    driver.answer()
    warmth = sidecar.wait_for(lambda s: s.warmth.ready == 2).warmth
    assert warmth.wanted == 2


def test_a_gpu_that_is_lost_is_told_as_such_and_nothing_is_started_on_it(start, driver):
    sidecar = start(options=POLL)
    sidecar.wait_ready()
    sidecar.run(1, "0")
    sidecar.wait_for(is_running(1))
    (driver.folder / "lost-1").touch()
    state = sidecar.wait_for(lambda s: "GPUsVanished" in names(s))
    assert [gpu.lost_because for gpu in state.gpus] == ["", "NVML says that it is lost"]
    assert state.phase is Phase.RUNNING, "what does not use it goes on"
    sidecar.run(2, "1")
    state = sidecar.wait_for(lambda s: s.phase is Phase.FAILED)
    assert [problem.name for problem in state.problems] == ["GPUsVanished"]
    (driver.folder / "lost-1").unlink()
    sidecar.wait_for(lambda s: s.gpus and not any(gpu.lost_because for gpu in s.gpus))
    sidecar.run(3, "1")
    assert names(sidecar.wait_for(is_running(3))) == set()
