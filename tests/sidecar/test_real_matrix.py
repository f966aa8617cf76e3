"""
Every possible pair of phase and event, produced with real processes.

Each scene produces a few pairs on purpose. The exploration of the machine (``worlds.py``,
``matrices.py``) finds the possible pairs, and the reasons why the others are impossible. ``test_live.py``
has those of live changes.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from dljob_sidecar.behaviour.table import Trigger
from dljob_wire.messages import Phase, Refused
from tests.sidecar.actors import PRELOADED, Actors, Stage, stopped
from tests.sidecar.containers import Manner, run_of, stop_of, watched
from tests.sidecar.drivers import HERE, wait_until
from tests.sidecar.matrices import LIVE_PAIRS, POSSIBLE, name_refusal, read_pairs
from tests.sidecar.witnesses import find_relatives, find_trainings

pytestmark = pytest.mark.processes

SAVING = {
    "checkpoint.signal": "SIGUSR1",
    "checkpoint.confirm": "log",
    "checkpoint.confirmLog": "^saved$",
    "checkpoint.timeoutSeconds": 600,
}
SAVING_BY_ITS_END = {
    "checkpoint.signal": "SIGUSR1",
    "checkpoint.confirm": "exit",
    "checkpoint.timeoutSeconds": 600,
}
SAVING_SOON = {**SAVING, "checkpoint.timeoutSeconds": 0.1}
SAVING_UNREADY = {**SAVING, "checkpoint.timeoutSeconds": 1}
"""For a training without a handler, for which the SideCar waits almost that long."""
PATIENT = {"checkpoint.graceSeconds": 600}
HASTY = {"checkpoint.graceSeconds": 0.1, "killSeconds": 0.1}
LENIENT = (sys.executable, str(HERE / "lenient.py"))
"""Runs a SideCar that waits for stopped spares."""

AT_ONCE = 6
"""The number of concurrent scenes; they mostly wait."""
MOST_TRIES = 10
PTRACE_SEIZE = 0x4206
WALL = 0x40000000


def it_ends_in_every_way(stage: Stage) -> None:
    with stage.container(Manner(("obey",))) as container:
        container.address_another()
        container.stop()
        container.stop()
        container.declare_without_effect(Phase.STOPPED)
        container.run_and_wait(2)
        container.declare_without_effect(Phase.RUNNING)
        container.order(0, "exit 0")
        container.wait_heard(Phase.RUNNING, Trigger.RANK_ENDED)
        container.order(1, "exit 0")
        container.wait_for_phase(Phase.EXITED)
        container.declare_without_effect(Phase.EXITED)
        container.stop()
        container.run_and_wait(2)
        container.order(0, "exit 3")
        container.wait_for_phase(Phase.FAILED)
        container.declare_without_effect(Phase.FAILED)
        container.stop()
        container.run_and_wait()
        container.stop()
        container.wait_for_phase(Phase.STOPPED)
        container.stop(leave=True)
        assert container.sidecar.wait_ended() == 0


def it_leaves_at_once_or_after_an_end(stage: Stage) -> None:
    for manner, phase in (
        (Manner(), Phase.READY),
        (Manner(("quit=0",)), Phase.EXITED),
        (Manner(None), Phase.FAILED),
    ):
        with stage.container(manner) as container:
            if phase is not Phase.READY:
                container.run()
                container.wait_for_phase(phase)
            if phase is Phase.FAILED:
                container.stop(leave=True)
            else:
                container.sidecar.process.send_signal(signal.SIGTERM)
            assert container.sidecar.wait_ended() == 0


def it_is_asked_to_save_itself(stage: Stage) -> None:
    with stage.container(Manner(("obey", "hang"), SAVING)) as container:
        container.ask_to_save(3)
        container.declare_without_effect(Phase.CHECKPOINTING)
        container.run()
        container.order(2, "exit 0")
        container.wait_heard(Phase.CHECKPOINTING, Trigger.RANK_ENDED)
        container.order(0, "say saved")
        container.wait_heard(Phase.CHECKPOINTING, Trigger.SAVED)
        container.ask_to_save(2)
        container.order(1, "exit 3")
        container.wait_heard(Phase.CHECKPOINTING, Trigger.RANK_FAILED)
        container.ask_to_save(1)
        container.order(0, "exit 0")
        container.wait_heard(Phase.CHECKPOINTING, Trigger.ALL_ENDED)
        # The missing checkpoint is noticed after the end.
        container.wait_heard(Phase.STOPPING, Trigger.NOT_SAVED)
        container.ask_to_save(1)
        container.stop(checkpoint=False)
        container.wait_heard(Phase.CHECKPOINTING, Trigger.CHANGE_UNSAVED)


def it_leaves_while_it_saves(stage: Stage) -> None:
    for order, trigger in (
        ("say saved", Trigger.GONE_TO_LEAVE),
        ("exit 0", Trigger.GONE_WELL_TO_LEAVE),
    ):
        with stage.container(Manner(("obey", "hang"), SAVING)) as container:
            generation = container.run_and_wait()
            container.sidecar.process.send_signal(signal.SIGTERM)
            container.wait_journal(f"asked {generation}.0")
            assert container.declare(run_of(container.newer())) == 409
            container.order(0, order)
            container.sidecar.wait_ended()
            container.wait_heard(Phase.STOPPING, trigger)


def its_end_is_its_checkpoint(stage: Stage) -> None:
    with stage.container(Manner(("leave",), SAVING_BY_ITS_END)) as container:
        container.run_and_wait()
        container.run()
        container.wait_heard(Phase.STOPPING, Trigger.SAVED)


def it_tries_its_checkpoint_and_goes_on(stage: Stage) -> None:
    with stage.container(Manner(("obey", "hang"), SAVING)) as container:
        generation = container.run_and_wait()
        container.try_checkpoint()
        container.wait_journal(f"asked {generation}.0")
        container.order(0, "say saved")
        container.wait_heard(Phase.RUNNING, Trigger.SAVED)
        assert container.sidecar.state().phase is Phase.RUNNING
        container.stop(checkpoint=False)


def it_saves_itself_too_slowly_or_does_not_know_how(stage: Stage) -> None:
    for manner, options, trigger in (
        (("hang",), SAVING_SOON, Trigger.SAVING_TIMED_OUT),
        ((), SAVING_UNREADY, Trigger.NOT_SAVED),
    ):
        with stage.container(Manner(manner, options)) as container:
            container.run_and_wait()
            container.try_checkpoint()
            container.wait_heard(Phase.RUNNING, trigger)
            container.run()
            container.wait_heard(Phase.CHECKPOINTING, trigger)


def it_does_not_hear_sigterm(stage: Stage) -> None:
    with stage.container(Manner(("obey", "deaf"), {**SAVING_UNREADY, **PATIENT})) as container:
        container.run_and_wait(3)
        container.stop(checkpoint=False)
        container.declare_without_effect(Phase.STOPPING)
        container.stop(checkpoint=False)
        container.run()
        container.order(2, "exit 0")
        container.wait_heard(Phase.STOPPING, Trigger.RANK_ENDED)
        container.order(1, "exit 3")
        container.wait_heard(Phase.STOPPING, Trigger.RANK_FAILED)
        container.order(0, "exit 0")
        container.wait_heard(Phase.STOPPING, Trigger.ALL_ENDED)
        container.wait_journal(f"ready {container.term.generation}.0")
        container.sidecar.process.send_signal(signal.SIGTERM)
        # It has no handler for the signal that asks for a checkpoint.
        container.wait_for_phase(Phase.STOPPING)
        assert container.declare(run_of(container.newer())) == 409
        container.order(0, "exit 0")
        container.sidecar.wait_ended()


def it_does_not_even_go_away_after_sigkill(stage: Stage) -> None:
    with stage.container(Manner(("deaf",), HASTY)) as container:
        container.run_and_wait()
        (training,) = find_trainings(container.token)
        # A traced process stays until its tracer reads its end.
        why_not = trace(training)
        if why_not:
            stage.excused[Phase.STOPPING, Trigger.STILL_THERE.value] = (
                f"no process may trace: {why_not}"
            )
            return
        container.stop()
        container.wait_heard(Phase.STOPPING, Trigger.GRACE_OVER)
        container.wait_heard(Phase.STOPPING, Trigger.STILL_THERE)
        state = container.sidecar.state()
        assert not state.released
        assert [problem.name for problem in state.problems] == ["ProcessesDoNotEnd"]
        os.waitpid(training, WALL)
        assert container.wait_for_phase(Phase.STOPPED).problems == ()


def trace(pid: int) -> str:
    """Trace a process, or return the reason why it cannot be traced."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    done = libc.ptrace(PTRACE_SEIZE, pid, None, None) == 0
    return "" if done else os.strerror(ctypes.get_errno())


def it_becomes_warm_interpreters(stage: Stage) -> None:
    """Two ranks start, while one or both of their interpreters are stopped."""
    options = {**SAVING, **HASTY, "preload": [PRELOADED]}
    manner = Manner(("obey",), options, flags=("-s",), python=LENIENT)
    with stage.container(manner) as container:
        # From here on two spares are kept.
        container.run_and_wait(2)
        for scene in (
            a_start_is_taken_back,
            a_rank_ends_before_all_run,
            a_rank_fails_before_all_run,
        ):
            until_done(partial(scene, container))


def a_start_is_taken_back(container: Actors) -> bool:
    with stopped(container.spares(2)):
        container.run(2)
        container.declare_without_effect(Phase.STARTING)
        container.stop(checkpoint=False)
        container.settle()
    return has_heard(container, Phase.STARTING, Trigger.CHANGE_UNSAVED)


def a_rank_ends_before_all_run(container: Actors) -> bool:
    with stopped(container.spares(2)[1:]):
        container.run(2)
        container.wait_journal(f"ready {container.term.generation}.0")
        container.order(0, "exit 0")
        container.wait_heard(Phase.STARTING, Trigger.RANK_ENDED)
        container.run(2)
        container.settle()
    return has_heard(container, Phase.STARTING, Trigger.CHANGE)


def a_rank_fails_before_all_run(container: Actors) -> bool:
    with stopped(container.spares(2)[1:]):
        container.run(2)
        container.wait_journal(f"ready {container.term.generation}.0")
        container.order(0, "exit 3")
        container.wait_for_phase(Phase.FAILED)
    return has_heard(container, Phase.STARTING, Trigger.RANK_FAILED)


def a_start_is_overtaken(stage: Stage) -> None:
    for manner, trigger in ((Manner(), Trigger.STARTED), (Manner(None), Trigger.START_FAILED)):
        with stage.container(manner) as container:
            until_done(partial(overtake_a_start, container, trigger))


def overtake_a_start(container: Actors, trigger: Trigger) -> bool:
    # The kernel decides which of them the SideCar reads first.
    container.declare_at_once(run_of(container.newer()), stop_of(container.newer(2)))
    container.settle()
    return has_heard(container, Phase.STOPPING, trigger)


def something_is_declared_to_one_that_has_left(stage: Stage) -> None:
    for manner, phase in (
        (Manner(), Phase.STOPPED),
        (Manner(("quit=0",)), Phase.EXITED),
        (Manner(None), Phase.FAILED),
    ):
        until_done(partial(declare_to_one_that_left, stage, manner, phase))


def declare_to_one_that_left(stage: Stage, manner: Manner, phase: Phase) -> bool:
    with stage.container(manner) as container:
        if phase is Phase.STOPPED:
            container.stop()
        else:
            container.run()
        container.wait_for_phase(phase)
        leave, late = stop_of(container.newer(), leave=True), run_of(container.newer(2))
        if container.declare_at_once(leave, late) != [200, 409]:
            return False
        container.sidecar.wait_ended()
        return (phase, name_refusal(Refused.LEAVING)) in read_pairs(container.sidecar.read_log())


def has_heard(container: Actors, phase: Phase, trigger: Trigger) -> bool:
    return (phase, trigger.value) in read_pairs(container.sidecar.read_log())


def until_done(attempt: Callable[[], bool]) -> None:
    """Repeat an attempt that depends on timing; nearly always it takes one."""
    assert any(attempt() for _ in range(MOST_TRIES))


SCENES = (
    it_becomes_warm_interpreters,
    something_is_declared_to_one_that_has_left,
    it_is_asked_to_save_itself,
    it_ends_in_every_way,
    it_does_not_hear_sigterm,
    it_does_not_even_go_away_after_sigkill,
    a_start_is_overtaken,
    it_leaves_while_it_saves,
    it_leaves_at_once_or_after_an_end,
    its_end_is_its_checkpoint,
    it_saves_itself_too_slowly_or_does_not_know_how,
    it_tries_its_checkpoint_and_goes_on,
)
"""The longest first."""


def test_every_possible_event_happens_with_real_processes(tmp_path, token):
    stage = Stage(tmp_path, token)
    with watched(token), ThreadPoolExecutor(AT_ONCE) as pool:
        for scene in [pool.submit(scene, stage) for scene in SCENES]:
            scene.result(900)
    assert set(stage.heard) == POSSIBLE - LIVE_PAIRS - set(stage.excused)
    wait_until(lambda: not find_relatives(token), what="the end of all processes")
