"""
Where pods are recreated, a container has its GPUs until it is gone, even if no process runs in it.
"""

from dataclasses import replace

import pytest

from dlcontrol.acting.commands import Book
from dlcontrol.acting.coordinating import next_commands
from dlcontrol.situation.ports import (
    Entry,
    Pod,
    PodKey,
    PodPhase,
)
from dlcontrol.situation.scene import Contact, Scene, Seat
from dlcontrol.situation.status import Booking, Status
from dlcore.model import JobId, Mechanism, Node, NodeName, Phase, Placement
from dlwire.messages import Phase as SideCarPhase
from dlwire.messages import State, Stop
from tests.builders import make_job

NODE = NodeName("node")
OLD, NEW = JobId("old"), JobId("new")
HERE = Placement.of({NODE: (0, 1)})
BOOKING = Booking(NODE, 1)


def one_done_and_one_to_begin(mechanism: Mechanism, phase: PodPhase) -> Scene:
    """A job has released its GPUs and its pod is in this phase; they are decided for another."""
    over = Status(generation=1, placement=HERE, pods=(BOOKING,)).decided(None, now=1.0)
    over = replace(over, phase=Phase.COMPLETED)
    begins = Status(generation=1, placement=HERE, phase=Phase.INITIALIZED)
    told = Stop(1, 4, "incarnation", leave=True)
    state = State(
        "incarnation",
        1,
        SideCarPhase.EXITED,
        released=True,
        epoch=1,
        generation=4,
        target=told,
        held_generation=3,
        leaving=True,
    )
    key = PodKey(OLD, NODE)
    seat = Seat(key, BOOKING, Pod(key, phase), Contact(state, reachable=True), asked=True)
    return Scene(
        now=2.0,
        epoch=1,
        entries={
            OLD: Entry(make_job(OLD, options=(2,)), 0, over),
            NEW: Entry(make_job(NEW, options=(2,)), 1, begins),
        },
        seats={OLD: {NODE: seat}},
        nodes={NODE: Node.of(NODE, 2)},
        mechanism=mechanism,
    )


@pytest.mark.parametrize(
    ("mechanism", "phase", "booked"),
    [
        (Mechanism.RECREATE, PodPhase.UP, False),
        (Mechanism.RECREATE, PodPhase.LOST, False),
        (Mechanism.RECREATE, PodPhase.ENDED, True),
        (Mechanism.IN_PLACE, PodPhase.UP, True),
    ],
)
def test_a_pod_is_asked_for_when_no_container_has_its_gpus(mechanism, phase, booked):
    commands = next_commands(one_done_and_one_to_begin(mechanism, phase))
    assert (Book(NEW, (NODE,)) in commands) is booked
