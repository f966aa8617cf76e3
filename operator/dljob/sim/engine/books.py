"""
The books of a world: the jobs in it, the state of each as the next snapshot shows it, and the record.

The other parts of :mod:`dljob.sim.engine` change the state of a job here and nowhere else, so that its GPU-seconds,
its iterations and its place in the queue are counted once for every kind of change.
"""

import math
from bisect import bisect_left
from dataclasses import replace

from dljob.core.model import JobId, JobState, NodeName, Snapshot
from dljob.core.planning import Plan
from dljob.core.queues import Queue
from dljob.sim import beliefs
from dljob.sim.engine.event_queue import EventQueue
from dljob.sim.engine.learning import Learner
from dljob.sim.engine.runs import Run
from dljob.sim.engine.truth import Truth
from dljob.sim.results.recording import Recorder
from dljob.sim.results.records import Entry, Happening, Record


class Journal:
    """The part for readers: the record of the replay, and what a recorder wants to know."""

    def __init__(self, record: Record, queue: EventQueue, *, recorder: Recorder | None) -> None:
        self.record = record
        self._queue = queue
        self._recorder = recorder

    def note_submission(self, run: Run) -> None:
        job = run.traced.job
        self.record.jobs.append(run.record)
        self.log(run, Happening.SUBMITTED, gpus=job.gpus.requested)
        if self._recorder is not None:
            self._recorder.note_submission(self._queue.now, job)

    def note_state(self, run: Run) -> None:
        if self._recorder is not None:
            gpu_seconds = run.record.gpu_seconds
            self._recorder.note_state(self._queue.now, run.state, gpu_seconds=gpu_seconds)

    def note_end(self, run: Run) -> None:
        now = self._queue.now
        run.record.completed_at = now
        self.record.sum_up(now)
        self.log(run, Happening.COMPLETED)
        if self._recorder is not None:
            self._recorder.note_end(now, run.record)

    def note_failure(self, run: Run) -> None:
        now = self._queue.now
        run.record.failed_at = now
        self.log(run, Happening.FAILED)
        if self._recorder is not None:
            self._recorder.note_end(now, run.record)

    def log(self, run: Run, what: Happening, *, gpus: int = 0) -> None:
        self.record.log.append(Entry(self._queue.now, run.state.job.id, what, gpus))

    def note_plan(self, snapshot: Snapshot, plan: Plan, *, seconds: float) -> None:
        """Note a decision, and how long it took."""
        self.record.decision_s.append(seconds)
        self.record.decisions += 1
        if self._recorder is not None:
            self._recorder.note_plan(snapshot, plan)

    def note_node(self, name: NodeName, *, reason: str = "") -> None:
        """Note that a node is in service from now on, or why it is not."""
        if self._recorder is not None:
            self._recorder.note_node(self._queue.now, name, reason=reason)

    def note_first_step(self, run: Run) -> None:
        if self._recorder is not None:
            lost = run.record.lost_work_s
            self._recorder.note_first_step(self._queue.now, run.state, lost_seconds=lost)

    def note_saving(self, run: Run, *, seconds: float | None) -> None:
        """Note that a job stops for a change; ``seconds`` later it is saved, if at all."""
        if self._recorder is not None:
            self._recorder.note_saving(self._queue.now, run.state, seconds=seconds)

    def note_pause(self, run: Run) -> None:
        """Note that a job stands still for a live change."""
        self.log(run, Happening.PAUSES)
        if self._recorder is not None:
            self._recorder.note_pause(self._queue.now, run.state)

    def note_gone(self, run: Run) -> None:
        if self._recorder is not None and not run.finished:
            self._recorder.note_gone(self._queue.now, run.state.id)

    def note_start(self, run: Run) -> None:
        if self._recorder is not None:
            self._recorder.note_start(self._queue.now, run.state.id)


class Roster:
    """The states of some jobs, always sorted by their order of arrival; a change costs a binary search."""

    __slots__ = ("_orders", "_states")

    def __init__(self) -> None:
        self._orders: list[int] = []
        self._states: list[JobState] = []

    def __len__(self) -> int:
        return len(self._orders)

    def put(self, state: JobState) -> None:
        """Add the job, or put its new state in the place of the old one."""
        place = bisect_left(self._orders, state.order)
        if place < len(self._orders) and self._orders[place] == state.order:
            self._states[place] = state
        else:
            self._orders.insert(place, state.order)
            self._states.insert(place, state)

    def drop(self, state: JobState) -> None:
        place = bisect_left(self._orders, state.order)
        del self._orders[place]
        del self._states[place]

    def states(self) -> tuple[JobState, ...]:
        """All of them, the oldest first."""
        return tuple(self._states)


class Books:
    """The jobs of one world, and their states."""

    def __init__(
        self,
        journal: Journal,
        queue: EventQueue,
        *,
        truth: Truth,
        learner: Learner | None = None,
    ) -> None:
        self.learner = learner
        """Learns what decisions know of jobs; ``None``: they know the truth."""
        self.journal = journal
        self.runs: dict[JobId, Run] = {}
        """All jobs that have arrived, also those that are complete."""
        self.running = Roster()
        self.pending: Queue[JobState] = Queue()
        self.done = 0
        """How many jobs are complete, or were dropped when they arrived."""
        self._queue = queue
        self._truth = truth

    # --- the life of a job

    def drop(self, job: JobId) -> None:
        self.done += 1
        self.journal.record.dropped.append(job)
        self.journal.record.log.append(Entry(self._queue.now, job, Happening.DROPPED))

    def add(self, run: Run) -> None:
        self.runs[run.traced.job.id] = run
        self.journal.note_submission(run)

    def wait(self, run: Run) -> None:
        """Put a job that has just arrived among the pending ones."""
        self.pending = self.pending.put(run.state)
        self.enter_queue(run)

    def end_waiting(self, run: Run) -> None:
        self.pending = self.pending.drop(run.state)
        now = self._queue.now
        self.journal.record.queue.add(-1, now)
        self.journal.record.blocking.leave(
            run.pending_since, now, waited=run.waited, remaining=run.alone_s
        )
        run.waited += now - run.pending_since

    def enter_queue(self, run: Run) -> None:
        """Count a job as pending from now on."""
        now = self._queue.now
        run.pending_since = now
        self.journal.record.queue.add(1, now)
        # Kept, because a job whose stop is put off trains on while it is in the queue already.
        left = run.traced.iterations + run.wasted - run.state.iterations_done
        speed = self._truth.speed_on_one_gpu(run)
        run.alone_s = max(0.0, left) / speed if speed > 0 else math.inf
        self.journal.record.blocking.enter(now, waited=run.waited, remaining=run.alone_s)

    def complete(self, run: Run) -> None:
        self.note(run)
        if run.state.placement is None:
            self.end_waiting(run)
        else:
            self.running.drop(run.state)
        run.finished = True
        self.done += 1
        self.journal.note_end(run)

    def pause(self, run: Run) -> None:
        """A job that waits cannot run for now."""
        self.pending = self.pending.drop(run.state)
        run.is_paused = True

    def go_on(self, run: Run) -> None:
        run.is_paused = False
        self.note(run)

    def fail(self, run: Run) -> None:
        """A job has crashed for the last time; it has no GPUs any more, and waits for none."""
        self.end_waiting(run)
        run.finished = True
        self.done += 1
        self.journal.note_failure(run)

    # --- states

    def note(self, run: Run, **changes: object) -> None:
        """Give the run a new state that is true now, and let the next snapshot show it."""
        now = self._queue.now
        old = run.state
        run.wasted = run.wasted_at(now)
        known: dict[str, object] = {
            "iterations_done": min(old.iterations_at(now), run.traced.iterations + run.wasted),
            "service": old.service_at(now),
            "observed_at": now,
        }
        if run.traced.believed is not None:
            done = old.iterations_at(now)
            known["iterations_total"] = beliefs.revise(old.iterations_total, done)
        if old.placement is not None:
            run.record.gpu_seconds += old.placement.gpus * (now - old.observed_at)
        run.state = replace(old, **(known | changes))  # type: ignore[arg-type]
        self.journal.note_state(run)
        if not run.finished:
            if run.state.placement is not None:
                self.running.put(run.state)
            elif not run.is_paused:
                self.pending = self.pending.put(run.state)

    def end_idling(self, run: Run) -> None:
        """A job trains again, or has no GPUs to stand still with."""
        if run.idle_since is not None:
            run.record.lost_s += self._queue.now - run.idle_since
            run.idle_since = None

    def note_levels(self) -> None:
        self.journal.record.series.add(
            self._queue.now,
            used=self.journal.record.used.value,
            running=len(self.running),
            pending=len(self.pending),
        )

    def close(self) -> Record:
        """The world ends: sum up what jobs have done that are not complete."""
        record = self.journal.record
        record.ended_at = self._queue.now
        for run in self.runs.values():
            if not run.finished:
                done = run.worthy_at(self._queue.now)
                run.record.iterations = done + run.record.redone
        return record
