"""
A pod whose SideCar reports something impossible is set aside, and every other job goes on.

A SideCar lives in its user's image, and a training of the same user can reach it. So it is a witness and no
authority. The controller compares its reports with what it knows by itself: the recorded leader, the commands
that it sent, the GPUs that decisions ever gave to the job. After a contradiction no report of that SideCar
counts any longer, the controller ends its pod, and the GPUs that the pod may hold stay with it until the
platform has proven that end.

Two things look like lies and are none. Another controller that leads by now is recorded before it
commands anything, so the record is read again, and then this controller ends (:class:`Fenced`). And a
record that was restored from a backup is older than what SideCars have heard: a controller that finds
this at its beginning goes on in a later epoch (:class:`Behind`).
"""

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import NamedTuple

from dlcontrol.judging.trust.contradictions import (
    contradicts_itself,
    find_disobedience,
    iter_disobedient,
)
from dlcontrol.situation.commanded import Commanded
from dlcontrol.situation.ports import (
    MOST_JUMP,
    Behind,
    Fenced,
    Platform,
    Pod,
)
from dlcontrol.situation.scene import Doubt, Scene, Seat
from dlcontrol.situation.status import Booking
from dlcore.model import JobId
from dlwire.messages import State

log = logging.getLogger(__name__)

_PodStart = tuple[JobId, Booking, str]
"""One start of a pod's container, as far as the platform can tell."""


class Lie(NamedTuple):
    """An impossible report of a SideCar."""

    sentence: str
    doubt: Doubt | None = None
    """Set where another controller could have made it so."""
    claimed: frozenset[str] = frozenset()
    """GPUs that it may hold all the same, because an earlier controller could have given it these."""


class Distrust:
    """Which pods are set aside; one for the life of a controller."""

    def __init__(self, platform: Platform, epoch: int, *, may_rise: bool = True) -> None:
        """It ``may_rise`` to a later epoch once, and never twice in a row at the word of SideCars."""
        self._platform = platform
        self._epoch = epoch
        self._may_rise = may_rise
        self._judged: dict[_PodStart, Lie] = {}
        self._later: dict[_PodStart, Doubt] = {}
        """SideCars that obey a later epoch than ours although no other controller leads."""
        self._inherited: dict[tuple[JobId, Booking], frozenset[str]] = {}
        """Which GPUs a pod of an earlier controller held when this one met it, by its names for them."""
        self._unheard: list[Seat] = []
        """Those that are still to be heard, because what is recorded could not be read."""

    @property
    def is_any(self) -> bool:
        """Whether any pod is set aside."""
        return bool(self._judged)

    def find(self, job: JobId, booking: Booking, pod: Pod) -> Lie | None:
        """Return why a pod is set aside, if it is."""
        return self._judged.get((job, booking, pod.start))

    def is_met(self, seat: Seat) -> bool:
        """Whether nothing more has to be heard of it before anything is decided."""
        return bool(seat.untrusted) or _start_of(seat) in self._later

    def keep(self, scene: Scene) -> None:
        """Remember nothing of pods that are gone."""
        if not self._judged and not self._inherited:
            return
        booked = {(job, pod) for job, entry in scene.entries.items() for pod in entry.status.pods}
        self._judged = {at: lie for at, lie in self._judged.items() if at[:2] in booked}
        self._inherited = {at: had for at, had in self._inherited.items() if at in booked}

    async def look(
        self,
        scene: Scene,
        changed: Iterable[Seat],
        commanded: Mapping[tuple[JobId, Booking], Commanded],
    ) -> bool:
        """
        Hear what SideCars say now; tells whether a pod was set aside.

        Raises :class:`Fenced` if another controller leads.
        """
        found = False
        # A seat is listed as changed in one cycle only. If the record cannot be read, NotKept
        # leaves the list as it is, so that the next cycle hears all of them.
        self._unheard = [*filter(partial(_is_there, scene), self._unheard), *changed]
        for seat in [*self._unheard, *iter_disobedient(scene, commanded)]:
            at = _start_of(seat)
            if seat.untrusted or seat.has_ended or at in self._later:
                continue
            lie = self._find_lie(scene, seat, told=commanded.get(at[:2]))
            if lie is None or (lie.doubt is not None and await self._is_excused(seat, lie.doubt)):
                continue
            log.error("the SideCar of %s is not trusted any more: %s", seat.key, lie.sentence)
            # Of this start of the container: the processes of the next one are other witnesses.
            self._judged[at] = lie
            found = True
        self._unheard.clear()
        return found

    def rise(self) -> None:
        """Raise :class:`Behind` if SideCars have heard of later controllers than are recorded."""
        if not self._later:
            return
        (job, booking, _), doubt = max(self._later.items(), key=lambda each: each[1].epoch)
        raise Behind(
            doubt.epoch + 1,
            f"the SideCar of {job} on {booking.node} obeys epoch {doubt.epoch}, no other controller leads,"
            f" and the record says epoch {self._epoch}, so the record was restored from a backup",
        )

    async def _is_excused(self, seat: Seat, doubt: Doubt) -> bool:
        """Whether it may be true; raises :class:`Fenced` if it is by what is recorded."""
        if await self._platform.is_overtaken():
            raise Fenced(f"the SideCar of {seat.key} obeys another controller, which leads by now")
        is_near = self._epoch < doubt.epoch <= self._epoch + MOST_JUMP
        is_possible = self._may_rise and not seat.fresh and not doubt.installation
        if not (is_near and is_possible and seat.state is None):
            return False
        self._later[_start_of(seat)] = doubt
        return True

    def end_meeting(self) -> None:
        """From now on a SideCar that obeys a later epoch has it from no controller."""
        self._may_rise = False

    def _find_lie(self, scene: Scene, seat: Seat, *, told: Commanded | None) -> Lie | None:
        doubt, state = seat.contact.doubt, seat.contact.state
        if doubt is None and state is not None and state.epoch > self._epoch:
            doubt = Doubt(state.epoch)
        if doubt is not None:
            return Lie(doubt.sentence, doubt)
        if state is None:
            return None
        sentence = contradicts_itself(state) or find_disobedience(
            scene, seat, epoch=self._epoch, state=state, told=told
        )
        return Lie(sentence) if sentence else self._overclaims(scene, seat, state=state, told=told)

    def _overclaims(
        self, scene: Scene, seat: Seat, *, state: State, told: Commanded | None
    ) -> Lie | None:
        """Find the GPUs that it claims to hold and that no decision can have given to it."""
        held = frozenset(state.held)
        if not held:
            return None
        at = (seat.key.job, seat.booking)
        given = told.gpus if told is not None else frozenset[str]()
        if held <= given:
            return None
        if told is None and not seat.fresh and at not in self._inherited:
            # At the first meeting only: later claims are compared with the commands that we sent.
            self._inherited[at] = held
        inherited = self._inherited.get(at, frozenset())
        beyond = scene.gpu_names.find_all(seat.key.node, held, state=state) - scene.recorded_for(
            seat
        )
        if not beyond:
            return None
        owners = {ref: scene.claims[ref] for ref in sorted(beyond) if ref in scene.claims}
        if held - given <= inherited and not owners:
            return None  # A restored record may not know of these.
        ref = next(iter(owners), min(beyond))
        whose = f"was decided for {owners[ref]}" if ref in owners else "was never decided for it"
        return Lie(f"it says that it holds GPU {ref}, which {whose}", claimed=held & inherited)


def _is_there(scene: Scene, seat: Seat) -> bool:
    return scene.seats_of(seat.key.job).get(seat.key.node) is seat


def _start_of(seat: Seat) -> _PodStart:
    return seat.key.job, seat.booking, seat.pod.start
