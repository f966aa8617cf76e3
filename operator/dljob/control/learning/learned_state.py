"""The controller's memory: profiles in front of the store, forecasts, and the history.

The loop and the SideCars report here. New observations count at once; a
:class:`~dljob.store.notebook.Notebook` writes them to the store when the store is available,
and no caller waits for the write.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from dljob.control.gpus.gpu_table import gpu_rows
from dljob.control.recording.recorder import Recorder, decided
from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.ports import Entry, PodKey
from dljob.control.situation.rules import News
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import Booking, Status
from dljob.core.measuring import LiveChange, Resumption, SpeedSamples, sort_by_type
from dljob.core.model import Cluster, JobId, Snapshot
from dljob.core.planning import Plan, Wait
from dljob.core.predicting import learning_curves
from dljob.core.predicting.learning_curves import Forecast
from dljob.core.profiles import AccuracyPoint, CostSeen, CostTerm, JobType, Observation, Profile
from dljob.core.recording.expecting import expect
from dljob.core.recording.record import Decided, Happened, encode_line
from dljob.store.notebook import Notebook
from dljob.store.rows import RecordRow, shorten
from dljob.store.tables import JobRow
from dljob_wire.messages import Run, State


@dataclass(slots=True)
class _Life:
    asked_at: float | None
    """None if the pod existed before this controller, and once it is ready."""
    left_at: float | None = None


class PodTimes:
    """Measures the times of pods; one for the life of a controller."""

    def __init__(self) -> None:
        self._lives: dict[tuple[JobId, Booking], _Life] = {}

    def update(self, scene: Scene) -> Iterator[tuple[JobType, CostSeen]]:
        """Yield the observations about types of jobs from the present pods."""
        lives: dict[tuple[JobId, Booking], _Life] = {}
        for job, entry in scene.entries.items():
            placement = entry.status.placement
            gpus = placement.gpus if placement is not None else 0
            for job_pod in scene.pods_of(job).values():
                name = job, job_pod.booking
                known = self._lives.get(name)
                life = lives[name] = known or _Life(
                    entry.status.booked_at if job_pod.fresh else None
                )
                for term, seconds in _look_at(scene, job_pod, life=life):
                    yield entry.job.type, CostSeen(term, seconds, gpus)
        self._lives = lives


def _look_at(scene: Scene, job_pod: JobPod, *, life: _Life) -> Iterator[tuple[CostTerm, float]]:
    if life.asked_at is not None and _is_ready(scene, job_pod):
        yield CostTerm.POD_INITIALIZATION, scene.now - life.asked_at
        life.asked_at = None
    if job_pod.has_ended:
        if life.left_at is not None:
            yield CostTerm.POD_TERMINATION, scene.now - life.left_at
            life.left_at = None
    elif life.left_at is None and job_pod.is_leaving and not job_pod.is_living:
        life.left_at = scene.now


def _is_ready(scene: Scene, job_pod: JobPod) -> bool:
    if job_pod.has_ended or not job_pod.contact.reachable:
        return False
    return job_pod.is_living or job_pod.is_warm(scene.warm_seconds, scene.now)


def _live_change_of(state: State) -> LiveChange | None:
    """Return the live change that has led to the present members; None after a restart."""
    change = state.live.change if state.live is not None else None
    if change is None or change.message:
        return None
    target = state.target
    members = target.live.members if isinstance(target, Run) and target.live is not None else ()
    return LiveChange(change.generation, change.pause_ms / 1000.0, joins=-1 in members)


SHOW_SECONDS = 5.0
"""The interval at which the tables are updated; each update may cost a write."""

CLOSE_SECONDS = 3.0
"""The time for the last writes to the store at the end."""


class LearnedState:
    """The controller's memory; one for the life of a controller."""

    def __init__(self, notebook: Notebook, lessons: SpeedSamples, *, epoch: int) -> None:
        self.notebook = notebook
        self._lessons = lessons
        self._pods = PodTimes()
        self._recorder = Recorder()
        self._epoch = epoch
        self._forecasts: dict[JobId, Forecast] = {}
        self._shown_at = 0.0
        self._changes: dict[JobId, tuple[RecordRow, Decided]] = {}
        """The latest change of each job, with the known part of its cost."""
        self._resumptions: dict[JobId, Resumption] = {}
        self._rows: dict[JobId, tuple[Entry, JobRow]] = {}
        """The rows that were shown of jobs, with the entries from which they were made."""
        self._own_types = {kind for kind in notebook.profiles() if kind.is_of_one_job}
        """Types of one job of which something is known."""

    def profiles(self) -> Mapping[JobType, Profile]:
        """All profiles; a new object after each new observation."""
        return self.notebook.profiles()

    def forecasts(self) -> Mapping[JobId, Forecast]:
        """The iterations that jobs with a target are expected to need."""
        return self._forecasts

    def hear(self, entry: Entry, key: PodKey, state: State, now: float) -> None:
        """Learn from a report of a SideCar."""
        lesson = self._lessons.hear(entry, key.node, state, now, live=_live_change_of(state))
        for kind, observations in sort_by_type(entry, lesson.observations).items():
            self._learn(kind, observations)
        self.notebook.record(self._recorder.hear(entry, key, state, now))
        if lesson.resumed is not None:
            self.notebook.record(self._recorder.resume(entry, lesson.resumed))
            known = self._resumptions.get(key.job)
            self._resumptions[key.job] = lesson.resumed
            is_first = known is None or known.generation != lesson.resumed.generation
            change = self._changes.get(key.job)
            if is_first and change is not None and change[1].old is None:
                # No process of the job trained before, so no reshape counts the cost of its start.
                self.note_cost(key.job, lesson.resumed.generation, lesson.resumed.lost_seconds)

    def _learn(self, kind: JobType, observations: Sequence[Observation]) -> None:
        if observations and kind.model:
            self.notebook.observe(kind, observations)
            if kind.is_of_one_job:
                self._own_types.add(kind)

    def _forget_own_types(self, scene: Scene) -> None:
        if not self._own_types:
            return
        entries = scene.entries.values()
        # With an elastic batch, a job has a type for each batch size that it has trained.
        living = {entry.job.type.model for entry in entries if not entry.status.is_final}
        for kind in {kind for kind in self._own_types if kind.model not in living}:
            self.notebook.forget(kind)
            self._own_types.discard(kind)

    def resumptions(self) -> Mapping[JobId, Resumption]:
        """The jobs that have taken the first step of their latest start, with the cost of the
        start.
        """
        return self._resumptions

    def note_cost(self, job: JobId, generation: int, seconds: float, how: str = "") -> None:
        """Add a part of the cost of a change; the parts become known one after the other."""
        row, line = self._changes.get(job, (None, None))
        if row is not None and line is not None and line.generation == generation:
            line = replace(line, cost_seconds=(line.cost_seconds or 0.0) + seconds)
            is_change = line.old is not None and line.new is not None
            line = replace(line, how=line.how or (how if is_change else ""))
            row = replace(row, line=encode_line(line))
            self._changes[job] = row, line
            self.notebook.record((row,))

    def update(self, scene: Scene) -> None:
        """Learn from the state of pods, renew predictions, and forget jobs that have ended."""
        for kind, seen in self._pods.update(scene):
            self._learn(kind, (seen,))
        self._forget_own_types(scene)
        self.notebook.record(self._recorder.update(scene))
        if scene.now >= self._shown_at + SHOW_SECONDS:
            self._shown_at = scene.now
            self._show(scene)
        for job, entry in scene.entries.items():
            if entry.status.is_final:
                self._lessons.forget(job)
                self._forecasts.pop(job, None)
                self._changes.pop(job, None)
                self._resumptions.pop(job, None)
            elif entry.job.training.target is not None:
                profile = self.profiles().get(entry.job.type)
                points = self._lessons.points(job)
                self._forecasts[job] = forecast(entry, profile, points=points)

    def note(self, plan: Plan, snapshot: Snapshot, statuses: Mapping[JobId, Status]) -> None:
        """Keep a decision for the history."""
        expected = expect(snapshot, plan.steps)
        rows = []
        for place, step in enumerate(plan.steps):
            line = decided(
                step,
                at=snapshot.now,
                sentence=statuses[step.job].message,
                generation=statuses[step.job].generation,
                expected=expected.get(step.job),
            )
            row = RecordRow.of(line, uuid4().hex, place=place, epoch=self._epoch)
            rows.append(row)
            if not isinstance(step, Wait):
                self._changes[step.job] = row, line
        self.notebook.record(rows)

    def keep_policy_state(self, policy: str, state: object) -> None:
        """Store the policy's state between decisions."""
        self.notebook.keep_policy_state(policy, state)

    def policy_state(self, policy: str) -> object:
        """Return the policy's memory from before this controller began."""
        return self.notebook.policy_state(policy)

    def note_news(self, job: JobId, news: News, now: float) -> None:
        """Keep what happened to a job for the history."""
        line = Happened(
            at=now, job=job, name=news.reason, message=shorten(news.message), warning=news.warning
        )
        # A decision at the same time already takes this news into account.
        self.notebook.record((RecordRow.of(line, uuid4().hex, place=-1, epoch=self._epoch),))

    def _show(self, scene: Scene) -> None:
        gpus = gpu_rows(scene, Cluster(scene.nodes.values()))
        self.notebook.show_gpus(gpus)
        self.notebook.record(self._recorder.look_at_gpus(gpus, scene.now))
        rows: dict[JobId, tuple[Entry, JobRow]] = {}
        for job, entry in scene.entries.items():
            known = self._rows.get(job)
            is_known = known is not None and known[0] is entry
            rows[job] = known if known and is_known else (entry, _job_row(entry))
        self._rows = rows
        self.notebook.show_jobs([row for _, row in rows.values()])

    def close(self) -> None:
        """Give the store a limited time for the outstanding writes."""
        self.notebook.close(CLOSE_SECONDS)


def _job_row(entry: Entry) -> JobRow:
    """Return the row of the paper's Table III, without values that change in every cycle."""
    job, status = entry.job, entry.status
    return JobRow(
        job=job.id,
        phase=status.phase,
        gpus=status.placement.gpus if status.placement is not None else 0,
        placement=status.placement,
        type=JobType("") if job.type.is_of_one_job else job.type,
        options=job.gpus.options,
        priority=job.priority,
        submitted_at=status.submitted_at,
        started_at=status.started_at,
        finished_at=status.finished_at,
        generation=status.generation,
        iteration=float(status.iteration),
        iterations_total=float(job.training.iterations) if job.training.iterations else None,
        iterations_per_second=status.speed,
        reshapes=status.reshapes,
        reason=status.message,
    )


def forecast(
    entry: Entry, profile: Profile | None, *, points: Iterable[AccuracyPoint]
) -> learning_curves.Forecast:
    """Predict when a job that trains to a target will reach it."""
    target = entry.job.training.target
    assert target is not None
    known = profile.accuracy if profile is not None else ()
    return learning_curves.predict_iterations(
        known, tuple(points), target=target, asked=entry.job.training.iterations
    )
