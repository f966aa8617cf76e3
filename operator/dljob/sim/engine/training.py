"""
The course of a job in the world while its process starts, trains and halts.

:mod:`dljob.sim.engine.controlling.coordinator` reports each of these. From them follow how fast the job trains, when it will be complete, whether its checkpoint works, and what is lost when
it does not.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from dljob.core.model import Mechanism, Placement
from dljob.sim.engine.books import Books
from dljob.sim.engine.checkpoints import Checkpoints
from dljob.sim.engine.controlling.rounds import Rounds
from dljob.sim.engine.event_queue import RESOLUTION, EventQueue, Order
from dljob.sim.engine.runs import Activity, Run
from dljob.sim.engine.settings import Setting
from dljob.sim.engine.truth import Forecasts, Truth
from dljob.sim.errors import BadInput
from dljob.sim.results.records import Happening
from dljob_wire.messages import Trial


class Ends(NamedTuple):
    """The ends of a job and of a start of it, unless the stamp of the run is another one by then."""

    complete: Callable[[Run, int], None]
    crash: Callable[[Run, int], None]


class Training:
    """Keeps the clock and the books of all jobs that train."""

    def __init__(
        self,
        queue: EventQueue,
        books: Books,
        *,
        setting: Setting,
        truth: Truth,
        forecasts: Forecasts,
        checkpoints: Checkpoints,
        ends: Ends,
        rounds: Rounds,
    ) -> None:
        self._queue = queue
        self._books = books
        self._growth = setting.growth
        self._contention = setting.contention
        self._training: dict[Run, Placement] = {}
        """The jobs that train now, and where."""
        self._in_place = setting.mechanism is Mechanism.IN_PLACE
        self._checkpoints = checkpoints
        self._truth = truth
        self._forecasts = forecasts
        self._ends = ends
        self._learner = books.learner
        self._rounds = rounds

    def later(self, delay: float, act: Callable[[], None]) -> None:
        """Do ``act`` after a while; changes that cost nothing happen at once, without an event."""
        if delay <= 0:
            act()
            return
        self._queue.at(self._queue.now + delay, Order.CHANGE, event=act)

    def training_starts(self, run: Run) -> None:
        """Its processes have started: count the run as training from now on, and foresee its end."""
        run.processes_since = self._queue.now
        self._train(run)
        if self._learner is not None:
            self._learner.training_starts(run, costs=self._truth.costs_of(run))

    def training_pauses(self, run: Run) -> None:
        """Count the run as standing still from now on; its processes stay, and go on after a live change."""
        now = self._queue.now
        self._count_no_more(run)
        if self._learner is not None:
            self._learner.observe(run)
        if run.state.placement is not None:
            run.idle_since = now
        run.pace = run.full_speed
        self._books.note(run, speed=0.0)
        self._books.journal.note_pause(run)

    def training_goes_on(self, run: Run, *, pause_s: float, joins: bool) -> None:
        """Count the run as training again after a live change; ``joins`` says whether others joined its processes."""
        self._train(run)
        if self._learner is not None:
            self._learner.training_goes_on(run, pause_s=pause_s, joins=joins)

    def _train(self, run: Run) -> None:
        assert run.serving is not None
        now = self._queue.now
        job, shape = run.state.job, run.serving.shape
        speed = self._truth.speed(run)
        if speed <= 0:
            raise BadInput(
                self._truth.workload_name,
                f"nothing is known of the speed of job {job.id} on {shape}",
                remedy="give it with --speeds",
            )
        self._books.end_idling(run)
        run.trained = True
        run.training_since = now
        run.batch_size = run.state.batch_size
        bound = () if job.checkpoint.shared else run.serving.nodes
        run.profiled = max(run.profiled, shape.gpus)
        growth = self._growth
        job = run.traced.job if growth is None else growth.limit(run.traced.job, run.profiled)
        course = run.traced.course
        is_cold = run.processes_since + course.warm_up_s > now
        run.full_speed, run.share = speed * (course.warm_up_pace if is_cold else 1.0), 1.0
        run.is_saving = False
        pause_s = self._checkpoints.begin_trial(run, first_step_s=1.0 / run.full_speed)
        self._books.note(
            run,
            job=job,
            speed=run.full_speed,
            # A newer target may have come in the pause of a live change.
            adjusting=run.target not in (None, run.serving),
            is_live=run.traced.is_live and self._in_place,
            bound_to=bound,
            unsaved_from=run.safe_iterations if self._checkpoints.is_kept(run) else None,
            keeps_first=self._checkpoints.keeps_first(run),
        )
        self._weigh(run)
        alone = self._truth.speed_on_one_gpu(run)
        run.efficiency = speed * run.worth / alone if alone > 0 else 0.0
        self._books.journal.record.efficiency.add(run.efficiency, now)
        run.training_on = shape.gpus
        self._books.journal.record.training.add(shape.gpus, now)
        self._books.journal.log(run, Happening.TRAINS, gpus=shape.gpus)
        self._books.journal.note_first_step(run)
        self._rounds.ask()
        self._foresee(run)
        self._begin_course(run, speed=speed, pause_s=pause_s)
        self._training[run] = run.serving
        self._contend()

    def _contend(self) -> None:
        """Let the jobs that train slow each other down, after one has begun or has ceased to."""
        if self._contention is None:
            return
        jobs = [(run.state.job, placement) for run, placement in self._training.items()]
        for run, share in zip(self._training, self._contention(jobs), strict=True):
            if share != run.share:
                run.full_speed *= share / run.share
                run.share = share
                self._change_speed(run)

    def _begin_course(self, run: Run, *, speed: float, pause_s: float) -> None:
        """Set when it is warm, when it stands still for ``pause_s``, and when it crashes."""
        now, stamp, course = self._queue.now, run.stamp, run.traced.course
        began = run.processes_since
        if began + course.warm_up_s > now:
            event = partial(self._be_warm, run, stamp, speed=speed)
            self._queue.at(began + course.warm_up_s, Order.CHANGE, event=event)
        if pause_s > 0.0:
            event = partial(self._stand_still, run, stamp, seconds=pause_s)
            self._queue.at(now + 1.0 / run.full_speed, Order.CHANGE, event=event)
        if course.crashes_after_s < math.inf:
            event = partial(self._ends.crash, run, stamp)
            crashes_at = max(now, began + course.crashes_after_s)
            self._queue.at(crashes_at, Order.FAILURE, event=event)

    def _be_warm(self, run: Run, stamp: int, *, speed: float) -> None:
        """From now on it trains at its true speed."""
        if run.stamp == stamp and not run.finished:
            run.full_speed = speed * run.share
            self._change_speed(run)

    def _stand_still(self, run: Run, stamp: int, *, seconds: float) -> None:
        """It saves itself for the trial of its checkpoint, and goes on afterwards."""
        if run.stamp == stamp and not run.finished:
            run.is_saving = True
            self._change_speed(run)
            if self._learner is not None:
                self._learner.note_trial(run, Trial(1))
            event = partial(self._go_on, run, stamp)
            self._queue.at(self._queue.now + seconds, Order.CHANGE, event=event)

    def _go_on(self, run: Run, stamp: int) -> None:
        if run.stamp == stamp and not run.finished:
            run.is_saving = False
            self._change_speed(run)

    def _change_speed(self, run: Run) -> None:
        if self._learner is not None:
            self._learner.observe(run)
        self._books.note(run, speed=0.0 if run.is_saving else run.full_speed)
        self._foresee(run)

    def _weigh(self, run: Run) -> None:
        """Set how much its iterations are worth from now on, with its present batch."""
        noise, own = run.traced.noise, run.state.job.training.batch_size
        batch = run.state.batch_size or own
        if noise is None or not own or (batch == own and run.worth == 1.0):
            return
        progress = run.progress_at(self._queue.now)
        run.worth = noise.worth(batch, own=own, progress=progress) if batch != own else 1.0
        if run.traced.learning is None:
            self._books.note(run, iterations_total=self._forecasts.with_batch(run))

    def _foresee(self, run: Run) -> None:
        """Set its completion, or the moment from which its iterations are worth something else."""
        run.forecasts += 1
        if run.is_saving:
            return
        now, speed = self._queue.now, run.state.speed
        noise, progress = run.traced.noise, run.progress_at(now)
        if noise is not None and run.worth != 1.0 and (knot := noise.next_change(progress)) < 1.0:
            missing = (knot - progress) * run.traced.iterations
            knot_at = now + max(missing / (speed * run.worth), RESOLUTION)
            self._queue.at(knot_at, Order.CHANGE, event=partial(self._reweigh, run, run.stamp))
            return
        left = run.needed - run.state.iterations_done
        done_at = now + max(0.0, left) / speed
        event = partial(self._complete, run, run.stamp, forecast=run.forecasts)
        self._queue.at(done_at, Order.COMPLETION, event=event)

    def _complete(self, run: Run, stamp: int, *, forecast: int) -> None:
        if run.forecasts == forecast:
            self._ends.complete(run, stamp)

    def _reweigh(self, run: Run, stamp: int) -> None:
        if run.stamp == stamp:
            self._books.note(run)
            self._weigh(run)
            self._foresee(run)

    def training_halts(self, run: Run, *, saves: bool) -> None:
        """Count the run as not training from now on, because its processes end."""
        if run.activity is Activity.TRAINING:
            self._count_no_more(run)
        if run.finished:
            return
        if self._learner is not None:
            self._learner.observe(run)
        if run.state.placement is not None and run.idle_since is None:
            run.idle_since = self._queue.now
        run.pace, run.has_saved = run.full_speed, saves
        self._books.note(run, speed=0.0, unsaved_from=None, is_live=False)
        if saves:
            self._checkpoints.save(run)
        self._books.journal.log(run, Happening.HALTS)
        seconds = self._truth.costs_of(run).checkpoint if saves and run.traced.saves else None
        self._books.journal.note_saving(run, seconds=seconds)

    def _count_no_more(self, run: Run) -> None:
        now = self._queue.now
        self._books.journal.record.efficiency.add(-run.efficiency, now)
        self._books.journal.record.training.add(-run.training_on, now)
        del self._training[run]
        self._contend()

    def process_gone(self, run: Run) -> None:
        self._books.journal.note_gone(run)
        if self._learner is not None and not run.finished:
            saved = run.has_saved and run.traced.saves
            self._learner.process_gone(run, costs=self._truth.costs_of(run), saved=saved)

    def process_starts(self, run: Run) -> None:
        self._books.journal.note_start(run)
        if self._learner is not None:
            self._learner.process_starts(run)

    def held_changes(self, by: int) -> None:
        self._books.journal.record.used.add(by, self._queue.now)
