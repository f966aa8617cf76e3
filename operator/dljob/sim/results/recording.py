"""
The record of a simulation (:mod:`dljob.core.recording.record`): made while a world plays, if it is asked for.

:mod:`dljob.sim.engine.world` notes decisions and events in a :class:`Recorder`; a world without one
keeps none of them, because a replay of a hundred thousand decisions would need the memory.
"""

import math
from dataclasses import dataclass, field, replace

from dljob.core.explaining import sentences
from dljob.core.model import Job, JobId, JobState, Node, NodeName, Placement, Snapshot
from dljob.core.planning import Plan, Start, Step, Stop, Wait
from dljob.core.recording.expecting import expect
from dljob.core.recording.record import (
    LIVE,
    RESTARTED,
    Clock,
    Decided,
    Given,
    Gpu,
    Header,
    Line,
    Phase,
    Progress,
    Record,
    Source,
    Stage,
    Submitted,
)
from dljob.sim.results.records import JobRecord


@dataclass(slots=True)
class _Course:
    """The course of a job so far."""

    generation: int = 0
    given: Placement | None = None
    decided_at: int | None = None
    """Where among the lines its latest decision is, until it is known what that has cost."""
    halted_at: float | None = None
    """Since when it does not train because of a change."""
    paused_for: int | None = None
    """Where among the lines the decision is whose live change has made it stand still."""
    lost_seconds: float = 0.0
    """How long the iterations took that it has repeated."""


@dataclass(slots=True)
class Recorder:
    """Takes down one run of a world."""

    nodes: tuple[Node, ...]
    lines: list[Line] = field(default_factory=list)
    _courses: dict[JobId, _Course] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.nodes:
            self.note_node(0.0, node.name)

    def note_node(self, at: float, name: NodeName, *, reason: str = "") -> None:
        """Note that the GPUs of a node are in service from now on, or the reason why they are not."""
        for node in self.nodes:
            if node.name == name:
                self.lines += [
                    Gpu(
                        at=at,
                        node=name,
                        gpu=gpu.index,
                        gpu_type=node.gpu_type,
                        in_service=not reason,
                        reason=reason,
                    )
                    for gpu in node.gpus
                ]

    def note_submission(self, at: float, job: Job) -> None:
        self._courses[job.id] = _Course()
        self.lines.append(
            Submitted(
                at=at,
                job=job.id,
                options=job.gpus.options,
                requested=job.gpus.requested,
                priority=job.priority,
                model=job.type.model,
            )
        )

    def note_plan(self, snapshot: Snapshot, plan: Plan) -> None:
        """Note what is decided, before anything of it is done."""
        expected = expect(snapshot, plan.steps)
        for step in plan.steps:
            course = self._courses[step.job]
            # As in the status of a DLJob, a reason to wait is no decision about its GPUs.
            course.generation += not isinstance(step, Wait)
            course.decided_at = len(self.lines)
            self.lines.append(
                Decided(
                    at=snapshot.now,
                    job=step.job,
                    step=type(step).__name__.lower(),
                    generation=course.generation,
                    cause=step.cause.code.value,
                    for_job=step.cause.job,
                    sentence=sentences.sentence_for_step(snapshot, step, worths=plan.worths),
                    old=None if isinstance(step, Start | Wait) else step.old,
                    new=_outcome(step),
                    expected=expected.get(step.job),
                )
            )
            if not isinstance(step, Wait):
                self._note_stage(step.job, snapshot.now, stage=Stage.ASKED)

    def note_state(self, at: float, state: JobState, *, gpu_seconds: float) -> None:
        """Note which GPUs are the job's from now on, if that changes, and how far it is."""
        course = self._courses[state.id]
        if course.given == state.placement:
            return
        course.given = state.placement
        self.lines.append(
            Given(
                at=at,
                job=state.id,
                generation=course.generation,
                placement=state.placement,
                gpu_seconds=gpu_seconds,
            )
        )

    def note_saving(self, at: float, state: JobState, *, seconds: float | None) -> None:
        """Note that the job stops training for a change; it is saved ``seconds`` later, or never."""
        course = self._courses[state.id]
        course.halted_at = at
        self._note_stage(state.id, at, stage=Stage.SAVING)
        if seconds is not None:
            self._note_stage(state.id, at + seconds, stage=Stage.SAVED)
        self.note_progress(at, state)

    def note_pause(self, at: float, state: JobState) -> None:
        """Note that the job stands still for a live change: it neither saves nor stops."""
        course = self._courses[state.id]
        course.halted_at, course.paused_for = at, course.decided_at
        self._note_stage(state.id, at, stage=Stage.PAUSED)
        self.note_progress(at, state)

    def note_gone(self, at: float, job: JobId) -> None:
        self._note_stage(job, at, stage=Stage.STOPPED)

    def note_start(self, at: float, job: JobId) -> None:
        self._note_stage(job, at, stage=Stage.STARTED)

    def note_first_step(self, at: float, state: JobState, *, lost_seconds: float) -> None:
        """Note that it trains, and what the change that made it stand still has cost."""
        course = self._courses[state.id]
        self._note_stage(state.id, at, stage=Stage.FIRST_STEP)
        course.lost_seconds = lost_seconds
        self.note_progress(at, state)
        place = course.decided_at if course.paused_for is None else course.paused_for
        if place is not None:
            # The outcome is added to the decision, as a live system does in its history.
            decided = self.lines[place]
            assert isinstance(decided, Decided)
            since = course.halted_at if course.halted_at is not None else decided.at
            # A trial of a live change belongs to no change of GPUs.
            how = RESTARTED if course.paused_for is None else LIVE
            how = how if decided.old is not None and decided.new is not None else ""
            self.lines[place] = replace(decided, cost_seconds=at - since, how=how)
            if place == course.decided_at:
                course.decided_at = None
        course.halted_at = course.paused_for = None

    def note_progress(self, at: float, state: JobState) -> None:
        total = state.iterations_total
        self.lines.append(
            Progress(
                at=at,
                job=state.id,
                iteration=state.iterations_at(at),
                iterations_total=total if math.isfinite(total) and total > 0.0 else None,
                iterations_per_second=state.speed,
                lost_seconds=self._courses[state.id].lost_seconds,
            )
        )

    def note_end(self, at: float, kept: JobRecord) -> None:
        self.lines.append(kept.write_end(at))

    def _note_stage(self, job: JobId, at: float, *, stage: Stage) -> None:
        generation = self._courses[job].generation
        self.lines.append(Phase(at=at, job=job, phase=stage, generation=generation))

    def record(self, *, until: float, policy: str, title: str) -> Record:
        return Record.of(
            Header(
                source=Source.SIMULATION,
                clock=Clock.SIMULATED,
                until=until,
                policy=policy,
                title=title,
            ),
            # Without the phases that would have come after the last event.
            (line for line in self.lines if line.at <= until),
        )


def _outcome(step: Step) -> Placement | None:
    if isinstance(step, Wait | Stop):
        return None
    return step.placement if isinstance(step, Start) else step.new
