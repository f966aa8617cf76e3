"""
A world to schedule in: jobs arrive, train at their true speeds, are reshaped, complete; nodes fail.

Every event goes through the very same :func:`dlcore.cycle.schedule` as in production. All events
of one instant are taken together – completions first, arrivals after them – and one decision is
made for all of them. What the decision costs is the business of :mod:`dlsim.engine.coordinator`.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from dlcore import cycle
from dlcore.contract import Policy
from dlcore.model import (
    Cluster,
    JobId,
    JobState,
    Mechanism,
    Node,
    NodeName,
    Placement,
    Snapshot,
)
from dlcore.placement import free_gpus
from dlcore.placement.limits import NamespaceLimits
from dlcore.planning import Move, Plan, Reshape, Start, Stop
from dlcore.predicting import fitting
from dlcore.predicting.predictor import Predictor
from dlcore.profiles import AccuracyPoint, Costs, JobType
from dlcore.queues import Queue
from dlsim import beliefs
from dlsim.engine.coordinator import Coordinator
from dlsim.engine.kernel import RESOLUTION, Kernel, Order
from dlsim.engine.rosters import Roster
from dlsim.engine.rounds import Growth, next_round
from dlsim.engine.runs import Activity, Run
from dlsim.errors import BadInput
from dlsim.inputs.tables import MOST_SECONDS
from dlsim.jobs.workloads import (
    Learning,
    Standing,
    TracedJob,
    Workload,
)
from dlsim.results.recording import Recorder
from dlsim.results.records import (
    Entry,
    Happening,
    JobRecord,
    Record,
)

EVALUATIONS = 20
"""How often a job that trains to a target evaluates its metric, from its start to its end."""

PATIENCE = 1000
"""
How often a policy is asked in a row when nothing happens any more unless it does something. Then
the jobs that are left will never run.
"""


@dataclass(frozen=True, slots=True)
class Outage:
    """A node that fails, and when it comes back."""

    node: NodeName
    lost_at: float
    back_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a world is like, apart from its jobs."""

    nodes: tuple[Node, ...]
    mechanism: Mechanism = Mechanism.IN_PLACE
    costs: Costs = Costs()
    """For jobs whose profile holds no measured costs."""
    seed: int = 0
    outages: tuple[Outage, ...] = ()
    checkpoint_every_s: float = 600.0
    """How much training a failing node destroys at most. Checkpoints before stops come besides."""
    period_s: float = math.inf
    """A decision is made at least so often, though nothing has happened, as controllers do it."""
    limits: NamespaceLimits = NamespaceLimits()
    """What the jobs of a namespace may have in all."""
    round_s: float = 0.0
    """Decisions are made at multiples of this only; 0: whenever something has happened."""
    growth: Growth | None = None
    """How far jobs may grow at once; ``None``: as far as they like."""
    trials: Mapping[JobType, float] = field(default_factory=dict)
    """How many seconds a job of a type is measured before it trains, on the GPUs that it is given."""
    tries: bool = True
    """Whether a checkpoint that a job declares is tried before it is counted on, as controllers do it."""
    trial_s: float = 0.0
    """How long that takes from the first step on; the job keeps its GPUs meanwhile."""
    keeps_work: bool = True
    """Whether decisions know whose work nothing saves; without it one sees what the law is worth."""


class World:
    """One replay. Build it, :meth:`play` it once, read the record."""

    def __init__(
        self,
        workload: Workload,
        setting: Setting,
        policy: Policy,
        *,
        watch: Callable[[int, int], None] | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self._workload = workload
        self._setting = setting
        self._policy = policy
        self._watch = watch  # Told (jobs done, jobs in all) for a progress bar.
        self._recorder = recorder
        self._alive = {node.name: node for node in setting.nodes}
        self._whole = self._cluster = Cluster(setting.nodes)
        self._kernel: Kernel[Callable[[], None]] = Kernel()
        self._coordinator = Coordinator(self, self._costs_of, setting.mechanism)
        self._runs: dict[JobId, Run] = {}
        self._running = Roster()
        self._pending: Queue[JobState] = Queue()
        self._policy_state: object = None
        self._wake_stamp = 0
        self._fruitless = 0
        self._done = 0
        self._due = False
        self._round_at = -math.inf  # For when a decision that could not be made was put off.
        self.record = Record(
            workload=workload.name,
            policy=policy.name,
            mechanism=setting.mechanism.value,
            seed=setting.seed,
            gpus=self._cluster.total,
        )
        self._misled = any(traced.believed is not None for traced in workload.jobs)
        self._truth = self._make_predictor()

    def play(self) -> Record:
        """Let everything happen until nothing does any more."""
        for order, traced in enumerate(self._workload.jobs):
            # Jobs that exist already were submitted before time began.
            at = traced.job.submitted_at if traced.standing is None else 0.0
            self._kernel.at(at, Order.ARRIVAL, _bind(self._arrive, order, traced))
        for outage in self._setting.outages:
            self._kernel.at(outage.lost_at, Order.FAILURE, _bind(self._lose, outage.node))
            if outage.back_at is not None:
                self._kernel.at(outage.back_at, Order.FAILURE, _bind(self._regain, outage.node))
        while self._kernel and self._done < len(self._workload.jobs):
            if self._fruitless > PATIENCE:
                break
            self._handle_instant()
            if self._due and self._is_round():
                self._decide()
            self._note_levels()
        self.record.ended_at = self._kernel.now
        for run in self._runs.values():
            if not run.finished:
                done = run.worthy_at(self._kernel.now)
                run.record.iterations = done + run.record.redone
        return self.record

    def _handle_instant(self) -> None:
        """Handle all events of the next instant; whichever of them calls for a decision says so."""
        instant = self._kernel.next_time()
        self._due = False
        while self._kernel and self._kernel.next_time() <= instant:
            self._kernel.pop()()

    # Deciding.

    def _is_round(self) -> bool:
        """Whether decisions are made now. If not, one is made at the beginning of the next round."""
        begins = next_round(self._kernel.now, self._setting.round_s)
        if begins <= self._kernel.now + RESOLUTION:
            return True
        if self._round_at < begins:
            self._round_at = begins
            self._kernel.at(begins, Order.WAKE, self._open_round)
        return False

    def _open_round(self) -> None:
        self._due = True

    def _decide(self) -> None:
        self._observe_metrics()
        self._revise_beliefs()
        snapshot = self._take_snapshot()
        began = time.perf_counter()
        plan = cycle.schedule(snapshot, self._policy)
        self.record.decision_s.append(time.perf_counter() - began)
        self.record.decisions += 1
        self._policy_state = plan.policy_state
        if self._recorder is not None:
            self._recorder.note_plan(snapshot, plan)
        self._apply(plan)
        # What an earlier decision wanted is of no interest to the policy any more.
        self._wake_stamp += 1
        now = self._kernel.now
        asked_for = math.inf if plan.wake_at is None else max(plan.wake_at, now + RESOLUTION)
        wake_at = min(asked_for, now + self._setting.period_s)
        if wake_at < math.inf:
            self._kernel.at(wake_at, Order.WAKE, _bind(self._wake, self._wake_stamp))
        self._fruitless = self._fruitless + 1 if self._kernel.only_wakes else 0

    def _take_snapshot(self) -> Snapshot:
        return Snapshot(
            now=self._kernel.now,
            cluster=self._cluster,
            running=self._running.states(),
            pending=self._pending,
            profiles=self._workload.known,
            costs=self._setting.costs,
            mechanism=self._setting.mechanism,
            seed=self._setting.seed,
            limits=self._setting.limits,
            policy_state=self._policy_state,
        )

    def _apply(self, plan: Plan) -> None:
        for step in plan.steps:
            run = self._runs[step.job]
            if isinstance(step, Start):
                self._start(run, step)
            elif isinstance(step, Reshape | Move):
                self._change(run, step)
            elif isinstance(step, Stop):
                self._stop(run)
            else:
                self._note(run, waiting=step.cause)
        self._coordinator.settle()

    def _start(self, run: Run, step: Start) -> None:
        now = self._kernel.now
        self._pending = self._pending.drop(run.state)
        self._leave_queue(run)
        if run.record.started_at is None:
            run.record.started_at = now
        if run.trained and run.activity is not Activity.TRAINING:
            run.idle_since = now
        self._note(
            run,
            placement=step.placement,
            gang=step.gang,
            batch_size=step.batch_size or run.state.batch_size,
            adjusting=not run.serves(step.placement),
            waiting=None,
            started_at=run.record.started_at,
        )
        self._log(run, Happening.GRANTED, step.placement.gpus)
        self._coordinator.retarget(run, step.placement)

    def _change(self, run: Run, step: Reshape | Move) -> None:
        self._note_change(run, step)
        batch_size = step.batch_size or run.state.batch_size
        # The GPUs may be the same, and yet a process has to be told of its new batch.
        restarts = run.serves(step.new) and batch_size != run.batch_size
        self._note(
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
        self._log(run, what, step.new.gpus)

    def _stop(self, run: Run) -> None:
        run.record.stops += 1
        self._take_all(run, Happening.STOPPED)

    def _take_all(self, run: Run, why: Happening) -> None:
        """Put a running job back among the pending ones."""
        self._running.drop(run.state)
        self._note(run, placement=None, gang=0, adjusting=False, waiting=None)
        # From now on it waits, which is not time lost with GPUs.
        self._end_idling(run)
        self._enter_queue(run)
        self._log(run, why)
        self._coordinator.retarget(run, None)

    # Events.

    def _arrive(self, order: int, traced: TracedJob) -> None:
        job, standing = traced.job, traced.standing or Standing()
        now = self._kernel.now
        growth = self._setting.growth
        # Times of a job that was there before count from the beginning.
        begin = job.submitted_at if traced.standing is None else now
        isolated_s = self._time_isolated(traced, done=standing.iterations_done)
        if isolated_s > MOST_SECONDS:
            raise BadInput(
                self._workload.name,
                f"job {job.id} would train for {isolated_s:.3g} s on the GPUs that it requests",
                remedy=f"give it a length of at most {MOST_SECONDS:,.0f} s, which are 126 years",
            )
        record = JobRecord(job.id, job.gpus.requested, begin, isolated_s=isolated_s)
        state = JobState(
            job=job if growth is None else growth.limit(job, 0),
            order=order,
            observed_at=now,
            iterations_done=standing.iterations_done,
            iterations_total=self._first_guess(traced),
            service=standing.service,
            started_at=standing.started_at,
            bound_to=standing.bound_to,
            batch_size=standing.batch_size,
            keeps_first=self._setting.keeps_work and not traced.declares,
        )
        # Judged by what was asked for, so that every policy is given the same jobs. A live system
        # has taken a job that it can run on fewer GPUs.
        needed = job.gpus.requested if traced.standing is None else state.least
        if needed > free_gpus.largest_possible(state, self._whole):
            self._done += 1
            self.record.dropped.append(job.id)
            self.record.log.append(Entry(now, job.id, Happening.DROPPED))
            return
        self.record.jobs.append(record)
        run = Run(traced=traced, record=record, state=state)
        run.safe_iterations = standing.iterations_done
        self._runs[job.id] = run
        self._log(run, Happening.SUBMITTED, job.gpus.requested)
        if self._recorder is not None:
            self._recorder.note_submission(now, job)
        self._due = True
        if standing.placement is not None:
            self._go_on(run, standing.placement)
            return
        self._pending = self._pending.put(state)
        self._enter_queue(run)

    def _go_on(self, run: Run, placement: Placement) -> None:
        """Let a job train on where a live system has it."""
        run.record.started_at = self._kernel.now
        self._note(run, placement=placement)
        self._log(run, Happening.GRANTED, placement.gpus)
        self._coordinator.adopt(run, placement)

    def _complete(self, run: Run, stamp: int) -> None:
        if run.stamp != stamp:
            return
        now = self._kernel.now
        self._note(run)
        in_queue = run.state.placement is None
        if in_queue:
            self._pending = self._pending.drop(run.state)
            self._leave_queue(run)
        else:
            self._running.drop(run.state)
        run.finished = True
        self._done += 1
        run.record.completed_at = now
        self.record.sum_up(now)
        self._log(run, Happening.COMPLETED)
        if self._recorder is not None:
            used, reshapes = run.record.gpu_seconds, run.record.reshapes
            self._recorder.note_end(now, run.state.id, gpu_seconds=used, reshapes=reshapes)
        self._coordinator.finish(run)
        self._coordinator.settle()
        run.record.iterations = run.traced.iterations + run.record.redone
        if self._watch is not None:
            self._watch(self._done, len(self._workload.jobs))
        self._due = True

    def _wake(self, stamp: int) -> None:
        self._due = self._due or stamp == self._wake_stamp

    def _lose(self, name: NodeName) -> None:
        if name not in self._alive:
            return
        del self._alive[name]
        self._cluster = Cluster(self._alive.values())
        if self._recorder is not None:
            self._recorder.note_node(self._kernel.now, name, "the node was lost")
        concerned = [run for run in self._runs.values() if not run.finished or run.holds]
        # Nobody moves before all of them know, lest one starts where there is no node any more.
        broken = [run for run in concerned if self._break_down(run, name)]
        for run in broken:
            self._coordinator.kill(run)
        self._coordinator.settle()
        self._due = True

    def _break_down(self, run: Run, node: NodeName) -> bool:
        """Take a dead node from the run; tell whether its process dies with it."""
        dies = run.works and run.serving is not None and node in run.serving.nodes
        if dies and run.activity is Activity.TRAINING:
            self._fall_back(run)
            self.training_halts(run, saves=False)
        self._coordinator.lose_node(run, node)
        if run.target is not None and node in run.target.nodes:
            self._take_all(run, Happening.LOST)
        return dies

    def _fall_back(self, run: Run) -> None:
        now = self._kernel.now
        every = self._setting.checkpoint_every_s
        unsaved_s = (now - run.training_since) % every if every > 0 else 0.0
        done = run.state.iterations_at(now)
        kept = max(run.safe_iterations, done - unsaved_s * run.state.speed)
        if not run.traced.saves:
            kept = run.safe_iterations
        run.record.redone += done - kept
        speed = run.state.speed
        run.record.lost_work_s += (done - kept) / speed if speed > 0.0 else 0.0
        run.wasted -= (done - kept) * (1.0 - run.worth)
        self._note(run, iterations_done=kept)

    def _regain(self, name: NodeName) -> None:
        if name in self._alive:
            return
        self._alive[name] = next(node for node in self._setting.nodes if node.name == name)
        self._cluster = Cluster(self._alive.values())
        if self._recorder is not None:
            self._recorder.note_node(self._kernel.now, name)
        self._due = True

    # What the coordinator tells.

    def later(self, delay: float, act: Callable[[], None]) -> None:
        """Do ``act`` after a while; changes that cost nothing happen at once, without an event."""
        if delay <= 0:
            act()
            return
        self._kernel.at(self._kernel.now + delay, Order.CHANGE, act)

    def training_starts(self, run: Run) -> None:
        """Count the run as training from now on, and foresee its end."""
        assert run.serving is not None
        now = self._kernel.now
        job, shape = run.state.job, run.serving.shape
        speed = self._truth.speed_with(job, shape, batch_size=run.state.batch_size)
        if speed <= 0:
            raise BadInput(
                self._workload.name,
                f"nothing is known of the speed of job {job.id} on {shape}",
                remedy="give it with --speeds",
            )
        self._end_idling(run)
        run.trained = True
        run.training_since = now
        run.batch_size = run.state.batch_size
        bound = () if job.checkpoint.shared else run.serving.nodes
        run.profiled = max(run.profiled, shape.gpus)
        growth = self._setting.growth
        job = run.traced.job if growth is None else growth.limit(run.traced.job, run.profiled)
        self._begin_trial(run)
        self._note(
            run,
            job=job,
            speed=speed,
            adjusting=False,
            bound_to=bound,
            unsaved_from=run.safe_iterations if self._is_kept(run) else None,
            keeps_first=self._keeps_first(run),
        )
        self._weigh(run)
        alone = self._one_gpu_speed(run)
        run.efficiency = speed * run.worth / alone if alone > 0 else 0.0
        self.record.efficiency.add(run.efficiency, now)
        self._log(run, Happening.TRAINS, shape.gpus)
        if self._recorder is not None:
            self._recorder.note_first_step(now, run.state)
        self._due = True
        self._foresee(run)

    def _is_kept(self, run: Run) -> bool:
        """Whether decisions know that a change would lose its work, or do not know that it would not."""
        setting = self._setting
        if not setting.keeps_work:
            return False
        if run.traced.saves:
            return setting.tries and not run.is_tried
        return setting.tries or not run.traced.declares or run.has_lost_work

    def _keeps_first(self, run: Run) -> bool:
        """Whether decisions know that nothing saves its work, so that it keeps the GPUs it starts with."""
        is_known = not run.traced.declares or run.is_tried or run.has_lost_work
        return self._setting.keeps_work and not run.traced.saves and is_known

    def _begin_trial(self, run: Run) -> None:
        """Try the checkpoint of its first start that lasts so long, if it declares one."""
        if not run.traced.declares or run.is_tried or not self._setting.tries:
            return
        if not self._setting.trial_s:
            run.is_tried = True
            return
        done_at = self._kernel.now + self._setting.trial_s
        holds = run.state.iterations_done
        self._kernel.at(done_at, Order.CHANGE, _bind(self._end_trial, run, run.stamp, holds))

    def _end_trial(self, run: Run, stamp: int, holds: float) -> None:
        """A checkpoint that works is confirmed; it holds what was done when it was asked for."""
        if run.stamp != stamp or run.finished:
            return
        run.is_tried = True
        if run.traced.saves:
            run.safe_iterations = max(run.safe_iterations, holds)
            self._note(run, unsaved_from=None)
            self._due = True
        else:
            self._note(run, keeps_first=self._keeps_first(run))

    def _weigh(self, run: Run) -> None:
        """Say what its iterations are worth from now on, with the batch that it has."""
        noise, own = run.traced.noise, run.state.job.training.batch_size
        batch = run.state.batch_size or own
        if noise is None or not own or (batch == own and run.worth == 1.0):
            return
        progress = run.progress_at(self._kernel.now)
        run.worth = noise.worth(batch, own=own, progress=progress) if batch != own else 1.0
        if run.traced.learning is None:
            self._note(run, iterations_total=self._reckon(run))

    def _foresee(self, run: Run) -> None:
        """Set its completion, or the moment from which its iterations are worth something else."""
        now, speed = self._kernel.now, run.state.speed
        noise, progress = run.traced.noise, run.progress_at(now)
        if noise is not None and run.worth != 1.0 and (knot := noise.next_change(progress)) < 1.0:
            missing = (knot - progress) * run.traced.iterations
            knot_at = now + max(missing / (speed * run.worth), RESOLUTION)
            self._kernel.at(knot_at, Order.CHANGE, _bind(self._reweigh, run, run.stamp))
            return
        left = run.needed - run.state.iterations_done
        done_at = now + max(0.0, left) / speed
        self._kernel.at(done_at, Order.COMPLETION, _bind(self._complete, run, run.stamp))

    def _reweigh(self, run: Run, stamp: int) -> None:
        if run.stamp == stamp:
            self._note(run)
            self._weigh(run)
            self._foresee(run)

    def training_halts(self, run: Run, *, saves: bool) -> None:
        """Count the run as not training from now on."""
        now = self._kernel.now
        self.record.efficiency.add(-run.efficiency, now)
        if run.finished:
            return
        if run.state.placement is not None:
            run.idle_since = now
        run.pace = run.state.speed
        self._note(run, speed=0.0, unsaved_from=None)
        if saves and run.traced.saves:
            run.safe_iterations = run.state.iterations_done
        elif saves:
            self._lose_work(run)
        self._log(run, Happening.HALTS)
        if self._recorder is not None:
            seconds = self._costs_of(run).checkpoint if saves and run.traced.saves else None
            self._recorder.note_saving(now, run.state, seconds=seconds)

    def _lose_work(self, run: Run) -> None:
        """It was stopped, and nothing has saved what it did."""
        lost = run.state.iterations_done - run.safe_iterations
        run.has_lost_work = True
        run.record.redone += lost
        run.record.lost_work_s += lost / run.pace if run.pace > 0.0 else 0.0
        run.wasted -= lost * (1.0 - run.worth)
        self._note(run, iterations_done=run.safe_iterations, keeps_first=self._keeps_first(run))

    def process_gone(self, run: Run) -> None:
        """Note that nothing of its process is left."""
        if self._recorder is not None and not run.finished:
            self._recorder.note_gone(self._kernel.now, run.state.id)

    def process_starts(self, run: Run) -> None:
        """Note that its process starts."""
        if self._recorder is not None:
            self._recorder.note_start(self._kernel.now, run.state.id)

    def held_changes(self, by: int) -> None:
        """Count the GPUs that are in somebody's hands."""
        self.record.used.add(by, self._kernel.now)

    # Bookkeeping.

    def _note(self, run: Run, **changes: object) -> None:
        """Give the run a new state that is true now, and let the next snapshot show it."""
        now = self._kernel.now
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
        if self._recorder is not None:
            self._recorder.note_state(now, run.state, gpu_seconds=run.record.gpu_seconds)
        if not run.finished:
            if run.state.placement is None:
                self._pending = self._pending.put(run.state)
            else:
                self._running.put(run.state)

    def _end_idling(self, run: Run) -> None:
        if run.idle_since is not None:
            run.record.lost_s += self._kernel.now - run.idle_since
            run.idle_since = None

    def _log(self, run: Run, what: Happening, gpus: int = 0) -> None:
        self.record.log.append(Entry(self._kernel.now, run.state.job.id, what, gpus))

    def _note_levels(self) -> None:
        self.record.series.add(
            self._kernel.now,
            used=self.record.used.value,
            running=len(self._running),
            pending=len(self._pending),
        )

    def _enter_queue(self, run: Run) -> None:
        now = self._kernel.now
        run.pending_since = now
        self.record.queue.add(1, now)
        # Kept, because a job whose stop is put off trains on while it is in the queue already.
        run.alone_s = self._time_alone(run)
        self.record.blocking.enter(now, waited=run.waited, remaining=run.alone_s)

    def _leave_queue(self, run: Run) -> None:
        now = self._kernel.now
        self.record.queue.add(-1, now)
        self.record.blocking.leave(run.pending_since, now, waited=run.waited, remaining=run.alone_s)
        run.waited += now - run.pending_since

    def _time_alone(self, run: Run) -> float:
        """Its remaining time with one GPU."""
        left = run.traced.iterations + run.wasted - run.state.iterations_done
        speed = self._one_gpu_speed(run)
        return max(0.0, left) / speed if speed > 0 else math.inf

    def _time_isolated(self, traced: TracedJob, *, done: float) -> float:
        """How long what is left of a job trains on its requested GPUs if it is alone there."""
        job, gpus = traced.job, traced.job.gpus.requested
        speed = self._truth.speed(job, self._truth.shape(gpus, self._truth.best_type(job, gpus)))
        return max(0.0, traced.iterations - done) / speed if speed > 0 else 0.0

    def _one_gpu_speed(self, run: Run) -> float:
        """True speed with one GPU; of a job that runs on one number only, its part of that speed."""
        job = run.traced.job
        serving = run.serving
        kind = serving.gpu_type if serving is not None else self._truth.best_type(job, 1)
        options = job.gpus.options
        if len(options) == 1:
            return self._truth.speed(job, self._truth.shape(options[0], kind)) / options[0]
        return self._truth.speed(job, self._truth.shape(1, kind))

    def _costs_of(self, run: Run) -> Costs:
        costs = self._truth.costs_of(run.state.job)
        trial_s = 0.0 if run.trained else self._setting.trials.get(run.state.job.type, 0.0)
        if not trial_s:
            return costs
        return replace(costs, process_initialization=costs.process_initialization + trial_s)

    def _make_predictor(self) -> Predictor:
        return Predictor(
            profiles=self._workload.truths,
            costs=self._setting.costs,
            mechanism=self._setting.mechanism,
            cluster=Cluster(self._setting.nodes),
        )

    # What the controller believes of the length of jobs.

    def _first_guess(self, traced: TracedJob) -> float:
        if traced.believed is not None:
            return traced.believed
        return traced.iterations if traced.learning is None else self._forecast(traced, ())

    def _revise_beliefs(self) -> None:
        """Let no policy believe that a job is done which trains on."""
        if not self._misled:
            return
        now = self._kernel.now
        for state in self._running.states():
            if state.iterations_at(now) >= state.iterations_total:
                run = self._runs[state.job.id]
                if run.traced.believed is not None:
                    self._note(run)

    def _reckon(self, run: Run) -> float:
        """How many iterations policies believe that it needs, if its batch stays as it is."""
        believed = run.traced.believed
        if believed is None:
            return run.needed
        # They err about these as they do about those of its own batch.
        total = run.needed * (believed / run.traced.iterations)
        return beliefs.revise(total, run.state.iterations_done)

    def _forecast(self, traced: TracedJob, points: Iterable[AccuracyPoint]) -> float:
        """How many iterations the job will need, by what it has shown so far."""
        job = traced.job
        assert job.training.target is not None
        profile = self._workload.known.get(job.type)
        forecast = fitting.predict_iterations(
            profile.accuracy if profile is not None else (),
            tuple(points),
            job.training.target,
            asked=job.training.iterations,
        )
        return forecast.iterations

    def _observe_metrics(self) -> None:
        """Let jobs report the accuracies reached since the last decision, and predict anew."""
        for state in self._running.states():
            run = self._runs[state.job.id]
            learning = run.traced.learning
            unknown = run.traced.believed is not None
            if learning is None or unknown or not self._report(run, learning):
                continue
            total = self._forecast(run.traced, run.points)
            done = run.progress_at(self._kernel.now)
            run.record.predictions.append((done, total / run.traced.iterations))
            self._note(run, iterations_total=total)

    def _report(self, run: Run, learning: Learning) -> bool:
        """Add the points of the evaluations since the last one; tell whether there were any."""
        every = run.traced.iterations / EVALUATIONS
        wasted = run.wasted_at(self._kernel.now)
        due = int((run.state.iterations_at(self._kernel.now) - wasted) / every)
        news = range(len(run.points) + 1, due + 1)
        # A job counts what it does; what it has learnt is less where batches were larger.
        run.points.extend(
            AccuracyPoint(n * every + wasted, learning.accuracy_at(n * every)) for n in news
        )
        return len(news) > 0


def _bind(act: Callable[..., None], *args: object) -> Callable[[], None]:
    return lambda: act(*args)
