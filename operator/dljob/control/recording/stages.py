"""Records the phases of changes of GPUs by the reports of SideCars, with their times.

A SideCar reports each change of its phase, but short phases may be over before the report arrives.
A missed phase follows from the durations of saving, stopping and starting, which the SideCar
reports after each change. The first report of a SideCar is not recorded: an earlier controller may
have done so.
"""

from collections.abc import Iterator
from typing import NamedTuple

from dljob.control.situation.ports import PodKey
from dljob.core.model import JobId
from dljob.core.recording.record import Stage
from dljob_wire.messages import Change, Phase, Saving, State

_STEPS = {
    Phase.CHECKPOINTING: 1,
    Phase.STOPPING: 2,
    Phase.STOPPED: 3,
    Phase.STARTING: 4,
    Phase.RUNNING: 5,
}
"""The progress of a change in each phase; 0 before a change."""

_NOTHING = Change(generation=0)


class _Heard(NamedTuple):
    incarnation: str
    generation: int
    """The generation of the present start."""
    step: int


class Stages:
    """The last reported phase of each pod."""

    def __init__(self) -> None:
        self._heard: dict[PodKey, _Heard] = {}

    def forget(self, job: JobId) -> None:
        for key in [key for key in self._heard if key.job == job]:
            del self._heard[key]

    def hear(self, key: PodKey, state: State, now: float) -> Iterator[tuple[Stage, float]]:
        """Yield the phases that were reached since the last report, with their times."""
        step = _STEPS.get(state.phase)
        former = self._heard.get(key)
        if step is None:
            # The pod is ready, or its training ended by itself: the next phase is a start.
            self._heard[key] = _Heard(state.incarnation, state.held_generation, 3)
            return
        self._heard[key] = _Heard(state.incarnation, state.held_generation, step)
        if former is None or former.incarnation != state.incarnation:
            return
        is_new_start = step >= 4 and state.held_generation != former.generation
        # A training that runs has not begun its next change.
        begun = former.step if former.step < 5 else 0
        if step == former.step and not is_new_start:
            return
        # The former start was given up before it ran.
        if is_new_start and begun == 4:
            begun = 3
        yield from _passed(begun, step, change=state.change or _NOTHING, now=now)


def _passed(begun: int, step: int, *, change: Change, now: float) -> Iterator[tuple[Stage, float]]:
    """Yield the phases after ``begun`` up to ``step``, which is reached now."""
    # Computed backwards from the present phase.
    started = now - (change.start_seconds if step == 5 else 0.0)
    stopped = started
    stopping = stopped - (change.stop_seconds if step >= 3 else 0.0)
    saves = change.saving is not Saving.NONE or begun == 1
    saving = stopping - (change.checkpoint_seconds if step >= 2 else 0.0)
    if begun < 1 <= step:
        yield Stage.SAVING, saving
    if begun < 2 <= step and saves:
        yield Stage.SAVED, stopping
    if begun < 3 <= step:
        yield Stage.STOPPED, stopped
    if begun < 4 <= step:
        yield Stage.STARTED, started
