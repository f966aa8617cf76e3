"""
Played SideCars: the product's behaviour table over processes that are only played.

A :class:`Container` is one start of a container. :func:`dljob_sidecar.behaviour.machine.react` decides
its reactions, so that it cannot drift from a real SideCar. The supervisor's work is played:
processes start late or not at all, save, hang, ignore SIGTERM, crash, end well.
:class:`Processes` is the truth about them, which only the witness sees.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dljob.core.model import GpuRef, JobId, NodeName
from dljob_sidecar.agent import Stopwatch, Trials
from dljob_sidecar.behaviour.events import (
    Action,
    ArmTimer,
    Checkpoint,
    CheckpointDone,
    Event,
    GiveUpCheckpoint,
    Gone,
    Kill,
    Leave,
    Prepare,
    RankEnded,
    Started,
    StartFailed,
    StartProcesses,
    Terminate,
    Told,
)
from dljob_sidecar.behaviour.machine import Limits, Machine, react
from dljob_sidecar.observing.progress import Meter
from dljob_wire.codec import decode_left, encode_left
from dljob_wire.messages import (
    Gpu,
    Phase,
    Post,
    Problem,
    Process,
    Progress,
    Refused,
    Run,
    State,
    Target,
    Warmth,
)
from tests.control.scenes import state_of

if TYPE_CHECKING:
    from tests.control.played import Manner, Temper, World

REPORT_S, RARER_BY = 2.0, 0.1


@dataclass(eq=False)
class Processes:
    """The processes of one container, started together."""

    job: JobId
    node: NodeName
    run: Run
    gpus: frozenset[GpuRef]
    attempt: int
    ranks: set[int]
    """Those that live."""
    are_running: bool = False
    """They have become the user's program."""
    hang: bool = False
    is_ending: bool = False
    """They have saved or were ordered to end, and train no more."""
    is_evaluating: bool = False
    """They have taken their last step, and ignore signals."""
    is_asked: bool = False
    """They were asked to save."""
    is_spoilt: bool = False
    """Something other than the controller ended or disturbed them."""
    begun_at: float = 0.0
    running_at: float = 0.0
    """When they became the user's program."""
    saves_until: float = 0.0
    shows_at: float = 0.0
    ends: dict[int, tuple[int | None, int | None]] = field(default_factory=dict)

    @property
    def live(self) -> bool:
        return bool(self.ranks)


class Container:
    """One start of a container, with its SideCar."""

    def __init__(
        self, world: "World", job: JobId, node: NodeName, incarnation: str, limits: Limits
    ) -> None:
        self._world = world
        self.job = job
        self.node = node
        self.machine = Machine(incarnation, limits)
        self.version = 1
        self.processes: Processes | None = None
        self.is_alive = True
        self.gpus: tuple[Gpu, ...] = ()
        """The GPUs in its reports."""
        self.warmth = Warmth()
        self.left: State | None = None
        """Its last written report, which outlives it."""
        self._timer: object = None
        # A real SideCar's measurements of a job with a manner.
        self.meter = Meter(stall_seconds=world.entries[job].job.progress.stall_seconds)
        self._stopwatch, self._trials = Stopwatch(self._read_clock), Trials(self._read_clock)

    def _read_clock(self) -> float:
        return self._world.now

    @property
    def incarnation(self) -> str:
        return self.machine.incarnation

    @property
    def _manner(self) -> "Manner | None":
        return self._world.courses[self.job].manner

    @property
    def _temper(self) -> "Temper":
        return self._world.temper

    # --- commands and reports

    def declare(self, target: Target) -> Refused | None:
        reaction = react(self.machine, Told(target))
        if reaction.refused is None:
            saves = isinstance(target, Run) or target.checkpoint
            if reaction.trigger is not None:
                self._world.obeys(self, target, saves=saves)
            self.happen(Told(target))
        return reaction.refused

    def state(self) -> State:
        machine = self.machine
        processes = self.processes
        trains = processes is not None and processes.are_running
        progress = self._world.progress_of(processes) if processes and trains else Progress()
        if self._manner is not None:
            progress = self.meter.progress(self._world.now)
        return state_of(
            machine,
            self.version,
            processes=self._describe(),
            progress=progress,
            gpus=self.gpus,
            warmth=self.warmth,
            change=self._stopwatch.change if self._manner is not None else None,
            trial=self._trials.describe(progress.iteration) if machine.limits.tries else None,
        )

    def warm_up(self) -> None:
        if self.is_alive:
            self.warmth = Warmth(wanted=self.warmth.wanted, ready=self.warmth.wanted)
            self.version += 1
            self._world.has_changed(self)

    def report(self, *gpus: Gpu) -> None:
        self.gpus = gpus
        self.version += 1
        self._world.has_changed(self)

    def _describe(self) -> tuple[Process, ...]:
        if self.processes is None:
            return ()
        run = self.processes.run
        ranks = range(run.rank_offset, run.rank_offset + run.processes)
        ends = self.processes.ends
        return tuple(
            Process(rank, pid=100 + rank, exit_code=code, signal=signum)
            for rank in ranks
            for code, signum in [ends.get(rank, (None, None))]
        )

    # --- events

    def happen(self, event: Event) -> None:
        if not self.is_alive:
            return
        before = self.machine
        reaction = react(before, event)
        self.machine = reaction.machine
        self._stopwatch.see(self.machine)
        self._trials.see(self.machine, self.meter.iteration or 0)
        if reaction.machine == before and not reaction.actions:
            return
        self.version += 1
        for action in reaction.actions:
            self._carry_out(action)
        if self.machine.released:
            self._timer = None
        if self.machine.run is not None:
            ended = encode_left(self.state()) if self.machine.has_ended else b""
            self.left = decode_left(ended)
        self._world.has_changed(self)

    def _carry_out(self, action: Action) -> None:
        match action:
            case StartProcesses():
                self._timer = None
                self._start(action.run, action.attempt)
            case Checkpoint():
                self._checkpoint(is_trial=action.is_trial)
            case Terminate():
                self._terminate()
            case Kill():
                self._kill()
            case ArmTimer():
                self._arm(action)
            case Prepare() | GiveUpCheckpoint():
                pass  # Spares are not played, and a save that has begun goes on.
            case Leave():
                self.is_alive = False
                self._world.has_left(self)

    def _arm(self, timer: ArmTimer) -> None:
        self._timer = timer

        def ring() -> None:
            if self._timer is timer:
                self._timer = None
                self.happen(timer.event)

        self._world.after(timer.seconds, ring)

    # --- the supervisor

    def _start(self, run: Run, attempt: int) -> None:
        ranks = set(range(run.rank_offset, run.rank_offset + run.processes))
        gpus = frozenset(GpuRef(self.node, number_of(name)) for name in run.gpus)
        processes = Processes(self.job, self.node, run, gpus, attempt, ranks)
        self.processes = processes
        self._world.processes_begin(processes)
        if self._world.fails("start"):
            processes.is_spoilt = True
            problem = Problem("CommandNotFound", "train.py: no such file")
            self._world.later(0.0, 0.5, lambda: self._fail_to_start(processes, problem))
        else:
            self._world.later(*self._temper.start_seconds, lambda: self._be_started(processes))

    def _fail_to_start(self, processes: Processes, problem: Problem) -> None:
        processes.ranks.clear()
        self._world.processes_end(processes)
        self.happen(StartFailed(processes.attempt, problem))
        self._prove_soon(processes)

    def _be_started(self, processes: Processes) -> None:
        if processes.live and self.is_alive:
            processes.are_running, processes.running_at = True, self._world.now
            self.meter.begin(self._world.now)
            self.happen(Started(processes.attempt))

    def _checkpoint(self, *, is_trial: bool) -> None:
        processes = self.processes
        assert processes is not None
        processes.is_asked = processes.is_asked or not is_trial

        def be_saved() -> None:
            # This save counts for a stop that came meanwhile, too.
            goes_on = self.machine.phase is Phase.RUNNING
            lives = processes.live and self.is_alive
            if lives and self._world.try_to_save(processes, goes_on=goes_on):
                self.happen(CheckpointDone(processes.attempt))

        if self._manner is None:
            self._world.later(*self._temper.save_seconds, be_saved)
            return
        # A save that has begun ends first, as in a training that checks once a step.
        begins = max(self._world.now, processes.saves_until)
        processes.saves_until = begins + self._manner.save_seconds
        self._world.after(processes.saves_until - self._world.now, be_saved)

    def _terminate(self) -> None:
        processes = self.processes
        assert processes is not None
        processes.is_ending = True
        if not processes.live:
            self._prove_soon(processes)
        elif not processes.is_evaluating and not self._world.fails("ignores SIGTERM"):
            self._world.later(*self._temper.end_seconds, lambda: self._end_all(processes, 15))

    def _kill(self) -> None:
        processes = self.processes
        assert processes is not None
        self._world.later(0.0, 0.2, lambda: self._end_all(processes, 9))

    def _end_all(self, processes: Processes, signum: int) -> None:
        for rank in sorted(processes.ranks):
            self.end(processes, rank, None, signum)

    def end(
        self, processes: Processes, rank: int, code: int | None, signum: int | None = None
    ) -> None:
        if rank not in processes.ranks or not self.is_alive:
            return
        processes.ranks.discard(rank)
        processes.ends[rank] = (code, signum)
        if not processes.live:
            self._world.processes_end(processes)
        self.happen(RankEnded(processes.attempt, rank, code, signum))
        if not processes.live:
            self._prove_soon(processes)

    def _prove_soon(self, processes: Processes) -> None:
        self._world.later(0.0, 0.3, lambda: self.happen(Gone(processes.attempt)))

    def die(self) -> None:
        """The SideCar is killed, and the kernel kills its processes."""
        self.is_alive = False
        if self.processes is not None and self.processes.live:
            self.processes.is_spoilt = True
            self.processes.ranks.clear()
            self._world.processes_end(self.processes)

    def observe(self, iteration: int) -> None:
        """Count an iteration; progress alone is shown ever more rarely, as by a real SideCar."""
        now, processes = self._world.now, self.processes
        self.meter.observe(now, Post(iteration=iteration))
        if processes is not None and now >= processes.shows_at:
            processes.shows_at = now + max(REPORT_S, RARER_BY * (now - processes.running_at))
            self.show_progress()

    def show_progress(self) -> None:
        if self.is_alive:
            self.version += 1
            self._world.has_changed(self)


def number_of(name: str) -> int:
    """The number of a GPU, by its index or by the UUIDs of played nodes."""
    return int(name.rpartition("-")[2])
