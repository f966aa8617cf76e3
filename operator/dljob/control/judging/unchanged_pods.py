"""Jobs whose pods are coming up, of which there may be thousands at once.

Until such a job changes or takes too long, no judgement or command is due. So the loop examines it
only then, and every few seconds in any case: periodic work (counting GPU time) may be late by that
much.
"""

from collections.abc import Iterator, Mapping
from operator import is_
from typing import Final, NamedTuple

from dljob.control.judging.progress import count_every
from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.ports import NODE_NOT_READY, UNSCHEDULABLE, Entry, Pod
from dljob.control.situation.rules import Rules
from dljob.control.situation.scene import Scene
from dljob.core.model import JobId, Mechanism

LONGEST_S: Final = 10.0
"""After this time the judge looks at a pod again even without news."""

NODES_REFUSE: Final = frozenset({UNSCHEDULABLE, NODE_NOT_READY})
"""Reasons why a pod cannot come up on its node, so that another node is tried soon."""


def is_coming_up(scene: Scene, entry: Entry) -> bool:
    """Return True if this controller requested all pods that the job needs, and none takes commands yet."""
    placement, job_pods = entry.status.placement, scene.pods_of(entry.job.id)
    if placement is None or scene.mechanism is not Mechanism.IN_PLACE:
        return False
    return len(job_pods) == len(placement.nodes) and all(
        node in job_pods and job_pods[node].is_coming_up for node in placement.nodes
    )


def patience_with(pod: Pod, rules: Rules) -> float:
    """How long a pod may take to come up."""
    if pod.reason in NODES_REFUSE:
        return rules.unscheduled_seconds
    return rules.stuck_seconds if pod.stuck else rules.initialize_seconds


def quiet_seconds(scene: Scene, rules: Rules) -> float:
    """How long a pod may be down without a known reason before DLJob reports it."""
    return rules.quiet_seconds * max(1.0, scene.starting / 100)


class _Known(NamedTuple):
    entry: Entry
    job_pods: tuple[JobPod, ...]
    forecast: float | None
    until: float
    quiet_since: float | None
    """When the pod was first down without a known reason; None once DLJob has reported that."""


class UnchangedPods:
    """The starting jobs without news; one for the life of a controller."""

    def __init__(self) -> None:
        self._known: dict[JobId, _Known] = {}

    def is_as_it_was(
        self, scene: Scene, entry: Entry, *, rules: Rules, forecast: float | None
    ) -> bool:
        """Return True if nothing of the job has changed and no deadline has passed."""
        known = self._known.get(entry.job.id)
        if known is None:
            return False
        is_early = scene.now < known.until
        if known.quiet_since is not None:
            is_early = is_early and scene.now < known.quiet_since + quiet_seconds(scene, rules)
        job_pods = scene.pods_of(entry.job.id)
        if (
            is_early
            and known.entry is entry
            and known.forecast == forecast
            and len(job_pods) == len(known.job_pods)
            and all(map(is_, job_pods.values(), known.job_pods))
        ):
            return True
        del self._known[entry.job.id]
        return False

    def note(self, scene: Scene, entry: Entry, *, rules: Rules, forecast: float | None) -> None:
        """Remember that the job has nothing to report."""
        if not is_coming_up(scene, entry):
            return
        job_pods = tuple(scene.pods_of(entry.job.id).values())
        since: float | None = entry.status.booked_at
        if scene.now >= entry.status.booked_at + quiet_seconds(scene, rules) or all(
            job_pod.pod.reason for job_pod in job_pods
        ):
            since = None  # Everything has been reported.
        dates = _dates(scene, entry, rules=rules, job_pods=job_pods)
        self._known[entry.job.id] = _Known(entry, job_pods, forecast, min(dates), since)

    def keep(self, entries: Mapping[JobId, Entry]) -> None:
        for gone in self._known.keys() - entries.keys():
            del self._known[gone]


def _dates(
    scene: Scene, entry: Entry, *, rules: Rules, job_pods: tuple[JobPod, ...]
) -> Iterator[float]:
    """Yield the times at which something may have to be reported although nothing has changed."""
    status, limit = entry.status, entry.job.limits.active_deadline_seconds
    yield scene.now + LONGEST_S
    yield max(status.counted_at, status.decided_at) + count_every(scene.holding)
    if limit is not None and status.started_at is not None:
        yield status.started_at + limit
    for job_pod in job_pods:
        yield status.booked_at + patience_with(job_pod.pod, rules)
