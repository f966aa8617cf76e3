"""Makes the scene: the platform's state, the SideCars' reports, and the unusable GPUs.

Called by :mod:`dljob.control.loop` at the beginning of each cycle.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from dljob.control.acting.recording import Records
from dljob.control.gpus.faults import GpuFaults
from dljob.control.gpus.marking import marked
from dljob.control.gpus.occupancy import Occupancy
from dljob.control.gpus.uuids import GpuUuids
from dljob.control.gpus.visibility import MissingGpus
from dljob.control.judging.distrusting import DistrustedPods
from dljob.control.judging.silence import Breaker, SilentPlaces
from dljob.control.scheduling import Options
from dljob.control.situation.dialer import Contacts
from dljob.control.situation.job_pods import JobPods
from dljob.control.situation.ports import Entry, Observation, Platform, Pod, PodKey
from dljob.control.situation.quarantine import Quarantine, find_held
from dljob.control.situation.scene import SILENT_S, Scene
from dljob.control.situation.sent import Sent
from dljob.core.model import GpuRef, JobId


class Observer:
    """Reads the platform and the SideCars; one for the life of a controller."""

    def __init__(
        self,
        platform: Platform,
        contacts: Contacts,
        *,
        sent: Sent,
        records: Records,
        quarantine: Quarantine,
        options: Options,
        epoch: int,
        clock: Callable[[], float],
    ) -> None:
        self.gpu_faults = GpuFaults()
        """The broken GPUs; the platform passes them to the next controller."""
        self.gpu_uuids = GpuUuids()
        """The UUIDs of GPUs; the platform passes them to the next controller."""
        self.has_met_all = False
        """True once every SideCar obeys this controller or has had time to; no decision comes
        before.
        """
        self._missing_gpus = MissingGpus()
        self._occupancy = Occupancy()
        self._platform = platform
        self._contacts = contacts
        self._sent = sent
        self._records = records
        self._quarantine = quarantine
        self._options = options
        self._epoch = epoch
        self._clock = clock
        self._distrusted = DistrustedPods(platform, epoch, may_rise=options.may_rise)
        self._job_pods = JobPods(contacts, sent)
        self._breaker = Breaker()
        self._silent_places = SilentPlaces()
        self._began_at = clock()

    def reinstate(self, gpu: GpuRef) -> bool:
        """Reinstate a GPU; return False if it was in service."""
        was_out = [self._missing_gpus.reinstate(gpu), self._occupancy.reinstate(gpu)]
        return self.gpu_faults.reinstate(gpu) or any(was_out)

    @property
    def faults(self) -> Mapping[GpuRef, str]:
        """The GPUs that are out of service until a person reinstates them, with the reasons."""
        return {**self._missing_gpus.absent, **self.gpu_faults.faults}

    async def observe(self) -> Scene:
        """Return the present scene, without the reports of SideCars that are not trusted."""
        observation = await self._platform.observe()
        scene = self._see(observation)
        # A newly distrusted pod changes the scene, so the observation is read again. That includes
        # reports that arrived while the platform checked the leader, and these are examined too.
        # The loop ends, because each turn finds at least one more pod.
        while await self._distrusted.examine(
            scene, self._job_pods.changed, commanded=self._sent.commanded
        ):
            scene = self._see(observation)
        self._distrusted.keep(scene)
        if not self.has_met_all and self._have_all_answered(scene):
            self._distrusted.end_meeting()
        scene = self._breaker.update(scene)
        self._quarantine.unheard = self._breaker.unheard
        return self._silent_places.update(scene)

    def _see(self, observation: Observation) -> Scene:
        now = self._clock()
        # First: if another controller has decided, this raises Fenced before a SideCar is dialled.
        entries = self._records.recall(observation.entries)
        addresses = {
            key: pod.address
            for key, pod in observation.pods.items()
            if pod.address is not None and not self._is_untrusted(key, pod, entries=entries)
        }
        # Before the pods are put together: a pod at another address must not show its former SideCar.
        self._contacts.follow(entries, addresses, now=now)
        self._sent.keep(entries)
        self._quarantine.unwritable.update(entries, now)
        self._quarantine.held = find_held(entries, observation.holds)
        return Scene(
            now=now,
            epoch=self._epoch,
            entries=entries,
            job_pods=self._job_pods.update(
                entries, observation.pods, contradictions=self._distrusted.found
            ),
            nodes={node.name: node for node in observation.nodes},
            needs=observation.needs,
            mechanism=self._options.mechanism,
            warm_seconds=self._options.pace.warm_seconds,
            lost_seconds=self._options.rules.lost_seconds,
            obey_seconds=self._options.rules.obey_seconds,
            ttl_seconds=self._options.rules.ttl_seconds_after_finished,
            begun=self._sent.begun,
            machines=observation.machines,
            priorities=observation.priorities,
            ceilings=observation.ceilings,
        )

    def _is_untrusted(self, key: PodKey, pod: Pod, *, entries: Mapping[JobId, Entry]) -> bool:
        found = self._distrusted.found
        if not found:
            return False
        bookings = entries[key.job].status.pods
        return any(
            (key.job, booking, pod.start) in found
            for booking in bookings
            if booking.node == key.node
        )

    def meets_all(self, scene: Scene) -> bool:
        """Return True once every SideCar obeys this controller, or has had time to."""
        # Never reset: a SideCar that restarts later delays no decision.
        self.has_met_all = self.has_met_all or self._have_all_answered(scene)
        return self.has_met_all

    def _have_all_answered(self, scene: Scene) -> bool:
        return scene.now >= self._began_at + SILENT_S or all(
            pod.has_ended
            or pod.fresh
            or pod.is_leaving
            or pod.is_stamped(self._epoch)
            or self._distrusted.is_met(pod)
            for pods in scene.job_pods.values()
            for pod in pods.values()
        )

    def mark_gpus(self, scene: Scene) -> tuple[Scene, tuple[GpuRef, ...]]:
        """Add the UUIDs and states of GPUs; also return the newly broken GPUs."""
        self.gpu_uuids.update(scene)
        scene = self.gpu_uuids.mark(scene)
        broken = self.gpu_faults.update(scene)
        self._missing_gpus.update(scene)
        self._occupancy.update(scene)
        # A person has to repair a broken GPU, so of several reasons that one is shown.
        reasons = {
            **self._occupancy.unavailable,
            **self._missing_gpus.unavailable,
            **self.gpu_faults.faults,
        }
        if reasons:
            nodes = {name: marked(node, reasons) for name, node in scene.nodes.items()}
            scene = replace(scene, nodes=nodes)
        return scene, broken
