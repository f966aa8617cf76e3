"""
Everything that is known at one instant, put side by side: what was decided about each job, what
the platform says of its pods, and what their SideCars said last.

It also says which GPUs a job *may* hold (:meth:`Scene.may_hold`). Until a SideCar has accepted the
epoch of this controller, a command of a former one may still be on its way to it; until then it may
hold every GPU that a decision gave it there and that is not proven to be released. From then on it
obeys only this controller, so its last report is exact, even if it is silent now.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from dlcontrol.situation.gpu_names import GpuNames
from dlcontrol.situation.ports import (
    BootState,
    Entry,
    Pod,
    PodKey,
    PodPhase,
)
from dlcontrol.situation.status import Booking, StartNumber, Status
from dlcore.model import GpuRef, JobId, Mechanism, Node, NodeName
from dlcore.placement.needs import Needs
from dlwire.messages import Phase as SideCarPhase
from dlwire.messages import Run, State, Stop, Target

SILENT_S = 10.0
"""The controller does not expect a SideCar that is silent for this long to release GPUs soon."""


class ForeignEpoch(NamedTuple):
    """A report of a SideCar that the controller does not accept, because only another controller could have caused it."""

    epoch: int
    installation: str = ""

    @property
    def sentence(self) -> str:
        """Say it, as the reason of what follows from it."""
        whose = f" of another installation ({self.installation})" if self.installation else ""
        return (
            f"it says that it obeys another controller{whose} in epoch {self.epoch}, and none leads"
        )


@dataclass(frozen=True, slots=True)
class Contact:
    """The controller's knowledge of a SideCar from talking to it."""

    state: State | None = None
    """Its last answer."""
    reachable: bool = False
    since: float = 0.0
    """The time since which it is reachable, or not."""
    first_seen: float = 0.0
    """When this incarnation was first spoken to."""
    declared: Target | None = None
    """The last command, of this controller and to this incarnation."""
    overtaken: tuple[Run, ...] = ()
    """The command before that, which may still be on its way: to say something newer does not call back
    what was said."""
    problem: str = ""
    """Why it cannot be spoken to, or what it does not accept and why."""
    outdated: bool = False
    """It listens, and cannot be reached because its certificate is over."""
    foreign: ForeignEpoch | None = None
    """Why what it says now is not taken in; ``state`` is what it said before."""
    last: State | None = None
    """Its last answer before its pod lost its address; something newer may have happened in the pod since."""

    @property
    def unanswered(self) -> tuple[Run, ...]:
        """The runs that it may accept yet, without our having heard of it."""
        state = self.state
        if state is None:
            return ()
        return tuple(
            told
            for told in (*self.overtaken, self.declared)
            if isinstance(told, Run)
            and told.incarnation == state.incarnation
            and told.term > state.term
        )

    @property
    def coming(self) -> tuple[Run, ...]:
        """The runs that may begin in it without anything more being said."""
        target = self.state.target if self.state is not None else None
        if self.state is None or not isinstance(target, Run):
            return self.unanswered
        has_begun = target.generation == self.state.held_generation
        return self.unanswered if has_begun else (target, *self.unanswered)


NO_CONTACT = Contact()


@dataclass(frozen=True)
class JobPod:
    """A pod of a job, as all three see it; the same object as long as all of that is the same."""

    key: PodKey
    booking: Booking
    pod: Pod
    contact: Contact = NO_CONTACT
    asked: bool = False
    """Whether this controller has asked for the pod; its predecessor may not have come so far."""
    fresh: bool = False
    """Whether this controller booked the pod and has sent it no command to run, as no other
    controller can have."""
    untrusted: str = ""
    """Why nothing that its SideCar says counts any more; its pod is ended, and only that is a proof."""
    claimed: frozenset[str] = frozenset()
    """GPUs that an untrusted one may hold beyond the record, by its own names for them."""

    @property
    def state(self) -> State | None:
        if self.untrusted:
            return None
        if self.contact.state is None and self.pod.phase is PodPhase.ENDED:
            return self.contact.last
        return self.contact.state

    @cached_property
    def is_coming_up(self) -> bool:
        """Whether this controller has asked for it, and can tell it nothing yet."""
        is_pending = self.pod.phase is PodPhase.PENDING and not self.contact.reachable
        return (
            not self.untrusted and is_pending and self.asked and self.fresh and self.state is None
        )

    @property
    def is_known(self) -> bool:
        """Whether the SideCar has answered since its pod is up, or has got no command yet."""
        return self.state is not None or self.fresh

    def is_stamped(self, epoch: int) -> bool:
        """Whether only this controller can command it any longer."""
        return self.state is not None and self.state.epoch == epoch

    @cached_property
    def has_ended(self) -> bool:
        """Whether it is proven that no process of it is left, and none will be started."""
        if self.pod.phase is PodPhase.ENDED:
            return True
        state = self.state
        return self.pod.vanished and state is not None and state.leaving and state.released

    @cached_property
    def is_living(self) -> bool:
        """Whether processes of the job may live in it, as far as it is known exactly."""
        if self.has_ended:
            return False
        if self.state is None:
            return not self.fresh
        return not self.state.released or bool(self.contact.coming)

    @cached_property
    def told(self) -> Target | None:
        """The newest generation of its commands, whether it has got it or not."""
        declared, state = self.contact.declared, self.state
        if state is None:
            return None
        if declared is not None and declared.incarnation == state.incarnation:
            return declared if declared.term > state.term else state.target
        return state.target

    @property
    def is_waited_for(self) -> bool:
        """Whether its answer to the last command is still outstanding."""
        return self.state is not None and self.told is not self.state.target

    @cached_property
    def is_leaving(self) -> bool:
        """Whether its SideCar has to end, and takes no more commands."""
        told = self.told
        if self.has_ended or (isinstance(told, Stop) and told.leave):
            return True
        return self.state is not None and self.state.leaving

    @property
    def phase(self) -> SideCarPhase | None:
        return self.state.phase if self.state is not None else None

    @property
    def start(self) -> StartNumber:
        """The generation of the processes that were started last in it; 0: none ever were."""
        return StartNumber(self.state.held_generation if self.state is not None else 0)

    def has_begun(self, generation: int) -> bool:
        """Whether it runs this generation or did so last, and has got no newer command."""
        state = self.state
        return (
            state is not None and state.generation == generation and isinstance(state.target, Run)
        )

    def has_heard_of(self, generation: int) -> bool:
        """Whether it has accepted this, or anything newer."""
        return self.state is not None and self.state.generation >= generation

    def is_warm(self, deadline_s: float, now: float) -> bool:
        """Whether its spare interpreters are ready, or have had the time to be."""
        if self.state is None:
            return False
        warmth = self.state.warmth
        return warmth.ready >= warmth.wanted or now - self.contact.first_seen >= deadline_s

    def is_warming_up(self, deadline_s: float, now: float) -> bool:
        """Whether a start in it waits for its spare interpreters."""
        return self.state is not None and not self.is_living and not self.is_warm(deadline_s, now)


@dataclass(frozen=True, slots=True)
class Begun:
    """The commands to run that this controller has sent to the SideCars of a job, as parts of one whole."""

    generation: int
    runs: Mapping[NodeName, Run]


@dataclass(frozen=True)
class Scene:
    """
    All of it.

    It is long because each method answers a question about the same instant, and some share the answers.
    """

    now: float
    epoch: int
    entries: Mapping[JobId, Entry]
    job_pods: Mapping[JobId, Mapping[NodeName, JobPod]]
    nodes: Mapping[NodeName, Node]
    mechanism: Mechanism = Mechanism.IN_PLACE
    warm_seconds: float = 30.0
    """For how long a newcomer's spare interpreters are waited for."""
    lost_seconds: float = 60.0
    """How long a SideCar may be silent before the controller ends its pod."""
    obey_seconds: float = 300.0
    """For how long a SideCar that answers may leave a command undone, beyond its checkpoint and grace."""
    needs: Mapping[JobId, Needs] = field(default_factory=dict)
    """The needs of a job's pods in addition to GPUs, where they are known."""
    begun: Mapping[JobId, Begun] = field(default_factory=dict)
    """The starts of jobs that this controller has commanded."""
    machines: Mapping[NodeName, BootState] = field(default_factory=dict)
    """Facts about nodes that do not concern their GPUs."""

    def pods_of(self, job: JobId) -> Mapping[NodeName, JobPod]:
        """The pods of a job, by their nodes."""
        return self.job_pods.get(job, {})

    def machine(self, node: NodeName) -> BootState:
        """Return the facts about a node that do not concern its GPUs."""
        return self.machines.get(node, _UNKNOWN)

    @cached_property
    def gpu_names(self) -> GpuNames:
        return GpuNames(self.nodes)

    @cached_property
    def holding(self) -> int:
        """How many jobs have pods."""
        return sum(bool(job_pods) for job_pods in self.job_pods.values())

    @cached_property
    def starting(self) -> int:
        """How many jobs have pods that were not heard of yet."""
        return sum(
            any(job_pod.state is None for job_pod in job_pods.values())
            for job_pods in self.job_pods.values()
        )

    def with_statuses(self, statuses: Mapping[JobId, Status]) -> "Scene":
        """Show the scene with these statuses in it."""
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
        """Which GPUs each job may hold that has pods."""
        return {
            job: frozenset().union(*map(self.may_hold, job_pods.values()))
            for job, job_pods in self.job_pods.items()
        }

    def held_by(self, job: JobId) -> frozenset[GpuRef]:
        """Which GPUs this job may hold."""
        return self.held.get(job, frozenset())

    @cached_property
    def holders(self) -> Mapping[GpuRef, tuple[JobId, ...]]:
        """Which jobs may hold each GPU. Where not all is known these may be several, and then no
        job can get it."""
        holders: dict[GpuRef, tuple[JobId, ...]] = {}
        for job, job_pods in self.job_pods.items():
            for ref in frozenset().union(*map(self._occupies, job_pods.values())):
                holders[ref] = (*holders.get(ref, ()), job)
        return holders

    def _occupies(self, job_pod: JobPod) -> frozenset[GpuRef]:
        """Which GPUs no other job can get because of this pod."""
        held = self.may_hold(job_pod)
        if self.mechanism is Mechanism.RECREATE and not job_pod.has_ended:
            # They were granted to its container, which has them until it is gone.
            return held | self.recorded_for(job_pod)
        return held

    def is_free_for(self, job: JobId, ref: GpuRef) -> bool:
        """Whether it is proven that no other job holds this GPU."""
        return all(holder == job for holder in self.holders.get(ref, ()))

    def may_hold(self, job_pod: JobPod) -> frozenset[GpuRef]:
        """Which GPUs processes of this pod may use, now or by what is on its way to it."""
        if job_pod.has_ended:
            return frozenset()
        if job_pod.state is None:
            more = self.gpu_names.find_all(
                job_pod.key.node, job_pod.claimed, state=job_pod.contact.state
            )
            return more if job_pod.fresh else more | self.recorded_for(job_pod)
        named = set(job_pod.state.held)
        for run in job_pod.contact.coming:
            # It waits for the end of what is held, and then takes these without asking again.
            named.update(run.gpus)
        found = {
            self.gpu_names.find_named(job_pod.key.node, name, state=job_pod.state) for name in named
        }
        known = frozenset(ref for ref in found if ref is not None)
        if None in found:
            # It is one of those whose names are not known, or is there no more.
            return known | self.recorded_for(job_pod) | self.gpu_names.unnamed(job_pod.key.node)
        is_exact = job_pod.fresh or job_pod.is_stamped(self.epoch)
        return known if is_exact else known | self.recorded_for(job_pod)

    def is_awaited(self, job_pod: JobPod) -> bool:
        """Whether it is back, and about to say what there is of the job."""
        is_back = (
            job_pod.pod.phase is PodPhase.UP and not job_pod.is_known and not job_pod.untrusted
        )
        return is_back and self.now - job_pod.contact.since < SILENT_S

    def latest_start(self, job: JobId, *, with_ended: bool = False) -> list[JobPod]:
        """The pods in which the job's processes last started; of pods that have ended only ``with_ended``."""
        job_pods = self.pods_of(job).values()
        present = [job_pod for job_pod in job_pods if with_ended or not job_pod.has_ended]
        latest = max((job_pod.start for job_pod in present), default=0)
        return [job_pod for job_pod in present if 0 < latest == job_pod.start]

    def recorded_for(self, job_pod: JobPod) -> frozenset[GpuRef]:
        """All GPUs that were decided for its job on its node, and never seen released."""
        entry = self.entries.get(job_pod.key.job)
        if entry is None:
            return frozenset()
        placement = entry.status.placement
        decided = placement.refs() if placement is not None else ()
        return frozenset(
            ref for ref in (*decided, *entry.status.leftover) if ref.node == job_pod.key.node
        )


_UNKNOWN = BootState()
