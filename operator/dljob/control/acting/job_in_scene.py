"""One job in a scene: its pods, their readiness, and the jobs that wait for its GPUs."""

from functools import cached_property

from dljob.control.judging.checkpoints import counts
from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.ports import Entry, PodPhase
from dljob.control.situation.process_sets import find_members
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import Trust
from dljob.core.model import JobId, Mechanism, Placement

NAMES_S = 10.0
"""How long the controller waits for a new SideCar to report the UUIDs of its GPUs before it names
them by number.
"""


def is_ready(scene: Scene, job: JobId) -> bool:
    """Return True if all pods that the job needs are initialised and warm."""
    try:
        return JobInScene(scene, scene.entries[job]).is_ready
    except Exception:  # noqa: BLE001 - what fails here fails again, and is noted, in its own turn
        return False


class JobInScene:
    def __init__(self, scene: Scene, entry: Entry) -> None:
        self.scene = scene
        self.entry = entry
        self.status = entry.status
        self.job_pods = scene.pods_of(entry.job.id)
        there = [job_pod for job_pod in self.job_pods.values() if not job_pod.has_ended]
        self.present = [job_pod for job_pod in there if not job_pod.untrusted]
        self.untrusted = [job_pod for job_pod in there if job_pod.untrusted]
        self.in_place = scene.mechanism is Mechanism.IN_PLACE

    def is_awaited(self) -> bool:
        """Return True if the job may train on until the jobs that get its GPUs are ready."""
        may_save = self.status.saves and not self.is_broken
        is_wanted = not self.entry.is_wanted_gone and not self._was_told_to_stop
        return self.in_place and may_save and is_wanted

    @property
    def _was_told_to_stop(self) -> bool:
        """Return True if the end of the latest start has begun, which cannot be undone."""
        latest = max((job_pod.start for job_pod in self.present), default=0)
        return any(
            self.knows_of_the_stop(job_pod)
            for job_pod in self.present
            if 0 < latest == job_pod.start
        )

    def knows_of_the_stop(self, job_pod: JobPod) -> bool:
        return job_pod.told is not None and job_pod.told.generation >= self.status.stop_generation

    @property
    def is_broken(self) -> bool:
        return any(job_pod.is_living and self._has_lost_peers(job_pod) for job_pod in self.present)

    def _has_lost_peers(self, job_pod: JobPod) -> bool:
        # The SideCar may have begun a command on its way since its last report.
        return 0 < job_pod.start <= self.status.broken and not job_pod.contact.coming

    def runs(self, job_pod: JobPod) -> bool:
        return job_pod.has_begun(self.status.run_generation)

    def all_run(self, placement: Placement) -> bool:
        job_pods = (self.job_pods.get(node) for node in placement.nodes)
        return all(
            job_pod is not None and not job_pod.has_ended and self.runs(job_pod)
            for job_pod in job_pods
        )

    def is_useless(self, job_pod: JobPod, placement: Placement) -> bool:
        """Return True if the decision does not include this pod and the pod can end now."""
        if self._is_outdated(job_pod):
            return True
        if job_pod.key.node in placement.nodes:
            return False
        return not job_pod.is_living or self.all_run(placement)

    def _is_outdated(self, job_pod: JobPod) -> bool:
        """Return True if the pod was granted its devices before the last change of the job's GPUs."""
        return not self.in_place and job_pod.booking.shaped != self.status.shaped

    def may_stop(self, placement: Placement) -> bool:
        """Return True if the processes of an earlier generation can end now."""
        if not self.in_place or self._was_told_to_stop or self.is_broken:
            return True
        if self._claimants():
            return self.claimants_are_ready()
        return self.is_ready and self.gains_are_free(placement)

    @property
    def may_change_live(self) -> bool:
        """Return True if processes of the present start may stay, as far as the record says."""
        is_free = not self._was_told_to_stop and not self.is_broken and not self.status.gang
        return self.in_place and self.status.live is Trust.CONFIRMED and is_free

    def goes_back(self, placement: Placement) -> bool:
        """Return True if the processes that train keep just their GPUs, because a live change was given up."""
        has_begun = any(job_pod.run_before is not None for job_pod in self.present)
        members = find_members(self.scene, self.entry.job.id) if has_begun else None
        return members is not None and members.gpus == frozenset(placement.refs())

    @property
    def loses_work(self) -> bool:
        """Return True if no checkpoint has the work of the present start."""
        return not counts(self.entry.job, self.status, now=self.scene.now)

    def may_begin(self, placement: Placement) -> bool:
        """Return True if only the job's own processes prevent a new start."""
        return (
            self.is_ready and placement.gpus >= self.status.gang and self.gains_are_free(placement)
        )

    @cached_property
    def is_ready(self) -> bool:
        placement = self.status.placement
        if placement is None or self.scene.now < self.status.retry_at:
            return False
        is_lost = (each.is_living and each.pod.phase is PodPhase.LOST for each in self.present)
        if self.untrusted or any(is_lost):
            return False  # Nothing could prove that no other process of the job is left.
        return all(self._is_pod_ready(self.job_pods.get(node)) for node in placement.nodes)

    def _is_pod_ready(self, job_pod: JobPod | None) -> bool:
        if job_pod is None or job_pod.is_leaving or self._is_outdated(job_pod):
            return False
        is_there = job_pod.contact.reachable and job_pod.key.node in self.scene.nodes
        if not is_there or not job_pod.is_stamped(self.scene.epoch):
            return False
        if job_pod.is_living:
            return True
        if not job_pod.is_warm(self.scene.warm_seconds, self.scene.now):
            return False
        is_new = self.scene.now - job_pod.contact.first_seen < NAMES_S
        if self.entry.job.gpus.ids != "uuid" or job_pod.state is None or job_pod.state.gpus:
            return True
        # A new SideCar may still report the UUIDs of its GPUs.
        return not is_new or all(gpu.uuid for gpu in self.scene.nodes[job_pod.key.node].gpus)

    def gains_are_free(self, placement: Placement) -> bool:
        return all(self.scene.is_free_for(self.entry.job.id, ref) for ref in placement.refs())

    def _claimants(self) -> set[JobId]:
        """Return the jobs that get GPUs of this one."""
        job, placement = self.entry.job.id, self.status.placement
        given = self.scene.held_by(job).difference(
            placement.refs() if placement is not None else ()
        )
        claims = map(self.scene.claims.get, given)
        return {claimant for claimant in claims if claimant is not None and claimant != job}

    def claimants_are_ready(self) -> bool:
        return all(is_ready(self.scene, job) for job in self._claimants())

    def may_save(self, job_pod: JobPod) -> bool:
        wanted = self.status.saves and not self.entry.cancelled
        # Until the SideCar obeys only us, it may have begun a newer command of another controller.
        is_known = job_pod.is_stamped(self.scene.epoch)
        return wanted and not (is_known and self._has_lost_peers(job_pod))
