"""
The pods of jobs as the platform, their SideCars and we ourselves know them, put together at each look.

A `JobPod` is the same object as long as all of it is the same: thousands are as they were, and what follows
from that is known already.
"""

from collections.abc import Mapping
from dataclasses import replace

from dlcontrol.acting.applying import Actor
from dlcontrol.judging.trust.distrusting import DistrustedPods
from dlcontrol.situation.ports import (
    Entry,
    Pod,
    PodKey,
    PodPhase,
)
from dlcontrol.situation.scene import JobPod
from dlcontrol.situation.status import Booking
from dlcore.model import JobId, NodeName

Pods = Mapping[PodKey, Pod]
PodsByJob = Mapping[JobId, Mapping[NodeName, JobPod]]


class JobPods:
    """Remembers the pods of the last cycle; one for the life of a controller."""

    def __init__(self, actor: Actor, distrusted: DistrustedPods) -> None:
        self._actor = actor
        self._distrusted = distrusted
        self._job_pods: PodsByJob = {}
        self.changed: list[JobPod] = []
        """Those that are not as they were at the look before."""

    def update(self, entries: Mapping[JobId, Entry], pods: Pods) -> PodsByJob:
        """Say of each booking what is known."""
        self.changed = []
        self._job_pods = {
            job: {
                booking.node: self._job_pod(PodKey(job, booking.node), booking, pods=pods)
                for booking in entry.status.pods
            }
            for job, entry in entries.items()
            if entry.status.pods
        }
        return self._job_pods

    def _job_pod(self, key: PodKey, booking: Booking, *, pods: Pods) -> JobPod:
        pod = pods.get(key) or Pod(key, PodPhase.LOST, reason="NotObserved")
        contact = self._actor.contact(key)
        refusal = self._actor.refusal(key.job, booking)
        if refusal and pod.phase is PodPhase.PENDING:
            # A pod that a quota or an admission rule refuses waits until a person acts.
            pod = replace(pod, reason="NotTaken", message=refusal, stuck=True)
        contradiction = self._distrusted.find(key.job, booking, pod)
        untrusted = contradiction.sentence if contradiction is not None else ""
        asked = self._actor.has_asked(key.job, booking)
        fresh = self._actor.is_fresh(key.job, booking)
        job_pod = self._job_pods.get(key.job, {}).get(key.node)
        if (
            job_pod is not None
            and (job_pod.pod is pod and job_pod.contact is contact)
            and (job_pod.booking, job_pod.asked, job_pod.fresh) == (booking, asked, fresh)
            and job_pod.untrusted == untrusted
        ):
            return job_pod
        made = JobPod(
            key,
            booking,
            pod,
            contact,
            asked=asked,
            fresh=fresh,
            untrusted=untrusted,
            claimed=contradiction.claimed if contradiction is not None else frozenset(),
        )
        self.changed.append(made)
        return made
