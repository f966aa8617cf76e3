"""
Everything that is known at one instant: what the platform shows, what SideCars say, and which GPUs are out.

Called by :mod:`dlcontrol.loop` at the beginning of each cycle.
"""

from collections.abc import Callable, Mapping

from dlcontrol.acting.applying import Actor
from dlcontrol.acting.job_pods import JobPods
from dlcontrol.acting.recording import Records
from dlcontrol.gpus.faults import GpuFaults
from dlcontrol.gpus.occupancy import Occupancy
from dlcontrol.gpus.uuids import GpuUuids
from dlcontrol.gpus.visibility import MissingGpus
from dlcontrol.judging.trust.distrusting import DistrustedPods
from dlcontrol.scheduling import Options
from dlcontrol.situation.ports import Entry, Observation, Platform, Pod, PodKey
from dlcontrol.situation.quarantine import Quarantine
from dlcontrol.situation.scene import SILENT_S, Scene
from dlcore.model import GpuRef, JobId


class Observer:
    """Sees all that there is, for as long as a controller leads."""

    def __init__(
        self,
        platform: Platform,
        actor: Actor,
        *,
        records: Records,
        quarantine: Quarantine,
        options: Options,
        epoch: int,
        clock: Callable[[], float],
    ) -> None:
        self.gpu_faults = GpuFaults()
        """The GPUs that are broken."""
        self.gpu_uuids = GpuUuids()
        """The names of GPUs."""
        self.has_met_all = False
        """Whether every SideCar obeyed us once, or has had the time; nothing is decided before."""
        self._missing_gpus = MissingGpus()
        self._occupancy = Occupancy()
        self._platform = platform
        self._actor = actor
        self._records = records
        self._quarantine = quarantine
        self._options = options
        self._epoch = epoch
        self._clock = clock
        self._distrusted = DistrustedPods(platform, epoch, may_rise=options.may_rise)
        self._job_pods = JobPods(actor, self._distrusted)
        self._began_at = clock()

    def reinstate(self, gpu: GpuRef) -> bool:
        """Reinstate a GPU; return whether it was known as broken."""
        was_out = [self._missing_gpus.reinstate(gpu), self._occupancy.reinstate(gpu)]
        return self.gpu_faults.reinstate(gpu) or any(was_out)

    @property
    def faults(self) -> Mapping[GpuRef, str]:
        """The GPUs that are out until a person reinstates them, and why."""
        return {**self._missing_gpus.absent, **self.gpu_faults.faults}

    async def observe(self) -> Scene:
        """See what is, without the word of those that are not trusted."""
        observation = await self._platform.observe()
        scene = self.see(observation)
        # The same observation is seen again, and now without the word of the pods found to lie. That also shows
        # the reports that came while the platform said who leads, and these are examined like the first ones.
        # It ends, because each turn finds at least one more pod.
        while await self._distrusted.examine(scene, self._job_pods.changed, self._actor.commanded):
            scene = self.see(observation)
        self._distrusted.keep(scene)
        if not self.has_met_all and self._meets_all(scene):
            self._distrusted.rise()
            self._distrusted.end_meeting()
        return scene

    def see(self, observation: Observation) -> Scene:
        """Make a scene of what the platform shows, and follow its SideCars."""
        now = self._clock()
        # First: if another controller has decided, this raises Fenced before a SideCar is dialled.
        entries = self._records.recall(observation.entries)
        addresses = {
            key: pod.address
            for key, pod in observation.pods.items()
            if pod.address is not None and not self._is_untrusted(key, pod, entries)
        }
        # Before the pods are put together: a pod at another address must not show its former SideCar.
        self._actor.keep_up(entries, addresses, now=now)
        self._quarantine.unwritable.update(entries, now)
        return Scene(
            now=now,
            epoch=self._epoch,
            entries=entries,
            job_pods=self._job_pods.update(entries, observation.pods),
            nodes={node.name: node for node in observation.nodes},
            needs=observation.needs,
            mechanism=self._options.mechanism,
            warm_seconds=self._options.pace.warm_seconds,
            lost_seconds=self._options.rules.lost_seconds,
            obey_seconds=self._options.rules.obey_seconds,
            begun=self._actor.begun,
            machines=observation.machines,
        )

    def _is_untrusted(self, key: PodKey, pod: Pod, entries: Mapping[JobId, Entry]) -> bool:
        """Whether the controller has given up its SideCar."""
        if not self._distrusted.is_any:
            return False
        pods = entries[key.job].status.pods
        return any(
            self._distrusted.find(key.job, each, pod) for each in pods if each.node == key.node
        )

    def meet_all(self, scene: Scene) -> None:
        """Take note whether all SideCars are met by now."""
        # It stays so: a SideCar that restarts later keeps no decision waiting.
        self.has_met_all = self.has_met_all or self._meets_all(scene)

    def _meets_all(self, scene: Scene) -> bool:
        """Whether every SideCar obeys us, or has had the time; nothing is decided before."""
        return scene.now >= self._began_at + SILENT_S or all(
            job_pod.has_ended
            or job_pod.fresh
            or job_pod.is_leaving
            or job_pod.is_stamped(self._epoch)
            or self._distrusted.is_met(job_pod)
            for job_pods in scene.job_pods.values()
            for job_pod in job_pods.values()
        )

    def know_gpus(self, scene: Scene) -> tuple[Scene, tuple[GpuRef, ...]]:
        """Show what GPUs are called and which are out; and which are known as broken only now."""
        self.gpu_uuids.update(scene)
        scene = self.gpu_uuids.mark(scene)
        broken = self.gpu_faults.update(scene)
        self._missing_gpus.update(scene)
        self._occupancy.update(scene)
        scene = self._missing_gpus.mark(self.gpu_faults.mark(scene))
        return self._occupancy.mark(scene), broken
