"""Turns scenes and reports into rows of the record.

:mod:`dljob.control.learning.learned_state` passes every scene to the recorder and keeps the rows in the
store. A row that follows from the status of a job has the same id under every controller, so a
restarted controller adds no duplicates.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dljob.control.situation.ports import Entry, PodKey
from dljob.control.situation.scene import Scene
from dljob.core.documents.jobschema import USER_LABEL
from dljob.core.measuring import Resumption
from dljob.core.model import GpuRef, JobId
from dljob.core.planning import Start, Step, Stop, Wait
from dljob.core.recording.record import (
    Decided,
    Ended,
    Expected,
    Given,
    Gpu,
    Line,
    Phase,
    Progress,
    Stage,
    Submitted,
)
from dljob.store.rows import RecordRow, shorten
from dljob.store.tables import GpuRow
from dljob_wire.messages import Change, Saving, State
from dljob_wire.messages import Phase as SideCarPhase

PROGRESS_SECONDS = 30.0
"""The interval of a job's Progress lines; each job with GPUs adds a second."""

REMOVED = "Removed"
"""The outcome of a job that was removed before it ended."""


_STEPS = {
    SideCarPhase.CHECKPOINTING: 1,
    SideCarPhase.STOPPING: 2,
    SideCarPhase.STOPPED: 3,
    SideCarPhase.STARTING: 4,
    SideCarPhase.RUNNING: 5,
}
"""The progress of a change in each phase; 0 before a change."""

_NOTHING = Change(generation=0)


class _Heard(NamedTuple):
    incarnation: str
    generation: int
    """The generation of the present start."""
    step: int


class Stages:
    """
    The last reported phase of each pod.

    A SideCar reports each change of its phase, but short phases may be over before the report arrives. A missed phase
    follows from the durations of saving, stopping and starting, which the SideCar reports after each change. The first
    report of a SideCar is not recorded: an earlier controller may have done so.
    """

    def __init__(self) -> None:
        self._heard: dict[PodKey, _Heard] = {}

    def forget(self, job: JobId) -> None:
        for key in [key for key in self._heard if key.job == job]:
            del self._heard[key]

    def hear(self, key: PodKey, state: State, now: float) -> Iterator[tuple[Stage, float]]:
        """Yield the phases that were reached since the last report, with their times."""
        if state.phase is SideCarPhase.CHANGING:
            return  # The processes that stay are neither saved nor stopped.
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
        if _lives_on(state):
            pause = state.change.pause_seconds if state.change is not None else 0.0
            if is_new_start and pause > 0.0:
                yield Stage.PAUSED, now - pause
            return
        # A training that runs has not begun its next change.
        begun = former.step if former.step < 5 else 0
        if step == former.step and not is_new_start:
            return
        # The former start was given up before it ran.
        if is_new_start and begun == 4:
            begun = 3
        yield from _passed(begun, step, change=state.change or _NOTHING, now=now)


def _lives_on(state: State) -> bool:
    """Return True if the present members are those of a live change."""
    change = state.change
    return change is not None and change.live and change.generation == state.held_generation


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


@dataclass(slots=True)
class _Known:
    """The part of a job's history that is recorded."""

    entry: Entry
    generation: int = -1
    progress_at: float = 0.0


class Recorder:
    """Records the history; one for the life of a controller."""

    def __init__(self) -> None:
        self._known: dict[JobId, _Known] = {}
        self._reasons: dict[GpuRef, str] = {}
        """The reason why each GPU is out of service; empty if it is in service."""
        self._rows: dict[GpuRef, GpuRow] = {}
        self._stages = Stages()

    def update(self, scene: Scene) -> list[RecordRow]:
        """Record the changes of jobs since the last scene."""
        rows: list[RecordRow] = []
        every = PROGRESS_SECONDS + scene.holding
        for job, entry in scene.entries.items():
            known = self._known.get(job)
            # The job has not changed: an entry is the same object until it changes.
            if known is not None and known.entry is entry:
                continue
            if known is None or known.entry.status.submitted_at != entry.status.submitted_at:
                known = self._known[job] = _Known(entry)
                rows.append(_submission(entry))
            rows += self._follow(known, entry, every=every, now=scene.now)
            known.entry = entry
        if len(self._known) > len(scene.entries):
            rows += self._forget(scene)
        return rows

    def _follow(
        self, known: _Known, entry: Entry, *, every: float, now: float
    ) -> Iterator[RecordRow]:
        status = entry.status
        if known.generation != status.generation and status.generation:
            known.generation = status.generation
            yield from _allocation(entry)
        if status.is_final:
            # Only once, although the entry may change again before it is removed.
            if known.progress_at != float("inf"):
                known.progress_at = float("inf")
                yield _end(entry, status.phase.value, at=status.finished_at or now)
        elif (
            status.placement is not None
            and now >= known.progress_at + every
            and status.iterated_at > known.progress_at
        ):
            known.progress_at = now
            yield _progress(entry, now)

    def _forget(self, scene: Scene) -> Iterator[RecordRow]:
        for job in self._known.keys() - scene.entries.keys():
            entry = self._known.pop(job).entry
            self._stages.forget(job)
            # The end of a finished job is recorded before its time to live removes the job.
            if not entry.status.is_final:
                yield _end(entry, REMOVED, at=scene.now)

    def look_at_gpus(self, rows: Sequence[GpuRow], now: float) -> list[RecordRow]:
        """Record the GPUs that went into service or out of it."""
        there = {GpuRef(row.node, row.gpu): row for row in rows}
        reasons = {ref: row.reason for ref, row in there.items()}
        gone = "its node is missing"
        reasons |= dict.fromkeys(self._reasons.keys() - reasons.keys(), gone)
        # At first every GPU, so that the record names them all.
        changed = [ref for ref, reason in reasons.items() if self._reasons.get(ref) != reason]
        self._rows |= there
        self._reasons = reasons
        return [_service(self._rows[ref], reasons[ref], now=now) for ref in changed]

    def hear(self, entry: Entry, key: PodKey, state: State, now: float) -> list[RecordRow]:
        """Record the phases of a change that a SideCar reports."""
        generation = entry.status.generation
        return [
            _phase(
                entry, Phase(at=at, job=key.job, phase=stage, generation=generation, node=key.node)
            )
            for stage, at in self._stages.hear(key, state, now)
        ]

    def resume(self, entry: Entry, resumption: Resumption) -> list[RecordRow]:
        """Record the first step after a start."""
        job, generation = entry.job.id, resumption.generation
        line = Phase(at=resumption.at, job=job, phase=Stage.FIRST_STEP, generation=generation)
        return [_phase(entry, line)]


def decided(
    step: Step, *, at: float, sentence: str, generation: int, expected: Expected | None
) -> Decided:
    """Return the line of a step of a plan."""
    new = (
        None
        if isinstance(step, Wait | Stop)
        else step.placement
        if isinstance(step, Start)
        else step.new
    )
    return Decided(
        at=at,
        job=step.job,
        step=type(step).__name__.lower(),
        generation=generation,
        cause=step.cause.code.value,
        for_job=step.cause.job,
        sentence=shorten(sentence),
        old=None if isinstance(step, Start | Wait) else step.old,
        new=new,
        expected=expected,
    )


def standing_rows(entries: Iterable[Entry]) -> Iterator[RecordRow]:
    """Yield the rows that follow from the present status of jobs, in case the store deleted them."""
    for entry in entries:
        yield _submission(entry)
        if entry.status.generation:
            yield from _allocation(entry)
        if entry.status.is_final and entry.status.finished_at is not None:
            yield _end(entry, entry.status.phase.value, at=entry.status.finished_at)


def _row(line: Line, *name: object) -> RecordRow:
    return RecordRow.of(line, "/".join(map(str, (type(line).__name__.lower(), *name))))


def _name(entry: Entry) -> str:
    """Return an id that distinguishes a job from later jobs of the same name."""
    return f"{entry.job.id}@{entry.status.submitted_at:.3f}"


def _submission(entry: Entry) -> RecordRow:
    job = entry.job
    line = Submitted(
        at=entry.status.submitted_at,
        job=job.id,
        options=job.gpus.options,
        requested=job.gpus.requested,
        priority=job.priority,
        model="" if job.type.is_of_one_job else job.type.model,
        user=job.labels.get(USER_LABEL, ""),
    )
    return _row(line, _name(entry))


def _allocation(entry: Entry) -> Iterator[RecordRow]:
    status = entry.status
    since = max(0.0, status.counted_at - status.decided_at)
    gpus = status.placement.gpus if status.placement is not None else 0
    given = Given(
        at=status.decided_at,
        job=entry.job.id,
        generation=status.generation,
        placement=status.placement,
        gpu_seconds=max(0.0, status.service - gpus * since),
    )
    yield _row(given, _name(entry), status.generation)
    if status.placement is not None:
        generation = status.generation
        asked = Phase(
            at=status.decided_at, job=entry.job.id, phase=Stage.ASKED, generation=generation
        )
        yield _phase(entry, asked)


def _phase(entry: Entry, line: Phase) -> RecordRow:
    return _row(line, _name(entry), line.generation, line.phase.value, line.node)


def _progress(entry: Entry, now: float) -> RecordRow:
    status = entry.status
    line = Progress(
        at=now,
        job=entry.job.id,
        iteration=float(status.iteration),
        iterations_total=status.iterations_total or None,
        iterations_per_second=status.speed,
        metric=status.metric,
        lost_seconds=status.lost_seconds,
    )
    return _row(line, _name(entry), f"{now:.3f}")


def _end(entry: Entry, outcome: str, *, at: float) -> RecordRow:
    status = entry.status
    line = Ended(
        at=at,
        job=entry.job.id,
        outcome=outcome,
        gpu_seconds=status.service,
        reshapes=status.reshapes,
        message=status.message,
        lost_seconds=status.lost_seconds,
    )
    return _row(line, _name(entry))


def _service(row: GpuRow, reason: str, *, now: float) -> RecordRow:
    line = Gpu(
        at=now,
        node=row.node,
        gpu=row.gpu,
        gpu_type=row.gpu_type,
        uuid=row.uuid,
        in_service=not reason,
        reason=reason,
    )
    return _row(line, row.node, row.gpu, f"{now:.3f}")
