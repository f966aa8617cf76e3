"""
A job over several containers is saved by its leader: no other container ends before it has saved.

The ranks of the other containers may be needed for the checkpoint, and would take the leader down
with them. So they wait, until the controller says that the stop is to be hurried; and without that
order, not for ever.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from dlwire.messages import Phase, Saving
from tests.sidecar.containers import Manner, opened, run_of, stop_of, watched
from tests.sidecar.drivers import wait_until
from tests.sidecar.witnesses import find_relatives, find_trainings

pytestmark = pytest.mark.processes

SIGNAL = ("--checkpoint-signal", "SIGUSR1", "--checkpoint-confirm", "log")
SAVED = (*SIGNAL, "--checkpoint-log", "^saved")


@pytest.fixture
def begin(tmp_path, token):
    """Start the job in three containers; it saves itself when the test says so."""
    with watched(token), ExitStack() as stack:

        def start(*options):
            manner = Manner(("hang", "obey"), (*SAVED, *options))
            containers = [
                stack.enter_context(opened(tmp_path / str(node), f"{token}.{node}.", manner))
                for node in range(3)
            ]
            term = containers[0].newer()
            for node, container in enumerate(containers):
                run = run_of(term, processes=1, peers=3, node=node)
                assert container.declare(run) == 200
            for node, container in enumerate(containers):
                container.wait_for_phase(Phase.RUNNING)
                wait_written(container, f"ready 1.{node}")
            return containers

        yield start
    wait_until(lambda: not find_relatives(token), what="the end of all processes")


def stop_all(containers, **how):
    # The leader hears of it last, as it may.
    term = containers[0].newer()
    for container in reversed(containers):
        assert container.declare(stop_of(term, **how)) == 200
    return term


def find_phases(containers):
    return {container.sidecar.state().phase for container in containers}


def wait_written(container, line):
    wait_until(lambda: line in container.journal(), what=line)


def count_living(containers):
    return [len(find_trainings(container.token)) for container in containers]


def test_all_train_on_until_the_leader_has_saved(begin):
    containers = leader, *others = begin()
    term = stop_all(containers)
    assert find_phases(containers) == {Phase.CHECKPOINTING}
    wait_written(leader, "asked 1.0")
    assert count_living(containers) == [1, 1, 1]
    with (leader.folder / "orders-1.0").open("w") as orders:
        orders.write("say saved\n")
    assert leader.settle().change.saving is Saving.CONFIRMED
    assert count_living(containers) == [0, 1, 1]
    for container in others:
        assert container.sidecar.state().phase is Phase.CHECKPOINTING
        assert container.declare(stop_of(term, checkpoint=False)) == 200
        last = container.wait_for_phase(Phase.STOPPED)
        assert (last.change.saving, last.problems) == (Saving.NONE, ())
        assert not [line for line in container.journal() if line.startswith("asked")]
    assert count_living(containers) == [0, 0, 0]


def test_nobody_waits_for_ever_where_nobody_says_that_it_is_over(begin):
    containers = begin("--checkpoint-seconds", "0.3", "--grace-seconds", "0.2")
    stop_all(containers)
    savings = [container.wait_for_phase(Phase.STOPPED).change.saving for container in containers]
    assert savings == [Saving.TIMED_OUT, Saving.NONE, Saving.NONE]


def test_where_each_container_saves_itself_nobody_waits_for_the_leader(begin):
    containers = begin("--checkpoint-to", "all")
    stop_all(containers)
    assert find_phases(containers) == {Phase.CHECKPOINTING}
    for node, container in enumerate(containers):
        wait_written(container, f"asked 1.{node}")
        with (container.folder / f"orders-1.{node}").open("w") as orders:
            orders.write("say saved\n")
        assert container.settle().change.saving is Saving.CONFIRMED
