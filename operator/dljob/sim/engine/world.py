"""
A world to schedule in: jobs arrive, train at their true speeds, are reshaped, complete; nodes fail.

Every event goes through the very same :func:`dljob.core.cycle.schedule` as in production. All events
of one instant are taken together – completions first, arrivals after them – and one decision is
made for all of them. :mod:`dljob.sim.engine.controlling.coordinator` plays the costs of the decision.
"""

import time
from collections.abc import Callable
from functools import partial

from dljob.core import cycle
from dljob.core.contract import Policy
from dljob.core.model import Cluster, JobState, Mechanism, NodeName, Snapshot
from dljob.core.placement import largest
from dljob.core.placement.limits import Use
from dljob.core.planning import Move, Plan, Reshape, Start, Stop
from dljob.core.primitives.backoff import wait_after
from dljob.core.profiles import Costs
from dljob.sim.engine.books import Books, Journal
from dljob.sim.engine.checkpoints import Checkpoints
from dljob.sim.engine.controlling.coordinator import Coordinator
from dljob.sim.engine.controlling.rounds import Rounds
from dljob.sim.engine.event_queue import EventQueue, Order
from dljob.sim.engine.learning import Learner
from dljob.sim.engine.runs import Activity, Run
from dljob.sim.engine.settings import Setting
from dljob.sim.engine.training import Ends, Training
from dljob.sim.engine.truth import Forecasts, Truth
from dljob.sim.errors import BadInput
from dljob.sim.inputs.tables import MOST_SECONDS
from dljob.sim.jobs.workloads import TracedJob, Workload
from dljob.sim.results.recording import Recorder
from dljob.sim.results.records import Happening, JobRecord, Record

PATIENCE = 1000
"""
How often a policy is asked in a row when nothing happens any more unless it does something. Then
the jobs that are left will never run.
"""


RETRY_S, LONGEST_RETRY_S, KEEP_S = 10.0, 300.0, 20.0
"""The pauses after crashes, and through which a job keeps its GPUs: the defaults of controllers."""


class Steps:
    """
    Carries out one plan after another: each step gives a run another target and is written into the books.

    :mod:`dljob.sim.engine.controlling.coordinator` brings the run to its target.
    """

    def __init__(self, queue: EventQueue, books: Books, *, coordinator: Coordinator) -> None:
        self._queue = queue
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
        now = self._queue.now
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
        # The GPUs may be the same, and yet a process has to stop or pause to learn its new batch.
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


class Nodes:
    """The nodes of a world: which of them are alive, and the consequences when one fails or comes back."""

    def __init__(
        self,
        setting: Setting,
        books: Books,
        *,
        rounds: Rounds,
        checkpoints: Checkpoints,
        training: Training,
        coordinator: Coordinator,
        steps: Steps,
    ) -> None:
        self.whole = Cluster(setting.nodes)
        """The cluster without failures."""
        self.cluster = self.whole
        """The nodes that are alive."""
        self._all = {node.name: node for node in setting.nodes}
        self._alive = dict(self._all)
        self._books = books
        self._rounds = rounds
        self._checkpoints = checkpoints
        self._training = training
        self._coordinator = coordinator
        self._steps = steps

    def lose(self, name: NodeName) -> None:
        """A node fails, and with it the processes and pods on it."""
        if name not in self._alive:
            return
        del self._alive[name]
        self.cluster = Cluster(self._alive.values())
        self._books.journal.note_node(name, reason="the node was lost")
        concerned = [run for run in self._books.runs.values() if not run.finished or run.holds]
        # All targets change before any run moves, so that none starts on the node that is gone.
        broken = [run for run in concerned if self._break_down(run, name)]
        for run in broken:
            self._coordinator.kill(run)
        self._coordinator.settle()
        self._rounds.ask()

    def _break_down(self, run: Run, node: NodeName) -> bool:
        """Take a dead node from the run; return whether its process dies with it."""
        dies = run.dies_with(node)
        if dies and run.activity is not Activity.STARTING:
            self._checkpoints.fall_back(run)
            self._training.training_halts(run, saves=False)
        self._coordinator.lose_node(run, node)
        if run.target is not None and node in run.target.nodes:
            self._steps.take_all(run, Happening.LOST)
        return dies

    def regain(self, name: NodeName) -> None:
        if name in self._alive:
            return
        self._alive[name] = self._all[name]
        self.cluster = Cluster(self._alive.values())
        self._books.journal.note_node(name)
        self._rounds.ask()


class World:
    """One replay. Build it, :meth:`play` it once, read the record."""

    def __init__(
        self,
        workload: Workload,
        setting: Setting,
        *,
        policy: Policy,
        watch: Callable[[int, int], None] | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self._workload = workload
        self._setting = setting
        self._policy = policy
        self._watch = watch  # Called with (jobs done, jobs in all) for a progress bar.
        self._queue: EventQueue = EventQueue()
        self._policy_state: object = None
        self._use = Use()
        self._rounds = Rounds(self._queue, round_s=setting.round_s, period_s=setting.period_s)
        self._truth = Truth(workload, setting)
        self._forecasts = Forecasts(workload)
        self._learner = (
            Learner(self._queue, self._rounds, profiles=workload.known) if setting.learns else None
        )
        record = Record(
            workload=workload.name,
            policy=policy.name,
            mechanism=setting.mechanism.value,
            seed=setting.seed,
            gpus=Cluster(setting.nodes).total,
        )
        journal = Journal(record, self._queue, recorder=recorder)
        self._books = Books(journal, self._queue, truth=self._truth, learner=self._learner)
        self._checkpoints = checkpoints = Checkpoints(
            self._queue, self._books, setting=setting, truth=self._truth, rounds=self._rounds
        )
        self._training = training = Training(
            self._queue,
            self._books,
            setting=setting,
            truth=self._truth,
            forecasts=self._forecasts,
            checkpoints=checkpoints,
            ends=Ends(self._complete, self._crash),
            rounds=self._rounds,
        )
        self._coordinator = Coordinator(training, self._truth.costs_of, mechanism=setting.mechanism)
        self._steps = Steps(self._queue, self._books, coordinator=self._coordinator)
        self._nodes = Nodes(
            setting,
            self._books,
            rounds=self._rounds,
            checkpoints=checkpoints,
            training=training,
            coordinator=self._coordinator,
            steps=self._steps,
        )

    def play(self) -> Record:
        """Let everything happen until nothing does any more."""
        for order, traced in enumerate(self._workload.jobs):
            at = traced.job.submitted_at
            self._queue.at(at, Order.ARRIVAL, event=partial(self._arrive, order, traced))
        for outage in self._setting.outages:
            self._queue.at(
                outage.lost_at, Order.FAILURE, event=partial(self._nodes.lose, outage.node)
            )
            if outage.back_at is not None:
                self._queue.at(
                    outage.back_at, Order.FAILURE, event=partial(self._nodes.regain, outage.node)
                )
        while self._queue and self._books.done < len(self._workload.jobs):
            if self._rounds.fruitless > PATIENCE:
                break
            self._follow_instant()
        return self._books.close()

    def _follow_instant(self) -> None:
        """Handle all events of the next instant, and decide if one of them calls for it."""
        instant = self._queue.next_time()
        self._rounds.begin_instant()
        while self._queue and self._queue.next_time() <= instant:
            self._queue.pop()()
        if self._rounds.is_now():
            self._decide()
        self._books.note_levels()

    # Deciding.

    def _decide(self) -> None:
        _update_forecasts(self._books, self._forecasts, now=self._queue.now)
        snapshot = self._take_snapshot()
        began = time.perf_counter()
        plan = cycle.schedule(snapshot, self._policy)
        self._books.journal.note_plan(snapshot, plan, seconds=time.perf_counter() - began)
        self._policy_state, self._use = plan.policy_state, plan.use
        self._steps.apply(plan)
        self._rounds.note_decision(plan.wake_at)

    def _take_snapshot(self) -> Snapshot:
        running, pending = self._books.running.states(), self._books.pending
        profiles, costs = self._workload.known, self._setting.costs
        if self._learner is not None:
            runs = self._books.runs
            running = tuple(self._learner.show(runs[state.id]) for state in running)
            pending = self._learner.show_queue(pending, runs)
            profiles = self._learner.profiles
            # A controller that knows nothing has no costs in its settings either.
            costs = costs if self._workload.known else Costs()
        return Snapshot(
            now=self._queue.now,
            cluster=self._nodes.cluster,
            running=running,
            pending=pending,
            profiles=profiles,
            costs=costs,
            mechanism=self._setting.mechanism,
            seed=self._setting.seed,
            limits=self._setting.limits,
            use=self._use,
            policy_state=self._policy_state,
        )

    # Events.

    def _arrive(self, order: int, traced: TracedJob) -> None:
        run = _make_run(
            traced,
            order,
            now=self._queue.now,
            setting=self._setting,
            truth=self._truth,
            forecasts=self._forecasts,
        )
        # Judged by the request, so that every policy is given the same jobs.
        if run.record.requested > largest.largest_possible(run.state, self._nodes.whole):
            self._books.drop(traced.job.id)
            return
        self._books.add(run)
        self._rounds.ask()
        self._books.wait(run)

    def _complete(self, run: Run, stamp: int) -> None:
        if run.stamp != stamp:
            return
        self._books.complete(run)
        self._coordinator.finish(run)
        self._coordinator.settle()
        run.record.iterations = run.traced.iterations + run.record.redone
        if self._watch is not None:
            self._watch(self._books.done, len(self._workload.jobs))
        self._rounds.ask()

    def _crash(self, run: Run, stamp: int) -> None:
        """Its processes crash; as with controllers, it is tried again after a pause that grows."""
        if run.stamp != stamp or run.finished:
            return
        self._checkpoints.fall_back(run)
        self._training.training_halts(run, saves=False)
        run.failures += 1
        self._books.journal.log(run, Happening.CRASHED)
        pause = wait_after(run.failures, first_seconds=RETRY_S, longest_seconds=LONGEST_RETRY_S)
        has_failed = run.failures > run.traced.job.limits.backoff_limit
        if not has_failed and pause <= KEEP_S:
            self._books.note(run, adjusting=True)
            self._coordinator.kill(run, pause=pause)
            return
        self._steps.take_all(run, Happening.STOPPED)
        if has_failed:
            self._books.fail(run)
        else:
            self._books.pause(run)
            again = self._queue.now + pause
            self._queue.at(again, Order.CHANGE, event=partial(self._try_again, run))
        self._coordinator.kill(run)
        self._coordinator.settle()
        self._rounds.ask()

    def _try_again(self, run: Run) -> None:
        self._books.go_on(run)
        self._rounds.ask()


def _update_forecasts(books: Books, forecasts: Forecasts, *, now: float) -> None:
    """Let jobs report the accuracies reached since the last decision, and predict their lengths again."""
    for state in books.running.states():
        run = books.runs[state.job.id]
        total = forecasts.renew(run, now)
        if total is not None:
            run.record.predictions.append((run.progress_at(now), total / run.traced.iterations))
            target = run.traced.job.training.target
            assert target is not None
            metrics = {target.metric: run.points[-1].value}
            books.note(run, iterations_total=total, metrics=metrics)
    if forecasts.are_wrong:
        # No policy believes that a job is done which trains on.
        for state in books.running.states():
            run = books.runs[state.job.id]
            is_overdue = run.state.iterations_at(now) >= run.state.iterations_total
            if run.traced.believed is not None and is_overdue:
                books.note(run)


def _make_run(
    traced: TracedJob,
    order: int,
    *,
    now: float,
    setting: Setting,
    truth: Truth,
    forecasts: Forecasts,
) -> Run:
    job, growth = traced.job, setting.growth
    isolated_s = truth.seconds_isolated(traced)
    if isolated_s > MOST_SECONDS:
        raise BadInput(
            truth.workload_name,
            f"job {job.id} would train for {isolated_s:.3g} s on the GPUs that it requests",
            remedy=f"give it a length of at most {MOST_SECONDS:,.0f} s, which are 126 years",
        )
    record = JobRecord(job.id, job.gpus.requested, job.submitted_at, isolated_s=isolated_s)
    state = JobState(
        job=job if growth is None else growth.limit(job, 0),
        order=order,
        observed_at=now,
        iterations_total=forecasts.at_first(traced),
        keeps_first=setting.keeps_work
        and not traced.declares
        and not (traced.is_live and setting.mechanism is Mechanism.IN_PLACE),
    )
    return Run(traced=traced, record=record, state=state)
