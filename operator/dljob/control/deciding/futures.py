"""The scene with further jobs, and the expected starts of its jobs, for the API of a platform."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from dljob.control.situation.ports import Entry
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import Status
from dljob.core.contract import Policy
from dljob.core.foreseeing import Course, Turn, foresee, foresee_courses
from dljob.core.model import Job, JobId, Snapshot

LONGEST_S: Final = 2.0
"""The time limit of a forecast."""


def foresee_in_time(snapshot: Snapshot, policy: Policy) -> dict[JobId, Turn]:
    """Forecast starts for :data:`LONGEST_S` at most; the starts of later jobs stay unknown."""
    return foresee(snapshot, policy, is_late=_make_limit())


def foresee_courses_in_time(
    snapshot: Snapshot, policy: Policy, *, jobs: Sequence[JobId]
) -> dict[JobId, Course]:
    """Forecast starts and ends of these jobs for :data:`LONGEST_S` at most."""
    return foresee_courses(snapshot, policy, jobs=jobs, is_late=_make_limit())


def _make_limit() -> Callable[[], bool]:
    until = time.monotonic() + LONGEST_S
    return lambda: time.monotonic() > until


def joined(scene: Scene, jobs: Sequence[Job]) -> Scene:
    """Return the scene as if these jobs had just been submitted."""
    order = 1 + max((entry.order for entry in scene.entries.values()), default=-1)
    newcomers = {
        job.id: Entry(
            replace(job, submitted_at=scene.now), order + place, Status(submitted_at=scene.now)
        )
        for place, job in enumerate(jobs)
    }
    return replace(scene, entries={**scene.entries, **newcomers})
