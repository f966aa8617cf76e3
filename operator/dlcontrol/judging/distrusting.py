"""
Pods whose SideCars say what cannot be are set aside, each alone, and every other job goes on.

A SideCar lives in its user's image, and a training of the same user can reach it. So it is a witness
and no authority. What it says is held against what this controller knows by itself: who leads, as it
is recorded; what it was told; which GPUs were ever decided for its job. Where that contradicts it,
nothing that it says counts any more, its pod is ended, and what it may hold stays with it until the
platform has proven that end.

Two things look like lies and are none. Another controller that leads by now is recorded before it
commands anything, so the record is read again, and then this controller ends (:class:`Fenced`). And a
record that was restored from a backup is older than what SideCars have heard: a controller that finds
this at its beginning goes on in a later epoch (:class:`Behind`).
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from dlcontrol.gpus.visibility import NOT_RELEASED
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
from dlwire.messages import Phase, Run, State, Stop, Term

log = logging.getLogger(__name__)

COMPLAINING: Final = frozenset({NOT_RELEASED, "ProcessesDoNotEnd"})
"""Why a SideCar that does what it is told may need long for it."""
PATIENCE: Final = 6.0
"""So many times as long is one waited for that complains of this."""

_QUIET = frozenset({Phase.READY, Phase.STOPPED, Phase.EXITED, Phase.FAILED})

_PodStart = tuple[JobId, Booking, str]
"""One start of a pod's container, as far as the platform can tell."""


class Lie(NamedTuple):
    """What a SideCar says that cannot be."""

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
        """Those of earlier controllers that obey a later epoch than ours, while nobody else leads."""
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
        self._unheard = [*filter(partial(_is_there, scene), self._unheard), *changed]
        for seat in [*self._unheard, *self._disobedient(scene, commanded)]:
            at = _start_of(seat)
            if seat.untrusted or seat.has_ended or at in self._later:
                continue
            lie = self._find_lie(scene, seat, commanded.get(at[:2]))
            if lie is None or (lie.doubt is not None and await self._is_excused(seat, lie.doubt)):
                continue
            log.error("the SideCar of %s is not trusted any more: %s", seat.key, lie.sentence)
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
            f"the SideCar of {job} on {booking.node} obeys epoch {doubt.epoch}, nobody else leads, and"
            f" what is recorded says epoch {self._epoch}: it was restored from a backup",
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
        """From now on whoever obeys a later epoch has heard of it without a controller."""
        self._may_rise = False

    # --- what cannot be

    def _find_lie(self, scene: Scene, seat: Seat, told: Commanded | None) -> Lie | None:
        doubt, state = seat.contact.doubt, seat.contact.state
        if doubt is None and state is not None and state.epoch > self._epoch:
            doubt = Doubt(state.epoch)
        if doubt is not None:
            return Lie(doubt.sentence, doubt)
        if state is None:
            return None
        sentence = _contradicts_itself(state) or self._disobeys(scene, seat, state, told)
        return Lie(sentence) if sentence else self._overclaims(scene, seat, state, told)

    def _disobeys(self, scene: Scene, seat: Seat, state: State, told: Commanded | None) -> str:
        """Say what it obeys that nobody can have told it; empty if all is well."""
        if state.epoch < self._epoch:
            known = scene.entries[seat.key.job].status.run_generation
            if state.generation > known + MOST_JUMP:
                return f"it obeys generation {state.generation}, and the latest decided is {known}"
            return _is_late(scene, seat, state, told)
        if told is None:
            return "it says that it obeys this controller, which has sent it no command"
        latest = told.target
        if state.generation > latest.generation:
            return (
                f"it obeys generation {state.generation} of this controller, whose latest is"
                f" {latest.generation}"
            )
        if state.generation == latest.generation and not _may_be(state, told):
            return f"it obeys another command of generation {latest.generation} than it was given"
        return _is_late(scene, seat, state, told)

    def _overclaims(
        self, scene: Scene, seat: Seat, state: State, told: Commanded | None
    ) -> Lie | None:
        """Find the GPUs that it holds, and that nobody can have given it."""
        held = frozenset(state.held)
        if not held:
            return None
        at = (seat.key.job, seat.booking)
        given = told.gpus if told is not None else frozenset[str]()
        if held <= given:
            return None
        if told is None and not seat.fresh and at not in self._inherited:
            self._inherited[at] = held
        inherited = self._inherited.get(at, frozenset())
        beyond = scene.refs_of(seat, held) - scene.recorded_for(seat)
        if not beyond:
            return None
        owners = {ref: scene.claims[ref] for ref in sorted(beyond) if ref in scene.claims}
        if held - given <= inherited and not owners:
            return None  # A restored record may not know of these.
        ref = next(iter(owners), min(beyond))
        whose = f"was decided for {owners[ref]}" if ref in owners else "was never decided for it"
        return Lie(f"it says that it holds GPU {ref}, which {whose}", claimed=held & inherited)

    def _disobedient(
        self, scene: Scene, commanded: Mapping[tuple[JobId, Booking], Commanded]
    ) -> Iterator[Seat]:
        """Find those that were told something long ago, and have still not done it."""
        for (job, booking), told in commanded.items():
            seat = scene.seats_of(job).get(booking.node)
            state = seat.state if seat is not None and seat.booking == booking else None
            if seat is not None and state is not None and _is_late(scene, seat, state, told):
                yield seat


def _is_there(scene: Scene, seat: Seat) -> bool:
    return scene.seats_of(seat.key.job).get(seat.key.node) is seat


def _start_of(seat: Seat) -> _PodStart:
    return seat.key.job, seat.booking, seat.pod.start


def _contradicts_itself(state: State) -> str:
    """Say in what a state cannot be that of a SideCar, whatever it was told; empty if it can."""
    target = state.target
    if state.term != (Term(0, 0) if target is None else target.term):
        return f"it says that it obeys {state.term}, and shows another command"
    if state.released == bool(state.held) or state.released != (state.phase in _QUIET):
        return f"it says that it is {state.phase.value}, and contradicts that by what it holds"
    is_begun = isinstance(target, Run) and target.generation == state.held_generation
    if is_begun and state.held and isinstance(target, Run) and state.held != target.gpus:
        return "it says that it holds other GPUs than those of the command that it obeys"
    return ""


def _may_be(state: State, told: Commanded) -> bool:
    """Whether it shows the command that it was given, or the same stop before it had to hurry."""
    if isinstance(told.target, Stop) and isinstance(state.target, Stop):
        return state.target.leave == told.target.leave or not told.is_exact
    target = state.target
    if isinstance(target, Run) and isinstance(told.target, Run):
        # A trial may be asked for later in the same term, and the reason is for people.
        target = replace(target, trial=told.target.trial, reason=told.target.reason)
    return not told.is_exact or target == told.target


def _is_late(scene: Scene, seat: Seat, state: State, told: Commanded | None) -> str:
    """Say what it was told and has had the time for; empty if it has done it, or has the time."""
    if told is None or not seat.contact.reachable or _has_done(state, told):
        return ""
    if not told.is_for(state.incarnation) or told.start != seat.pod.start:
        return ""  # It was started again since, and is about to be told.
    checkpoint = scene.entries[seat.key.job].job.checkpoint
    limit = checkpoint.timeout_seconds + checkpoint.grace_seconds + scene.obey_seconds
    if any(problem.name in COMPLAINING for problem in state.problems):
        limit *= PATIENCE
    if scene.now - told.at <= limit:
        return ""
    what = "run" if isinstance(told.target, Run) else "stop"
    return f"it was told to {what} {scene.now - told.at:.0f} s ago, and has still not done it"


def _has_done(state: State, told: Commanded) -> bool:
    target = told.target
    if state.generation < target.generation:
        return False
    if isinstance(target, Stop) and target.leave and target.generation == state.generation:
        return False  # Its pod would have ended.
    return state.released or state.held_generation >= target.generation or state.term > target.term
