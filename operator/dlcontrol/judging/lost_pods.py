"""
Why a job has lost a part of itself, according to its pods: one of them has ended, or the container
of one has restarted, so that the processes in the others would wait for ever.
"""

from collections.abc import Iterable
from typing import NamedTuple

from dlcontrol.situation.scene import Scene, Seat
from dlcore.model import Placement


class Loss(NamedTuple):
    """The reason of a loss, for people, and its consequences."""

    reason: str = "Restarted"
    what: str = "a container of it was restarted"
    fault: bool = False
    """Whether it is the job's own failure."""
    keeps: bool = True
    """Whether it can go on where it was."""


def explain_loss(
    scene: Scene, seats: Iterable[Seat], *, placement: Placement, generation: int
) -> Loss:
    """Say why the latest start of a job, of this generation (0: nothing is left of it), is not whole."""
    lost = [
        seat
        for seat in seats
        if seat.key.node in placement.nodes and _is_lost(seat, max(generation, 1))
    ]
    lost.sort(key=lambda seat: (not seat.pod.fault, not seat.has_ended, not seat.pod.reason))
    if not lost or not lost[0].pod.reason:
        return Loss(keeps=all(_may_return(scene, seat, placement=placement) for seat in lost))
    first = lost[0].pod
    # That a container failed is no news beside that it was started again.
    reason = first.reason if first.fault or lost[0].has_ended else Loss().reason
    return Loss(
        reason,
        first.message or f"its pod on {first.key.node} is gone ({first.reason})",
        fault=first.fault,
        keeps=all(_may_return(scene, seat, placement=placement) for seat in lost),
    )


def _is_lost(seat: Seat, generation: int) -> bool:
    """Whether the pod took part in the start and no longer does; a fresh pod has got no command."""
    return seat.has_ended or (not seat.fresh and seat.start < generation)


def _may_return(scene: Scene, seat: Seat, *, placement: Placement) -> bool:
    """Whether the job can have a new pod there at once."""
    if not seat.has_ended:
        return True
    node = scene.nodes.get(seat.key.node)
    if node is None or seat.pod.unwelcome:
        return False
    needed = {ref.number for ref in placement.refs() if ref.node == seat.key.node}
    return needed <= set(node.usable)
