"""
True if the checkpoints of a job in the world work, what decisions know of that, and what is lost without.

Called by :mod:`dljob.sim.engine.training` when a job starts and halts, and by :mod:`dljob.sim.engine.world` when a
node fails. On a real cluster the same is judged by ``dljob.control.judging.checkpoints`` and ``trials``.
"""

from functools import partial

from dljob.core.model import Mechanism
from dljob.sim.engine.books import Books
from dljob.sim.engine.controlling.rounds import Rounds
from dljob.sim.engine.event_queue import EventQueue, Order
from dljob.sim.engine.runs import Activity, Run
from dljob.sim.engine.settings import Setting
from dljob.sim.engine.truth import Truth
from dljob_wire.messages import Saving, Trial


class Checkpoints:
    """The checkpoints of all jobs of a world."""

    def __init__(
        self,
        queue: EventQueue,
        books: Books,
        *,
        setting: Setting,
        truth: Truth,
        rounds: Rounds,
    ) -> None:
        self._queue = queue
        self._truth = truth
        self._books = books
        self._setting = setting
        self._rounds = rounds

    def is_kept(self, run: Run) -> bool:
        """Return whether decisions know that a change would lose its work, or do not know that it would not."""
        setting = self._setting
        if not setting.keeps_work:
            return False
        if run.traced.saves:
            return setting.tries and not run.is_tried
        return setting.tries or not run.traced.declares or run.has_lost_work

    def keeps_first(self, run: Run) -> bool:
        """Return whether decisions know that nothing saves its work, so that it keeps the GPUs it starts with."""
        is_known = not run.traced.declares or run.is_tried or run.has_lost_work
        is_live = run.traced.is_live and self._setting.mechanism is Mechanism.IN_PLACE
        return self._setting.keeps_work and not run.traced.saves and is_known and not is_live

    def begin_trial(self, run: Run, *, first_step_s: float) -> float:
        """
        Try the checkpoint, if the job declares one, as soon as a start of it lasts long enough.

        Returns how long the job stands still for that from its first step on.
        """
        if not run.traced.declares or run.is_tried or not self._setting.tries:
            return 0.0
        pause_s = self._truth.costs_of(run).checkpoint if self._setting.trial_s is None else 0.0
        seconds = self._setting.trial_s or pause_s
        if not seconds:
            run.is_tried = True
            return 0.0
        done_at = self._queue.now + seconds + (first_step_s if pause_s else 0.0)
        holds = run.state.iterations_done
        self._queue.at(
            done_at,
            Order.CHANGE,
            event=partial(self._end_trial, run, run.stamp, holds=holds, seconds=seconds),
        )
        return pause_s

    def _end_trial(self, run: Run, stamp: int, *, holds: float, seconds: float) -> None:
        """A checkpoint that works is confirmed; it holds what was done when it was asked for."""
        if run.stamp != stamp or run.finished:
            return
        run.is_tried = True
        if run.traced.saves:
            run.safe_iterations = max(run.safe_iterations, holds)
            if self._books.learner is not None:
                trial = Trial(1, Saving.CONFIRMED, seconds=seconds)
                self._books.learner.note_trial(run, trial)
            self._books.note(run, unsaved_from=None)
            self._rounds.ask()
        else:
            self._books.note(run, keeps_first=self.keeps_first(run))

    def save(self, run: Run) -> None:
        """A job saves itself, if it can, and stops."""
        if run.traced.saves:
            run.safe_iterations = run.state.iterations_done
        else:
            self._lose_work(run)

    def _lose_work(self, run: Run) -> None:
        """Undo the work of a job that was stopped before anything saved it."""
        lost = run.state.iterations_done - run.safe_iterations
        run.has_lost_work = True
        run.record.redone += lost
        run.record.lost_work_s += lost / run.pace if run.pace > 0.0 else 0.0
        run.wasted -= lost * (1.0 - run.worth)
        self._books.note(
            run, iterations_done=run.safe_iterations, keeps_first=self.keeps_first(run)
        )

    def fall_back(self, run: Run) -> None:
        """A node of it died while it trained: what it did since its last checkpoint is lost."""
        now = self._queue.now
        every = self._setting.checkpoint_every_s
        unsaved_s = (now - run.processes_since) % every if every > 0 else 0.0
        done = run.state.iterations_at(now)
        # In the pause of a live change it has no speed.
        speed = run.pace if run.activity is Activity.CHANGING else run.state.speed
        kept = max(run.safe_iterations, done - unsaved_s * speed)
        if not run.traced.saves:
            kept = run.safe_iterations
        run.record.redone += done - kept
        run.record.lost_work_s += (done - kept) / speed if speed > 0.0 else 0.0
        run.wasted -= (done - kept) * (1.0 - run.worth)
        self._books.note(run, iterations_done=kept)
