"""
Measures how long pods take to start and to end; only scenes show that, not the reports of SideCars.

A start lasts from the request for the pod until its SideCar answers and is warm; an end
lasts from the time when the pod has its command to leave and has released everything until its end is proven. Only
pods that this controller has seen from the beginning count.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from dlcontrol.situation.scene import Scene, Seat
from dlcontrol.situation.status import Booking
from dlcore.model import JobId
from dlcore.profiles import CostSeen, CostTerm, JobType


@dataclass(slots=True)
class _Life:
    """The memory about a pod from one scene to the next."""

    asked_at: float | None
    """Unknown where it was there before us, and once it is ready."""
    left_at: float | None = None


class PodLessons:
    """One for the life of a controller."""

    def __init__(self) -> None:
        self._lives: dict[tuple[JobId, Booking], _Life] = {}

    def look(self, scene: Scene) -> Iterator[tuple[JobType, CostSeen]]:
        """Say what is to be learnt about types of jobs from how the pods are now."""
        lives: dict[tuple[JobId, Booking], _Life] = {}
        for job, entry in scene.entries.items():
            placement = entry.status.placement
            gpus = placement.gpus if placement is not None else 0
            for seat in scene.seats_of(job).values():
                name = job, seat.booking
                known = self._lives.get(name)
                life = lives[name] = known or _Life(entry.status.booked_at if seat.fresh else None)
                for term, seconds in _look_at(scene, seat, life=life):
                    yield entry.job.type, CostSeen(term, seconds, gpus)
        self._lives = lives


def _look_at(scene: Scene, seat: Seat, *, life: _Life) -> Iterator[tuple[CostTerm, float]]:
    if life.asked_at is not None and _is_ready(scene, seat):
        yield CostTerm.POD_INITIALIZATION, scene.now - life.asked_at
        life.asked_at = None
    if seat.has_ended:
        if life.left_at is not None:
            yield CostTerm.POD_TERMINATION, scene.now - life.left_at
            life.left_at = None
    elif life.left_at is None and seat.is_leaving and not seat.is_living:
        life.left_at = scene.now


def _is_ready(scene: Scene, seat: Seat) -> bool:
    if seat.has_ended or not seat.contact.reachable:
        return False
    return seat.is_living or seat.is_warm(scene.warm_seconds, scene.now)
