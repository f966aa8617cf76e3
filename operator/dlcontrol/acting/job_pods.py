"""
The pods of jobs as the platform, their SideCars and we ourselves know them, put together at each look.

A seat is the same object as long as all of it is the same: thousands are as they were, and what follows
from that is known already.
"""

from collections.abc import Mapping
from dataclasses import replace

from dlcontrol.acting.applying import Hands
from dlcontrol.judging.trust.distrusting import Distrust
from dlcontrol.situation.ports import (
    Entry,
    Pod,
    PodKey,
    PodPhase,
)
from dlcontrol.situation.scene import Seat
from dlcontrol.situation.status import Booking
from dlcore.model import JobId, NodeName

Pods = Mapping[PodKey, Pod]
Seats = Mapping[JobId, Mapping[NodeName, Seat]]


class Seating:
    """Remembers the seats of the last look; one for the life of a controller."""

    def __init__(self, hands: Hands, distrust: Distrust) -> None:
        self._hands = hands
        self._distrust = distrust
        self._seats: Seats = {}
        self.changed: list[Seat] = []
        """Those that are not as they were at the look before."""

    def look(self, entries: Mapping[JobId, Entry], pods: Pods) -> Seats:
        """Say of each booking what is known."""
        self.changed = []
        self._seats = {
            job: {
                booking.node: self._seat(PodKey(job, booking.node), booking, pods=pods)
                for booking in entry.status.pods
            }
            for job, entry in entries.items()
            if entry.status.pods
        }
        return self._seats

    def _seat(self, key: PodKey, booking: Booking, *, pods: Pods) -> Seat:
        pod = pods.get(key) or Pod(key, PodPhase.LOST, reason="NotObserved")
        contact = self._hands.contact(key)
        refusal = self._hands.refusal(key.job, booking)
        if refusal and pod.phase is PodPhase.PENDING:
            # A pod that a quota or an admission rule refuses waits until a person acts.
            pod = replace(pod, reason="NotTaken", message=refusal, stuck=True)
        lie = self._distrust.find(key.job, booking, pod)
        untrusted = lie.sentence if lie is not None else ""
        asked = self._hands.has_asked(key.job, booking)
        fresh = self._hands.is_fresh(key.job, booking)
        seat = self._seats.get(key.job, {}).get(key.node)
        if (
            seat is not None
            and (seat.pod is pod and seat.contact is contact)
            and (seat.booking, seat.asked, seat.fresh) == (booking, asked, fresh)
            and seat.untrusted == untrusted
        ):
            return seat
        made = Seat(
            key,
            booking,
            pod,
            contact,
            asked=asked,
            fresh=fresh,
            untrusted=untrusted,
            claimed=lie.claimed if lie is not None else frozenset(),
        )
        self.changed.append(made)
        return made
