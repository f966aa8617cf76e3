"""Measures how long pods take to start and to end; only scenes show that, not SideCars' reports.

A start lasts from the request for the pod until its SideCar answers and is warm. An end lasts from
the time when the pod has released everything under its command to leave until the end is proven.
Only pods that this controller has seen from the beginning count.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from dlcontrol.situation.job_pods import JobPod
from dlcontrol.situation.scene import Scene
from dlcontrol.situation.status import Booking
from dlcore.model import JobId
from dlcore.profiles import CostSeen, CostTerm, JobType


@dataclass(slots=True)
class _Life:
    """The state kept about a pod between two scenes."""

    asked_at: float | None
    """None if the pod existed before this controller, and once it is ready."""
    left_at: float | None = None


class PodTimes:
    """Measures the times of pods; one for the life of a controller."""

    def __init__(self) -> None:
        self._lives: dict[tuple[JobId, Booking], _Life] = {}

    def update(self, scene: Scene) -> Iterator[tuple[JobType, CostSeen]]:
        """Yield the observations about types of jobs from the present pods."""
        lives: dict[tuple[JobId, Booking], _Life] = {}
        for job, entry in scene.entries.items():
            placement = entry.status.placement
            gpus = placement.gpus if placement is not None else 0
            for job_pod in scene.pods_of(job).values():
                name = job, job_pod.booking
                known = self._lives.get(name)
                life = lives[name] = known or _Life(
                    entry.status.booked_at if job_pod.fresh else None
                )
                for term, seconds in _look_at(scene, job_pod, life=life):
                    yield entry.job.type, CostSeen(term, seconds, gpus)
        self._lives = lives


def _look_at(scene: Scene, job_pod: JobPod, *, life: _Life) -> Iterator[tuple[CostTerm, float]]:
    if life.asked_at is not None and _is_ready(scene, job_pod):
        yield CostTerm.POD_INITIALIZATION, scene.now - life.asked_at
        life.asked_at = None
    if job_pod.has_ended:
        if life.left_at is not None:
            yield CostTerm.POD_TERMINATION, scene.now - life.left_at
            life.left_at = None
    elif life.left_at is None and job_pod.is_leaving and not job_pod.is_living:
        life.left_at = scene.now


def _is_ready(scene: Scene, job_pod: JobPod) -> bool:
    if job_pod.has_ended or not job_pod.contact.reachable:
        return False
    return job_pod.is_living or job_pod.is_warm(scene.warm_seconds, scene.now)
