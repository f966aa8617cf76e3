"""
The pods of jobs as the platform, their SideCars and this controller know them, put together in each cycle.

A `JobPod` is the same object as long as all of it is the same. Most of thousands are unchanged, and what
follows from them is cached.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from dljob.control.situation.dialer import NO_CONTACT, Contact, Contacts, ForeignEpoch
from dljob.control.situation.ports import Entry, Pod, PodKey, PodPhase
from dljob.control.situation.sent import Sent
from dljob.control.situation.status import Booking, StartNumber
from dljob.core.model import JobId, NodeName
from dljob_wire.messages import Phase as SideCarPhase
from dljob_wire.messages import Run, State, Stop, Target

PodsByJob = Mapping[JobId, Mapping[NodeName, "JobPod"]]
PodStart = tuple[JobId, Booking, str]
"""One start of a pod's container, as far as the platform reports it."""


class Contradiction(NamedTuple):
    """An impossible report of a SideCar."""

    sentence: str
    foreign: ForeignEpoch | None = None
    """Set where another controller could have caused the report."""
    claimed: frozenset[str] = frozenset()
    """GPUs that the pod may hold despite the contradiction, from an earlier controller's decision.
    """


@dataclass(frozen=True)
class JobPod:
    key: PodKey
    booking: Booking
    pod: Pod
    contact: Contact = NO_CONTACT
    asked: bool = False
    """This controller has requested the pod; its predecessor may have ended before it could."""
    fresh: bool = False
    """This controller booked the pod, so no other one can have commanded it, and has sent it no command to run."""
    untrusted: str = ""
    """Why no report of the SideCar counts any more; only the end of its pod is a proof."""
    claimed: frozenset[str] = frozenset()
    """GPUs that an untrusted pod may hold beyond the record, by the names that its SideCar uses."""

    left: State | None = None
    """The state that the SideCar of the last start that has ended left behind, if credible."""

    @property
    def state(self) -> State | None:
        if self.untrusted:
            return None
        if self.pod.phase is not PodPhase.ENDED:
            return self.contact.state
        known = self.contact.state or self.contact.last
        return self.left if _is_later(self.left, known) else known

    def at_its_end(self, latest: StartNumber) -> "JobPod":
        """Return the pod when its container ended last, if nothing has begun in it since; else the pod.

        ``latest`` is the latest start of the job that was seen to run.
        """
        if self.untrusted or self.has_ended or not _is_later(self.left, self.state):
            return self
        if self.left is None or self.left.held_generation < latest:
            return self
        ended = replace(self.pod, phase=PodPhase.ENDED)
        return replace(self, pod=ended, contact=NO_CONTACT)

    @cached_property
    def is_coming_up(self) -> bool:
        """This controller has requested the pod, and cannot command it yet."""
        is_pending = self.pod.phase is PodPhase.PENDING and not self.contact.reachable
        return (
            not self.untrusted and is_pending and self.asked and self.fresh and self.state is None
        )

    @property
    def is_known(self) -> bool:
        """The SideCar has answered since its pod is up, or no command was ever sent to it."""
        return self.state is not None or self.fresh

    def is_stamped(self, epoch: int) -> bool:
        return self.state is not None and self.state.epoch == epoch

    @cached_property
    def has_ended(self) -> bool:
        if self.pod.phase is PodPhase.ENDED:
            return True
        state = self.state
        return self.pod.vanished and state is not None and state.leaving and state.released

    @cached_property
    def is_living(self) -> bool:
        if self.has_ended:
            return False
        if self.state is None:
            return not self.fresh
        return not self.state.released or bool(self.contact.coming)

    @cached_property
    def told(self) -> Target | None:
        """The newest command, even if the SideCar has not received it yet."""
        declared, state = self.contact.declared, self.state
        if state is None:
            return None
        if declared is not None and declared.incarnation == state.incarnation:
            return declared if declared.term > state.term else state.target
        return state.target

    @property
    def is_waited_for(self) -> bool:
        return self.state is not None and self.told is not self.state.target

    @cached_property
    def is_leaving(self) -> bool:
        """The SideCar has to end, and takes no more commands."""
        told = self.told
        if self.has_ended or (isinstance(told, Stop) and told.leave):
            return True
        return self.state is not None and self.state.leaving

    @property
    def phase(self) -> SideCarPhase | None:
        return self.state.phase if self.state is not None else None

    @property
    def run(self) -> Run | None:
        """The run of the processes that live in the pod; its target is another one during a change."""
        state = self.state
        if state is None or state.released:
            return None
        is_begun = state.generation == state.held_generation
        return state.target if is_begun and isinstance(state.target, Run) else self.run_before

    @property
    def run_before(self) -> Run | None:
        """The run of the processes that live, if the SideCar has another target; None if it does not report that."""
        return self.state.live.present if self.state is not None and self.state.live else None

    @property
    def start(self) -> StartNumber:
        """The generation of the last start in the pod; 0 if there was none."""
        return StartNumber(self.state.held_generation if self.state is not None else 0)

    def has_begun(self, generation: int) -> bool:
        """Return True if this start is the last that runs or ran in the pod, and no newer command has come."""
        state = self.state
        return (
            state is not None and state.generation == generation and isinstance(state.target, Run)
        )

    def is_warm(self, deadline_s: float, now: float) -> bool:
        """Return True if the spare interpreters are ready, or have had enough time for that."""
        if self.state is None:
            return False
        warmth = self.state.warmth
        return warmth.ready >= warmth.wanted or now - self.contact.first_seen >= deadline_s


def _is_later(left: State | None, known: State | None) -> bool:
    """Return True if a SideCar left more behind than is known otherwise."""
    if left is None or known is None:
        return left is not None
    if left.incarnation == known.incarnation:
        return left.version > known.version
    return left.held_generation > known.held_generation


class JobPods:
    """Builds the pods of each cycle and remembers them until the next; one for the life of a controller."""

    def __init__(self, contacts: Contacts, sent: Sent) -> None:
        self._contacts = contacts
        self._sent = sent
        self._pods: PodsByJob = {}
        self.changed: list[JobPod] = []
        """The pods that differ from the cycle before."""

    def update(
        self,
        entries: Mapping[JobId, Entry],
        pods: Mapping[PodKey, Pod],
        *,
        contradictions: Mapping[PodStart, Contradiction],
    ) -> PodsByJob:
        """Return what is known of each booked pod."""
        self.changed = []
        self._pods = {
            job: {
                booking.node: self._find(
                    PodKey(job, booking.node), booking, pods=pods, contradictions=contradictions
                )
                for booking in entry.status.pods
            }
            for job, entry in entries.items()
            if entry.status.pods
        }
        return self._pods

    def _find(
        self,
        key: PodKey,
        booking: Booking,
        *,
        pods: Mapping[PodKey, Pod],
        contradictions: Mapping[PodStart, Contradiction],
    ) -> JobPod:
        pod = pods.get(key) or Pod(key, PodPhase.LOST, reason="NotObserved")
        contact, booked = self._contacts.find(key), (key.job, booking)
        refusal = self._sent.refused.why(booked)
        if refusal and pod.phase is PodPhase.PENDING:
            # A pod that a quota or an admission rule refuses waits until a person acts.
            pod = replace(pod, reason="NotTaken", message=refusal, stuck=True)
        found = contradictions.get((key.job, booking, pod.start))
        untrusted = found.sentence if found is not None else ""
        asked, fresh = booked in self._sent.asked, booked in self._sent.fresh
        before = self._pods.get(key.job, {}).get(key.node)
        if (
            before is not None
            and (before.pod is pod and before.contact is contact)
            and (before.booking, before.asked, before.fresh) == (booking, asked, fresh)
            and before.untrusted == untrusted
        ):
            return before
        made = JobPod(
            key,
            booking,
            pod,
            contact,
            asked=asked,
            fresh=fresh,
            untrusted=untrusted,
            claimed=found.claimed if found is not None else frozenset(),
            left=None if pod.left is None else self._contacts.believe(pod.left),
        )
        self.changed.append(made)
        return made
