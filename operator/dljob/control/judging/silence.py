"""
How long a SideCar may be silent, and what follows when it is silent for longer.

While the kubelet still reports the pod as up, :mod:`dljob.control.acting.desired_pods` ends it, because its GPUs
stay occupied otherwise. When the platform has lost the pod as well, :mod:`dljob.control.judging.happenings`
plans the job without it: a new start waits until it is proven that no process is left there.

Many SideCars that fall silent together, on nodes that report as ready, show a fault on the controller's own side,
such as a network policy that cuts it off from all pods. Then their trainings are most probably healthy, and the
:class:`Breaker` of :mod:`dljob.control.observing` keeps the controller from ending them.
"""

import logging
import math
from dataclasses import replace

from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.ports import PodPhase
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import Booking
from dljob.core.model import JobId, NodeName

log = logging.getLogger(__name__)

RENEWAL_S = 300.0
"""The further time for a SideCar that only waits for its new certificate; a kubelet updates Secrets once a minute."""

AVOID_S = 300.0
"""How long a job avoids a node on which two of its pods in a row never answered."""

FEW = 2
SHARE = 0.2
"""This many silent SideCars, and this part of all, are still failures of their own, unless all are silent."""


def must_end(job_pod: JobPod, scene: Scene) -> bool:
    """Return True if a pod that is up has to end, because its SideCar was silent for too long."""
    patience = scene.lost_seconds + (RENEWAL_S if job_pod.contact.outdated else 0.0)
    return _is_silent(job_pod) and scene.now - scene.silent_since(job_pod) > patience


def is_lost(job_pod: JobPod, scene: Scene) -> bool:
    """Return True if neither the platform nor the SideCar has reported on a pod for too long."""
    since = scene.silent_since(job_pod)
    return job_pod.pod.phase is PodPhase.LOST and scene.now - since > scene.lost_seconds


def _is_silent(job_pod: JobPod) -> bool:
    return job_pod.pod.phase is PodPhase.UP and not job_pod.contact.reachable


class Breaker:
    """Lets the controller suspect itself when too many SideCars are silent; one for its life.

    It trips when the first pod would be ended for its silence, and not before: by then a node that has died
    reports no longer, so that its pods do not count, and SideCars whose silence is noticed some seconds later do.
    """

    def __init__(self) -> None:
        self._until = -math.inf
        self._is_tripped = False
        self.unheard: frozenset[JobId] = frozenset()
        """While it is tripped, the jobs with a silent SideCar."""

    def update(self, scene: Scene) -> Scene:
        """Return the scene with the time until which the controller suspected itself."""
        up = [
            job_pod
            for job_pods in scene.job_pods.values()
            for job_pod in job_pods.values()
            if job_pod.pod.phase is PodPhase.UP
            and job_pod.key.node in scene.nodes  # Ready; otherwise the node itself has a fault.
            and not (job_pod.untrusted or job_pod.is_leaving)
        ]
        # This controller or an earlier one has had an answer from these.
        met = [
            job_pod
            for job_pod in up
            if job_pod.state is not None
            or job_pod.booking.serial in scene.entries[job_pod.key.job].status.used
        ]
        silent = sum(map(_is_silent, met))
        are_too_many = silent > max(FEW, SHARE * len(met)) or 1 < silent == len(met)
        was_tripped = self._is_tripped
        self._is_tripped = are_too_many and (
            was_tripped or any(must_end(job_pod, scene) for job_pod in up)
        )
        if self._is_tripped != was_tripped:
            self._report(silent, len(met))
        if not self._is_tripped:
            self.unheard = frozenset()
            return replace(scene, suspected_until=self._until)
        self._until = scene.now
        self.unheard = frozenset(
            job_pod.key.job
            for job_pod in up
            if _is_silent(job_pod) and not scene.entries[job_pod.key.job].is_over
        )
        # A new pod on a node without a SideCar that answers might be as silent as the others.
        answering = {each.key.node for each in up if each.contact.reachable}
        unreached = frozenset(scene.nodes) - answering
        return replace(scene, suspected_until=scene.now, unreached=unreached)

    def _report(self, silent: int, met: int) -> None:
        if self._is_tripped:
            log.error(
                "%d of %d SideCars are silent at once, so the fault is probably in the network of this controller:"
                " it ends none of their pods, and decides only about the jobs that it reaches",
                silent,
                met,
            )
        else:
            log.warning("%d of %d SideCars answer: jobs are decided about again", met - silent, met)


class SilentPlaces:
    """The nodes on which pods of a job were ended one after the other for their silence; one for a controller's life.

    Another pod there would most probably be silent for the same reason.
    """

    def __init__(self) -> None:
        self._ends: dict[tuple[JobId, NodeName], dict[Booking, float]] = {}

    def update(self, scene: Scene) -> Scene:
        """Return the scene with the nodes that each job avoids."""
        for job_pods in scene.job_pods.values():
            for job_pod in job_pods.values():
                if job_pod.contact.reachable:
                    self._ends.pop(job_pod.key, None)
                elif must_end(job_pod, scene):
                    self._ends.setdefault(job_pod.key, {}).setdefault(job_pod.booking, scene.now)
        lately = scene.now - AVOID_S
        self._ends = {
            place: late
            for place, ends in self._ends.items()
            if (late := {pod: at for pod, at in ends.items() if at > lately - AVOID_S})
        }
        avoided: dict[JobId, frozenset[NodeName]] = {}
        for (job, node), ends in self._ends.items():
            if len(ends) > 1 and max(ends.values()) > lately:
                avoided[job] = avoided.get(job, frozenset()) | {node}
        return replace(scene, avoided=avoided) if avoided else scene
