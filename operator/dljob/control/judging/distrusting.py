"""Distrusts a pod whose SideCar reports something impossible; every other job goes on.

A SideCar lives in its user's image, and the same user's training can reach it, so its reports are
not authoritative. The controller compares them with its own knowledge: the recorded leader, the
commands that it sent, the GPUs that decisions ever gave to the job. After a contradiction no report
of that SideCar counts any longer, the controller ends its pod, and the pod keeps its GPUs until the
platform has proven the end. Two cases look like false reports but are not. Another controller that
leads by now is recorded before it commands anything, so the record is read again, and then this
controller ends (:class:`Fenced`). And a record restored from a backup is older than the commands
that SideCars have received: a controller that finds this at its start continues in a later epoch
(:class:`Behind`).
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from dljob.control.gpus.visibility import NOT_RELEASED
from dljob.control.situation.dialer import ForeignEpoch
from dljob.control.situation.job_pods import Contradiction, JobPod, PodStart
from dljob.control.situation.ports import MOST_JUMP, Behind, Fenced, Platform
from dljob.control.situation.scene import Scene
from dljob.control.situation.sent import Commanded
from dljob.control.situation.status import Booking
from dljob.core.model import JobId
from dljob_wire.messages import Phase, Run, State, Stop, Term
from dljob_wire.training import GATHERING

log = logging.getLogger(__name__)

COMPLAINING: Final = frozenset({NOT_RELEASED, "ProcessesDoNotEnd"})
"""Problems with which a SideCar may need long to obey a command."""
PATIENCE: Final = 6.0
"""The factor by which the controller waits longer for a SideCar that reports one of these problems."""

_QUIET = frozenset({Phase.READY, Phase.STOPPED, Phase.EXITED, Phase.FAILED})


class DistrustedPods:
    """The distrusted pods; one object for the life of a controller."""

    def __init__(self, platform: Platform, epoch: int, *, may_rise: bool = True) -> None:
        """``may_rise`` allows one rise to a later epoch; never two in a row because of SideCars'
        reports.
        """
        self._platform = platform
        self._epoch = epoch
        self._may_rise = may_rise
        self.found: dict[PodStart, Contradiction] = {}
        """The distrusted pods with the reasons."""
        self._later: dict[PodStart, ForeignEpoch] = {}
        """SideCars that obey a later epoch than ours although no other controller leads."""
        self._inherited: dict[tuple[JobId, Booking], frozenset[str]] = {}
        """The GPUs that a pod of an earlier controller held at the first contact, by its names."""
        self._unheard: list[JobPod] = []
        """Pods that are still to be examined, because the record could not be read."""

    def is_met(self, job_pod: JobPod) -> bool:
        """Return True if decisions need not wait for this SideCar."""
        return bool(job_pod.untrusted) or _start_of(job_pod) in self._later

    def keep(self, scene: Scene) -> None:
        if not self.found and not self._inherited:
            return
        booked = {(job, pod) for job, entry in scene.entries.items() for pod in entry.status.pods}
        self.found = {
            at: contradiction for at, contradiction in self.found.items() if at[:2] in booked
        }
        self._inherited = {at: had for at, had in self._inherited.items() if at in booked}

    async def examine(
        self,
        scene: Scene,
        changed: Iterable[JobPod],
        *,
        commanded: Mapping[tuple[JobId, Booking], Commanded],
    ) -> bool:
        """
        Examine the present reports; return True if another pod is distrusted.

        Raises :class:`Fenced` if another controller leads.
        """
        found = False
        # A pod is listed as changed in one cycle only. If the record cannot be read, NotKept leaves
        # the list, so that the next cycle examines all of them.
        self._unheard = [
            *(pod for pod in self._unheard if scene.pods_of(pod.key.job).get(pod.key.node) is pod),
            *changed,
        ]
        for job_pod in [*self._unheard, *_iter_disobedient(scene, commanded)]:
            at = _start_of(job_pod)
            if job_pod.untrusted or job_pod.has_ended or at in self._later:
                continue
            contradiction = self._find_contradiction(scene, job_pod, told=commanded.get(at[:2]))
            if contradiction is None or (
                contradiction.foreign is not None
                and await self._is_excused(job_pod, contradiction.foreign)
            ):
                continue
            log.error(
                "the SideCar of %s is not trusted any more: %s", job_pod.key, contradiction.sentence
            )
            # Only for this start of the container: the next start has other processes.
            self.found[at] = contradiction
            found = True
        self._unheard.clear()
        return found

    def end_meeting(self) -> None:
        """
        Raise :class:`Behind` if SideCars obey later controllers than are recorded.

        A later epoch that a SideCar reports after this call comes from no controller.
        """
        if not self._later:
            self._may_rise = False
            return
        (job, booking, _), foreign = max(self._later.items(), key=lambda each: each[1].epoch)
        raise Behind(
            foreign.epoch + 1,
            f"the SideCar of {job} on {booking.node} obeys epoch {foreign.epoch}, no other controller leads,"
            f" and the record says epoch {self._epoch}, so the record was restored from a backup",
        )

    async def _is_excused(self, job_pod: JobPod, foreign: ForeignEpoch) -> bool:
        """Return True if the report may be true; raises :class:`Fenced` if the record says so."""
        if await self._platform.is_overtaken():
            raise Fenced(
                f"the SideCar of {job_pod.key} obeys another controller, which leads by now"
            )
        is_near = self._epoch < foreign.epoch <= self._epoch + MOST_JUMP
        is_possible = self._may_rise and not job_pod.fresh and not foreign.installation
        if not (is_near and is_possible and job_pod.state is None):
            return False
        self._later[_start_of(job_pod)] = foreign
        return True

    def _find_contradiction(
        self, scene: Scene, job_pod: JobPod, *, told: Commanded | None
    ) -> Contradiction | None:
        foreign, state = job_pod.contact.foreign, job_pod.contact.state
        if foreign is None and state is not None and state.epoch > self._epoch:
            foreign = ForeignEpoch(state.epoch)
        if foreign is not None:
            return Contradiction(foreign.sentence, foreign)
        if state is None:
            return None
        sentence = _contradicts_itself(state) or _find_disobedience(
            scene, job_pod, epoch=self._epoch, state=state, told=told
        )
        return (
            Contradiction(sentence)
            if sentence
            else self._overclaims(scene, job_pod, state=state, told=told)
        )

    def _overclaims(
        self, scene: Scene, job_pod: JobPod, *, state: State, told: Commanded | None
    ) -> Contradiction | None:
        """Find the GPUs that the SideCar claims and that no decision can have given to it."""
        held = frozenset(state.held)
        if not held:
            return None
        at = (job_pod.key.job, job_pod.booking)
        given = told.gpus if told is not None else frozenset[str]()
        if held <= given:
            return None
        if told is None and not job_pod.fresh and at not in self._inherited:
            # At the first contact only: later claims are compared with our own commands.
            self._inherited[at] = held
        inherited = self._inherited.get(at, frozenset())
        beyond = scene.gpu_names.find_all(job_pod.key.node, held, state=state) - scene.recorded_for(
            job_pod
        )
        if not beyond:
            return None
        owners = {ref: scene.claims[ref] for ref in sorted(beyond) if ref in scene.claims}
        if held - given <= inherited and not owners:
            return None  # A restored record may lack these decisions.
        ref = next(iter(owners), min(beyond))
        whose = f"was decided for {owners[ref]}" if ref in owners else "was never decided for it"
        return Contradiction(
            f"it says that it holds GPU {ref}, which {whose}", claimed=held & inherited
        )


def _start_of(job_pod: JobPod) -> PodStart:
    return job_pod.key.job, job_pod.booking, job_pod.pod.start


def _find_disobedience(
    scene: Scene, job_pod: JobPod, *, epoch: int, state: State, told: Commanded | None
) -> str:
    """Return the command that the SideCar claims to obey and that no controller sent; empty if
    none.
    """
    if state.epoch < epoch:
        known = scene.entries[job_pod.key.job].status.run_generation
        if state.generation > known + MOST_JUMP:
            return f"it obeys generation {state.generation}, and the latest decided is {known}"
        return _is_late(scene, job_pod, state=state, told=told)
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
    return _is_late(scene, job_pod, state=state, told=told)


def _iter_disobedient(
    scene: Scene, commanded: Mapping[tuple[JobId, Booking], Commanded]
) -> Iterator[JobPod]:
    """Find the SideCars that have left an old command undone."""
    for (job, booking), told in commanded.items():
        job_pod = scene.pods_of(job).get(booking.node)
        state = job_pod.state if job_pod is not None and job_pod.booking == booking else None
        if (
            job_pod is not None
            and state is not None
            and _is_late(scene, job_pod, state=state, told=told)
        ):
            yield job_pod


def _contradicts_itself(state: State) -> str:
    """Return why no command can lead to this state; empty if one can."""
    target = state.target
    if state.term != (Term(0, 0) if target is None else target.term):
        return f"it says that it obeys {state.term}, and shows another command"
    if state.released == bool(state.held) or state.released != (state.phase in _QUIET):
        return f"it says that it is {state.phase.value}, and contradicts that by the GPUs that it holds"
    is_begun = isinstance(target, Run) and target.generation == state.held_generation
    if is_begun and state.held and isinstance(target, Run) and state.held != target.gpus:
        return "it says that it holds other GPUs than those of the command that it obeys"
    return ""


def _may_be(state: State, told: Commanded) -> bool:
    """Return True if the state shows the sent command, or the same stop before it had to hurry."""
    if isinstance(told.target, Stop) and isinstance(state.target, Stop):
        return state.target.leave == told.target.leave or not told.is_exact
    target = state.target
    if isinstance(target, Run) and isinstance(told.target, Run):
        # Ignore what may differ in the same term: a later trial, the way to this run, the reason
        # (for people), and ends, which an older SideCar does not know.
        ours = told.target
        target = replace(target, reason=ours.reason, ended=ours.ended, live=ours.live)
        target = replace(target, trial=ours.trial, live_trial=ours.live_trial)
    return not told.is_exact or target == told.target


def _is_late(scene: Scene, job_pod: JobPod, *, state: State, told: Commanded | None) -> str:
    """Return the overdue command that the SideCar has not obeyed; empty if none."""
    if told is None or not job_pod.contact.reachable or _has_done(state, told):
        return ""
    if not told.is_for(state.incarnation) or told.start != job_pod.pod.start:
        return ""  # The container has restarted, and is about to get its command.
    job = scene.entries[job_pod.key.job].job
    limit = job.checkpoint.timeout_seconds + job.checkpoint.grace_seconds + scene.obey_seconds
    if state.phase is Phase.CHANGING:
        # It ends by limits of its own.
        limit += (GATHERING + 1) * job.live_seconds
    if any(problem.name in COMPLAINING for problem in state.problems):
        limit *= PATIENCE
    if scene.now - told.at <= limit:
        return ""
    what = "run" if isinstance(told.target, Run) else "stop"
    return f"the controller ordered it to {what} {scene.now - told.at:.0f} s ago, and it has still not done so"


def _has_done(state: State, told: Commanded) -> bool:
    target = told.target
    if state.generation < target.generation:
        return False
    if isinstance(target, Stop) and target.leave and target.generation == state.generation:
        return False  # Its pod would have ended.
    return state.released or state.held_generation >= target.generation or state.term > target.term
