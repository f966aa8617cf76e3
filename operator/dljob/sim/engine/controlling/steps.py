"""
A plan is carried out in the world: each step gives a run another target and is written into the books.

Called by :mod:`dljob.sim.engine.world` after each decision. How the run comes to its target is the business of
:mod:`dljob.sim.engine.controlling.coordinator`.
"""

from collections.abc import Callable

from dljob.core.planning import Move, Plan, Reshape, Start, Stop
from dljob.sim.engine.books import Books
from dljob.sim.engine.controlling.coordinator import Coordinator
from dljob.sim.engine.kernel import Kernel
from dljob.sim.engine.runs import Activity, Run
from dljob.sim.results.records import Happening


class Steps:
    """Carries out one plan after another."""

    def __init__(
        self, kernel: Kernel[Callable[[], None]], books: Books, *, coordinator: Coordinator
    ) -> None:
        self._kernel = kernel
        self._books = books
        self._coordinator = coordinator

    def apply(self, plan: Plan) -> None:
        """Do what a decision says; jobs whose GPUs it leaves alone are not touched."""
        for step in plan.steps:
            run = self._books.runs[step.job]
            if isinstance(step, Start):
                self._start(run, step)
            elif isinstance(step, Reshape | Move):
                self._change(run, step)
            elif isinstance(step, Stop):
                self._stop(run)
            else:
                self._books.note(run, waiting=step.cause)
        self._coordinator.settle()

    def _start(self, run: Run, step: Start) -> None:
        now = self._kernel.now
        self._books.end_waiting(run)
        if run.record.started_at is None:
            run.record.started_at = now
        if run.trained and run.activity is not Activity.TRAINING:
            run.idle_since = now
        self._books.note(
            run,
            placement=step.placement,
            gang=step.gang,
            batch_size=step.batch_size or run.state.batch_size,
            adjusting=not run.serves(step.placement),
            waiting=None,
            started_at=run.record.started_at,
        )
        self._books.journal.log(run, Happening.GRANTED, gpus=step.placement.gpus)
        self._coordinator.retarget(run, step.placement)

    def _change(self, run: Run, step: Reshape | Move) -> None:
        self._note_change(run, step)
        batch_size = step.batch_size or run.state.batch_size
        # The GPUs may be the same, and yet a process has to restart to learn its new batch.
        restarts = run.serves(step.new) and batch_size != run.batch_size
        self._books.note(
            run,
            placement=step.new,
            gang=step.gang,
            batch_size=batch_size,
            adjusting=restarts or not run.serves(step.new),
        )
        self._coordinator.retarget(run, step.new)
        if restarts:
            self._coordinator.restart(run)

    def _note_change(self, run: Run, step: Reshape | Move) -> None:
        growth = step.new.gpus - step.old.gpus
        what = Happening.ADDING if growth > 0 else Happening.REMOVING
        if not run.gang_complete:
            # It is still being given what it needs to start at all.
            what = Happening.GRANTED
        elif growth == 0:
            what = Happening.MOVING
        run.record.reshapes += what is not Happening.GRANTED
        self._books.journal.log(run, what, gpus=step.new.gpus)

    def _stop(self, run: Run) -> None:
        run.record.stops += 1
        self.take_all(run, Happening.STOPPED)

    def take_all(self, run: Run, why: Happening) -> None:
        """Put a running job back among the pending ones."""
        self._books.running.drop(run.state)
        self._books.note(run, placement=None, gang=0, adjusting=False, waiting=None)
        # From now on it waits, which is not time lost with GPUs.
        self._books.end_idling(run)
        self._books.enter_queue(run)
        self._books.journal.log(run, why)
        self._coordinator.retarget(run, None)
