"""All knowledge at one instant: decisions, the platform's pods, and the last reports of SideCars.

The scene also derives which GPUs a job *may* hold (:meth:`Scene.may_hold`). Until a SideCar has
accepted the epoch of this controller, a command of a former one may still be on its way; until then
the job may hold every GPU that a decision assigned there and that is not proven to be released.
From then on the SideCar obeys only this controller, so its last report is exact, even if it is
silent now.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

from dljob.control.situation.job_pods import JobPod, PodsByJob
from dljob.control.situation.ports import BootState, Entry, PodPhase
from dljob.control.situation.sent import Begun
from dljob.control.situation.status import Status
from dljob.core.model import Ceiling, GpuRef, JobId, Mechanism, Node, NodeName
from dljob.core.placement.needs import Needs
from dljob_wire.messages import Gpu, State

SILENT_S = 10.0
"""The controller does not expect a SideCar that is silent for this long to release GPUs soon."""


class GpuNames:
    """The GPUs of nodes by the names that SideCars use: a UUID, or an index in the order of their
    NVML.
    """

    def __init__(self, nodes: Mapping[NodeName, Node]) -> None:
        self._nodes = nodes

    def find_seen(self, node: NodeName, seen: Gpu) -> GpuRef | None:
        """Return the GPU of the node that matches a SideCar's report."""
        for gpu in self._nodes[node].gpus if node in self._nodes else ():
            # A container may number the GPUs differently, so a number counts only if the UUID is unknown.
            if gpu.uuid == seen.uuid if gpu.uuid else gpu.index == seen.index:
                return GpuRef(node, gpu.index)
        return None

    def find_named(self, node: NodeName, name: str, *, state: State) -> GpuRef | None:
        """Return the GPU of the node with this name; ``state`` is the SideCar's last report."""
        number = self._number(node, name, state=state)
        return None if number is None else GpuRef(node, number)

    def find_all(
        self, node: NodeName, names: Iterable[str], *, state: State | None
    ) -> frozenset[GpuRef]:
        """Return the GPUs of the node with these names; unknown names are left out."""
        if state is None:
            return frozenset()
        found = (self.find_named(node, name, state=state) for name in names)
        return frozenset(ref for ref in found if ref is not None)

    def _number(self, node: NodeName, name: str, *, state: State) -> int | None:
        if not name.isdigit():
            return self._numbers.get((node, name))
        index = int(name)
        uuid = next((gpu.uuid for gpu in state.gpus if gpu.index == index), "")
        if not uuid or (node, index) in self._nameless:
            return index
        return self._numbers.get((node, uuid))

    def unnamed(self, node: NodeName) -> frozenset[GpuRef]:
        """Return the GPUs of a node with unknown UUIDs."""
        gpus = self._nodes[node].gpus if node in self._nodes else ()
        return frozenset(GpuRef(node, gpu.index) for gpu in gpus if not gpu.uuid)

    @cached_property
    def _nameless(self) -> frozenset[tuple[NodeName, int]]:
        return frozenset(
            (node.name, gpu.index)
            for node in self._nodes.values()
            for gpu in node.gpus
            if not gpu.uuid
        )

    @cached_property
    def _numbers(self) -> Mapping[tuple[NodeName, str], int]:
        return {
            (node.name, gpu.uuid): gpu.index for node in self._nodes.values() for gpu in node.gpus
        }


@dataclass(frozen=True)
class Scene:
    """Everything known at one instant.

    The class is long because each method answers a question about the same instant, and some
    methods share results.
    """

    now: float
    epoch: int
    entries: Mapping[JobId, Entry]
    job_pods: PodsByJob
    nodes: Mapping[NodeName, Node]
    mechanism: Mechanism = Mechanism.IN_PLACE
    warm_seconds: float = 30.0
    """How long a new pod may take to make its spare interpreters ready."""
    lost_seconds: float = 60.0
    """How long a SideCar may be silent before the controller ends its pod."""
    suspected_until: float = -inf
    """Until when the controller suspected its own network, because many SideCars fell silent at once; now: it
    does so still."""
    unreached: frozenset[NodeName] = frozenset()
    """While it does, the nodes without a SideCar that answers."""
    avoided: Mapping[JobId, frozenset[NodeName]] = field(default_factory=dict)
    """The nodes on which the last pods of a job never answered."""
    obey_seconds: float = 300.0
    """How long a responsive SideCar may take to obey a command, beyond its checkpoint and grace."""
    ttl_seconds: float = 0.0
    """After which time a finished job is removed that names no time itself; 0: never."""
    needs: Mapping[JobId, Needs] = field(default_factory=dict)
    """The needs of a job's pods in addition to GPUs, where they are known."""
    priorities: Mapping[str, int] = field(default_factory=dict)
    """The highest priorities that an administrator grants to the jobs of namespaces; they override the settings."""
    ceilings: Mapping[JobId, Ceiling] = field(default_factory=dict)
    """The quota of jobs in queues that another program keeps."""
    begun: Mapping[JobId, Begun] = field(default_factory=dict)
    """The starts of jobs that this controller has commanded."""
    machines: Mapping[NodeName, BootState] = field(default_factory=dict)
    """Facts about nodes that do not concern their GPUs."""

    @property
    def is_suspicious(self) -> bool:
        """The controller suspects its own network now."""
        return self.suspected_until >= self.now

    def silent_since(self, job_pod: JobPod) -> float:
        """Return since when the silence of a SideCar counts: not while this controller suspected itself."""
        since = job_pod.contact.since
        is_over = self.entries[job_pod.key.job].is_over
        return since if is_over else max(since, self.suspected_until)

    def pods_of(self, job: JobId) -> Mapping[NodeName, JobPod]:
        return self.job_pods.get(job, {})

    def machine(self, node: NodeName) -> BootState:
        """Return the facts about a node that do not concern its GPUs."""
        return self.machines.get(node, _UNKNOWN)

    @cached_property
    def gpu_names(self) -> GpuNames:
        return GpuNames(self.nodes)

    @cached_property
    def holding(self) -> int:
        return sum(bool(job_pods) for job_pods in self.job_pods.values())

    @cached_property
    def starting(self) -> int:
        """The number of jobs with pods whose SideCar has not answered yet."""
        return sum(
            any(job_pod.state is None for job_pod in job_pods.values())
            for job_pods in self.job_pods.values()
        )

    def with_statuses(self, statuses: Mapping[JobId, Status]) -> "Scene":
        """Return the scene with these statuses."""
        if not statuses:
            return self
        entries, job_pods = dict(self.entries), dict(self.job_pods)
        for job, status in statuses.items():
            entries[job] = replace(entries[job], status=status)
            if job in job_pods and status.pods != self.entries[job].status.pods:
                booked = set(status.pods)
                job_pods[job] = {
                    n: job_pod for n, job_pod in job_pods[job].items() if job_pod.booking in booked
                }
        return replace(self, entries=entries, job_pods=job_pods)

    @cached_property
    def claims(self) -> Mapping[GpuRef, JobId]:
        """The job to which the latest decision gives each GPU."""
        claims: dict[GpuRef, JobId] = {}
        for job, entry in self.entries.items():
            if entry.status.placement is not None:
                claims.update(dict.fromkeys(entry.status.placement.refs(), job))
        return claims

    @cached_property
    def held(self) -> Mapping[JobId, frozenset[GpuRef]]:
        """The GPUs that each job with pods may hold."""
        return {
            job: frozenset().union(*map(self.may_hold, job_pods.values()))
            for job, job_pods in self.job_pods.items()
        }

    def held_by(self, job: JobId) -> frozenset[GpuRef]:
        return self.held.get(job, frozenset())

    @cached_property
    def holders(self) -> Mapping[GpuRef, tuple[JobId, ...]]:
        """Return the jobs that may hold each GPU; with several holders no job can get the GPU."""
        holders: dict[GpuRef, tuple[JobId, ...]] = {}
        for job, job_pods in self.job_pods.items():
            occupied = set[GpuRef]()
            for job_pod in job_pods.values():
                occupied |= self.may_hold(job_pod)
                if self.mechanism is Mechanism.RECREATE and not job_pod.has_ended:
                    # The container was granted these GPUs and keeps them until it is gone.
                    occupied |= self.recorded_for(job_pod)
            for ref in occupied:
                holders[ref] = (*holders.get(ref, ()), job)
        return holders

    def is_free_for(self, job: JobId, ref: GpuRef) -> bool:
        """Return True if it is proven that no other job holds this GPU."""
        return all(holder == job for holder in self.holders.get(ref, ()))

    def may_hold(self, job_pod: JobPod) -> frozenset[GpuRef]:
        """Return the GPUs that processes of this pod may use now, or by a command on its way."""
        if job_pod.has_ended:
            return frozenset()
        if job_pod.state is None:
            more = self.gpu_names.find_all(
                job_pod.key.node, job_pod.claimed, state=job_pod.contact.state
            )
            return more if job_pod.fresh else more | self.recorded_for(job_pod)
        named = set(job_pod.state.held)
        for run in job_pod.contact.coming:
            # The run waits for the end of the present processes, and then takes these GPUs without a further command.
            named.update(run.gpus)
        found = {
            self.gpu_names.find_named(job_pod.key.node, name, state=job_pod.state) for name in named
        }
        known = frozenset(ref for ref in found if ref is not None)
        if None in found:
            # The GPU has an unknown name, or is gone.
            return known | self.recorded_for(job_pod) | self.gpu_names.unnamed(job_pod.key.node)
        is_exact = job_pod.fresh or job_pod.is_stamped(self.epoch)
        return known if is_exact else known | self.recorded_for(job_pod)

    def is_awaited(self, job_pod: JobPod) -> bool:
        """Return True if the SideCar is back and about to report its processes."""
        is_back = (
            job_pod.pod.phase is PodPhase.UP and not job_pod.is_known and not job_pod.untrusted
        )
        return is_back and self.now - job_pod.contact.since < SILENT_S

    def latest_start(self, job: JobId, *, with_ended: bool = False) -> list[JobPod]:
        """Return the pods of the latest start; pods and containers that have ended only ``with_ended``."""
        job_pods = self.pods_of(job).values()
        if with_ended:
            running = self.entries[job].status.running
            present = [job_pod.at_its_end(running) for job_pod in job_pods]
        else:
            present = [job_pod for job_pod in job_pods if not job_pod.has_ended]
        latest = max((job_pod.start for job_pod in present), default=0)
        return [job_pod for job_pod in present if 0 < latest == job_pod.start]

    def recorded_for(self, job_pod: JobPod) -> frozenset[GpuRef]:
        """Return all GPUs decided for the pod's job on its node and never seen released."""
        entry = self.entries.get(job_pod.key.job)
        if entry is None:
            return frozenset()
        placement = entry.status.placement
        decided = placement.refs() if placement is not None else ()
        return frozenset(
            ref for ref in (*decided, *entry.status.leftover) if ref.node == job_pod.key.node
        )


_UNKNOWN = BootState()
