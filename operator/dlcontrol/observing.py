"""
Everything that is known at one instant: what the platform shows, what SideCars say, and which GPUs are out.

Called by :mod:`dlcontrol.loop` at the beginning of each cycle.
"""

from collections.abc import Callable, Mapping

from dlcontrol.acting.applying import Hands
from dlcontrol.acting.job_pods import Seating
from dlcontrol.acting.recording import Records
from dlcontrol.gpus.faults import Health
from dlcontrol.gpus.occupancy import Occupancy
from dlcontrol.gpus.uuids import Identities
from dlcontrol.gpus.visibility import Vanishing
from dlcontrol.judging.trust.distrusting import Distrust
from dlcontrol.scheduling import Options
from dlcontrol.situation.ports import Entry, Observation, Platform, Pod, PodKey
from dlcontrol.situation.quarantine import Asides
from dlcontrol.situation.scene import SILENT_S, Scene
from dlcore.model import GpuRef, JobId


class Observer:
    """Sees all that there is, for as long as a controller leads."""

    def __init__(
        self,
        platform: Platform,
        hands: Hands,
        *,
        records: Records,
        asides: Asides,
        options: Options,
        epoch: int,
        clock: Callable[[], float],
    ) -> None:
        self.health = Health()
        """The GPUs that are broken."""
        self.identities = Identities()
        """The names of GPUs."""
        self.has_met_all = False
        """Whether every SideCar obeyed us once, or has had the time; nothing is decided before."""
        self._vanishing = Vanishing()
        self._occupancy = Occupancy()
        self._platform = platform
        self._hands = hands
        self._records = records
        self._asides = asides
        self._options = options
        self._epoch = epoch
        self._clock = clock
        self._distrust = Distrust(platform, epoch, may_rise=options.may_rise)
        self._seating = Seating(hands, self._distrust)
        self._began_at = clock()

    def forgive(self, gpu: GpuRef) -> bool:
        """Reinstate a GPU; return whether it was known as broken."""
        was_out = [self._vanishing.forgive(gpu), self._occupancy.forgive(gpu)]
        return self.health.forgive(gpu) or any(was_out)

    @property
    def faults(self) -> Mapping[GpuRef, str]:
        """The GPUs that are out until a person reinstates them, and why."""
        return {**self._vanishing.absent, **self.health.faults}

    async def observe(self) -> Scene:
        """See what is, without the word of those that are not trusted."""
        observation = await self._platform.observe()
        scene = self.see(observation)
        # The same observation is seen again, and now without the word of the pods found to lie. That also shows
        # the reports that came while the platform said who leads, and these are examined like the first ones.
        # It ends, because each turn finds at least one more pod.
        while await self._distrust.look(scene, self._seating.changed, self._hands.commanded):
            scene = self.see(observation)
        self._distrust.keep(scene)
        if not self.has_met_all and self._meets_all(scene):
            self._distrust.rise()
            self._distrust.end_meeting()
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
        # Before the seats are made: a pod at another address must not show its former SideCar.
        self._hands.keep_up(entries, addresses, now=now)
        self._asides.unwritable.update(entries, now)
        return Scene(
            now=now,
            epoch=self._epoch,
            entries=entries,
            seats=self._seating.look(entries, observation.pods),
            nodes={node.name: node for node in observation.nodes},
            needs=observation.needs,
            mechanism=self._options.mechanism,
            warm_seconds=self._options.pace.warm_seconds,
            lost_seconds=self._options.rules.lost_seconds,
            obey_seconds=self._options.rules.obey_seconds,
            begun=self._hands.begun,
            machines=observation.machines,
        )

    def _is_untrusted(self, key: PodKey, pod: Pod, entries: Mapping[JobId, Entry]) -> bool:
        """Whether the controller has given up its SideCar."""
        if not self._distrust.is_any:
            return False
        pods = entries[key.job].status.pods
        return any(
            self._distrust.find(key.job, each, pod) for each in pods if each.node == key.node
        )

    def meet_all(self, scene: Scene) -> None:
        """Take note whether all SideCars are met by now."""
        # It stays so: a SideCar that restarts later keeps no decision waiting.
        self.has_met_all = self.has_met_all or self._meets_all(scene)

    def _meets_all(self, scene: Scene) -> bool:
        """Whether every SideCar obeys us, or has had the time; nothing is decided before."""
        return scene.now >= self._began_at + SILENT_S or all(
            seat.has_ended
            or seat.fresh
            or seat.is_leaving
            or seat.is_stamped(self._epoch)
            or self._distrust.is_met(seat)
            for seats in scene.seats.values()
            for seat in seats.values()
        )

    def know_gpus(self, scene: Scene) -> tuple[Scene, tuple[GpuRef, ...]]:
        """Show what GPUs are called and which are out; and which are known as broken only now."""
        self.identities.look(scene)
        scene = self.identities.mark(scene)
        broken = self.health.look(scene)
        self._vanishing.look(scene)
        self._occupancy.look(scene)
        scene = self._vanishing.mark(self.health.mark(scene))
        return self._occupancy.mark(scene), broken
