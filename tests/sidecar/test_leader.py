"""
No container of a job ends before the leader has saved.

The other ranks may be needed for the checkpoint, and would end the leader with them. So they wait until
the controller hurries the stop, or for a limited time.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

import pytest

from dljob_wire.messages import Phase, Saving
from tests.sidecar.actors import Actors
from tests.sidecar.containers import Manner, run_of, stop_of, watched
from tests.sidecar.drivers import wait_until
from tests.sidecar.witnesses import find_relatives, find_trainings

pytestmark = pytest.mark.processes

SAVED = {
    "checkpoint.signal": "SIGUSR1",
    "checkpoint.confirm": "log",
    "checkpoint.confirmLog": "^saved",
    "checkpoint.timeoutSeconds": 600,
}


@contextmanager
def training_in_three(folder, token):
    """Start the job in three containers; it saves when the test says so."""
    manner = Manner(("hang", "obey"), SAVED)
    with watched(token), ExitStack() as stack:
        containers = []
        for node in range(3):
            containers.append(Actors(folder / str(node), f"{token}.{node}.", manner))
            stack.callback(containers[-1].close)
        term = containers[0].newer()
        for node, container in enumerate(containers):
            assert container.declare(run_of(term, processes=1, peers=3, node=node)) == 200
        for node, container in enumerate(containers):
            container.wait_for_phase(Phase.RUNNING)
            container.wait_journal(f"ready 1.{node}")
        yield containers
    wait_until(lambda: not find_relatives(token), what="the end of all processes")


@pytest.mark.story
def test_other_containers_train_until_the_leader_has_saved(tmp_path, token):
    def count_living():
        return [len(find_trainings(container.token)) for container in containers]

    with training_in_three(tmp_path, token) as containers:
        leader, *others = containers
        term = leader.newer()
        # The leader gets the target last.
        for container in reversed(containers):
            assert container.declare(stop_of(term)) == 200
            assert container.sidecar.state().phase is Phase.CHECKPOINTING
        leader.wait_journal("asked 1.0")
        assert count_living() == [1, 1, 1]
        leader.order(0, "say saved")
        assert leader.settle().change.saving is Saving.CONFIRMED
        assert count_living() == [0, 1, 1]
        for container in others:
            assert container.sidecar.state().phase is Phase.CHECKPOINTING
            assert container.declare(stop_of(term, checkpoint=False)) == 200
            last = container.wait_for_phase(Phase.STOPPED)
            assert (last.change.saving, last.problems) == (Saving.NONE, ())
            assert not [line for line in container.journal() if line.startswith("asked")]
        assert count_living() == [0, 0, 0]
