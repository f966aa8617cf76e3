"""
The knowledge of controllers about unmeasured jobs, learnt by the code that learns it live.

With ``dljob simulate --known none`` decisions see no truth. Each start of a job has a
:class:`~dljob_wire.speed_window.SpeedWindow`, as in its SideCar; its reports go to
:class:`~dljob.core.measuring.SpeedSamples`, as in a controller; and what these measure is folded into
the profile of the job's type. :class:`Learner` shows each job as a controller sees it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from dljob.core.measuring import FIRST_STEP_S, LiveChange, SpeedSamples
from dljob.core.model import Job, JobId, JobState, Placement
from dljob.core.profiles import Costs, CostSeen, CostTerm, JobType, Profile, fold
from dljob.core.queues import Queue
from dljob.sim.engine.controlling.rounds import Rounds
from dljob.sim.engine.event_queue import EventQueue, Order
from dljob.sim.engine.runs import Activity, Run
from dljob_wire.messages import Change, Phase, Progress, Saving, State, Trial
from dljob_wire.speed_window import SpeedWindow

REPORT_S = 2.0
"""How often the SideCar of a job that has just started reports mere progress."""

RARER_BY = 0.1
"""Each later report comes after this share of the time since the first step, because little changes then."""

MOST_POINTS = 8
"""The most iterations of which one report knows the time."""


class _Status(NamedTuple):
    """The record of a job, as far as :class:`~dljob.core.measuring.SpeedSamples` reads it."""

    placement: Placement | None
    generation: int
    run_generation: int
    batch_size: int | None


class _Entry(NamedTuple):
    job: Job
    status: _Status


@dataclass(slots=True)
class _Seen:
    """The reports of a job so far."""

    window: SpeedWindow = field(default_factory=SpeedWindow)
    held: Placement | None = None
    """The GPUs of its latest start."""
    generation: int = 0
    """The start of its processes."""
    started_at: float = 0.0
    iteration: int = 0
    moved_at: float = 0.0
    """When that iteration was done."""
    trial: Trial = Trial()
    begun: bool = False
    """True if this start has done an iteration."""
    speed: float = 0.0
    shown: tuple[JobState, JobState] | None = None
    """Its state in the queue, and how that is shown."""


class Learner:
    """Learns about all jobs of one world."""

    def __init__(
        self,
        queue: EventQueue,
        rounds: Rounds,
        *,
        profiles: Mapping[JobType, Profile],
    ) -> None:
        self._queue = queue
        self._rounds = rounds
        self._samples = SpeedSamples()
        self._seen: dict[JobId, _Seen] = {}
        self.profiles = profiles
        """The profiles at the beginning, and all measurements since; a new object after each new observation."""

    # --- what happens

    def process_starts(self, run: Run) -> None:
        """Its processes start: nothing is known of how fast they train."""
        seen = self._seen.setdefault(run.traced.job.id, _Seen())
        seen.window, seen.begun, seen.speed = SpeedWindow(), False, 0.0
        seen.held, seen.generation, seen.started_at = run.serving, run.stamp, self._queue.now
        seen.iteration = math.floor(run.state.iterations_done)
        seen.moved_at = self._queue.now
        self._hear(run)

    def training_starts(self, run: Run, *, costs: Costs) -> None:
        """Its first step begins; from now on it reports, and a trial shows whether it changes live."""
        if run.state.is_live:
            pause = CostSeen(CostTerm.LIVE_SHRINK, costs.live_shrink, run.training_on)
            self._learn(run.traced.job.type, pause)
        if run.traced.course.is_mute:
            begins = self._seen[run.traced.job.id].started_at + FIRST_STEP_S
            self._queue.at(begins, Order.WAKE, event=self._rounds.ask)
            return
        self._report_later(run)

    def training_goes_on(self, run: Run, *, pause_s: float, joins: bool) -> None:
        """It trains again after a live change: its speed is measured again."""
        seen = self._seen[run.traced.job.id]
        seen.window, seen.begun, seen.speed = SpeedWindow(), False, 0.0
        seen.held, seen.generation, seen.moved_at = run.serving, run.stamp, self._queue.now
        self._hear(run, live=LiveChange(run.stamp, pause_s, joins=joins))
        if not run.traced.course.is_mute:
            self._report_later(run)

    def process_gone(self, run: Run, *, costs: Costs, saved: bool) -> None:
        """Nothing of its processes is left: how long it took to end them is known."""
        seen = self._seen.get(run.traced.job.id)
        if seen is None:
            return
        seen.speed = 0.0
        change = Change(
            run.stamp,
            saving=Saving.CONFIRMED if saved else Saving.NONE,
            checkpoint_seconds=costs.checkpoint if saved else 0.0,
            stop_seconds=costs.process_termination,
        )
        self._hear(run, Phase.STOPPED, change=change)

    def observe(self, run: Run) -> None:
        """Let the job report what it has done by now."""
        seen, state, now = self._seen[run.traced.job.id], run.state, self._queue.now
        if run.traced.course.is_mute or state.speed <= 0.0:
            return
        done = state.iterations_at(now)
        latest = math.floor(done + 1e-6)
        if latest <= seen.iteration:
            return
        stride = max(1, (latest - seen.iteration) // MOST_POINTS)
        for iteration in reversed(range(latest, seen.iteration, -stride)):
            seen.window.add(now - max(0.0, done - iteration) / state.speed, iteration)
        was_known = seen.begun, seen.speed > 0.0
        if seen.trial.saving is Saving.CONFIRMED:
            seen.trial = replace(seen.trial, went_on=True)
        seen.iteration, seen.begun = latest, True
        seen.moved_at = now - max(0.0, done - latest) / state.speed
        seen.speed = seen.window.iterations_per_second or 0.0
        if (seen.begun, seen.speed > 0.0) != was_known:
            self._rounds.ask()
        self._hear(run)

    def note_trial(self, run: Run, trial: Trial) -> None:
        """The trial of its checkpoint begins, for which it may stand still, or is confirmed."""
        self._seen[run.traced.job.id].trial = trial
        self._hear(run)

    # --- what decisions see

    def show(self, run: Run) -> JobState:
        """Return a job with GPUs as a controller sees it."""
        seen, state, now = self._seen.get(run.traced.job.id), run.state, self._queue.now
        if seen is None:
            return state
        trains = run.activity is Activity.TRAINING and not state.adjusting
        waits = trains and not seen.begun and now < seen.started_at + FIRST_STEP_S
        return replace(
            state,
            iterations_done=self._count(run, seen),
            service=state.service_at(now),
            observed_at=now,
            speed=seen.speed if trains else 0.0,
            adjusting=state.adjusting or waits,
        )

    def show_queue(self, pending: Queue[JobState], runs: Mapping[JobId, Run]) -> Queue[JobState]:
        """Return the queue as a controller sees it."""
        return Queue.of(self._show_waiting(runs[state.id], state) for state in pending)

    def _show_waiting(self, run: Run, state: JobState) -> JobState:
        seen = self._seen.get(state.id)
        if seen is None:
            return state
        if seen.shown is None or seen.shown[0] is not state:
            seen.shown = state, replace(state, iterations_done=self._count(run, seen))
        return seen.shown[1]

    def _count(self, run: Run, seen: _Seen) -> float:
        if run.traced.course.is_mute:
            return 0.0
        return float(min(seen.iteration, run.state.iterations_at(self._queue.now)))

    # --- reports

    def _report_later(self, run: Run) -> None:
        now = self._queue.now
        every = max(REPORT_S, RARER_BY * (now - run.training_since))
        # Nothing is new before the next iteration.
        done = run.state.iterations_at(now)
        speed = run.state.speed
        next_in = (math.floor(done + 1e-6) + 1.0 - done) / speed if speed > 0.0 else 0.0
        event = partial(self._report, run, run.stamp)
        self._queue.at(now + max(every, next_in), Order.WAKE, event=event)

    def _report(self, run: Run, stamp: int) -> None:
        if run.stamp == stamp and not run.finished:
            self.observe(run)
            self._report_later(run)

    def _hear(
        self,
        run: Run,
        phase: Phase = Phase.RUNNING,
        *,
        change: Change | None = None,
        live: LiveChange | None = None,
    ) -> None:
        seen, now = self._seen[run.traced.job.id], self._queue.now
        held = seen.held
        if held is None:
            return
        state = State(
            "played",
            1,
            phase,
            released=phase is Phase.STOPPED,
            held_generation=seen.generation,
            progress=Progress(
                iteration=seen.iteration,
                iterations_per_second=seen.speed,
                idle_seconds=now - seen.moved_at,
                begun=seen.begun,
            ),
            change=change or Change(seen.generation),
            trial=seen.trial,
        )
        status = _Status(held, seen.generation, seen.generation, run.state.batch_size)
        entry = _Entry(run.traced.job, status)
        findings = self._samples.hear(entry, held.nodes[0], state, now, live=live)
        for observation in findings.observations:
            self._learn(run.traced.job.type, observation)

    def _learn(self, kind: JobType, observation: object) -> None:
        known = self.profiles.get(kind) or Profile(kind)
        folded = fold(known, observation)  # type: ignore[arg-type]
        if folded is not known:
            if folded.speeds.keys() != known.speeds.keys():
                self._rounds.ask()
            self.profiles = {**self.profiles, kind: folded}
