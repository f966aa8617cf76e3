"""
What has happened, and what that makes of each job: from a scene to new statuses.

SideCars say what their processes do; here it is concluded that a job has started, has finished,
has crashed and gets another attempt, or will not be tried again. Like everything that leads to a
record, it is a function of one look at everything, so that a controller that starts in the middle
comes to the same conclusions as the one that was killed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dlcontrol.platforms import Entry, PodPhase
from dlcontrol.records import Condition, ConditionType, Status
from dlcontrol.scene import Scene, Seat
from dlcore import lifecycle
from dlcore.lifecycle import Event
from dlcore.model import Direction, JobId, Phase, Target
from dlwire.messages import Phase as SideCarPhase
from dlwire.messages import Progress, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How much is borne with, and for how long. Seconds."""

    retry_seconds: float = 10.0
    """Before the first new attempt after a crash; each further one waits twice as long."""
    longest_retry_seconds: float = 300.0
    keep_seconds: float = 20.0
    """A job that is tried again within that time keeps its GPUs meanwhile."""
    lost_seconds: float = 60.0
    """For how long a SideCar may be silent before its pod is ended."""


@dataclass(frozen=True, slots=True)
class News:
    """Something worth an Event."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a job."""

    status: Status
    news: tuple[News, ...] = ()


def judge(scene: Scene, rules: Rules = Rules()) -> dict[JobId, Verdict]:
    """Return the new status of every job for which something has changed."""
    verdicts: dict[JobId, Verdict] = {}
    for job, entry in scene.entries.items():
        try:
            verdict = _Judge(scene, entry, rules).verdict()
        except Exception as error:  # noqa: BLE001 - one job's data never stops the others
            verdict = _set_aside(entry, error, scene.now)
        if verdict.status != entry.status or verdict.news:
            verdicts[job] = verdict
    return verdicts


def _set_aside(entry: Entry, error: Exception, now: float) -> Verdict:
    """Tell that a job is left as it is, because what is known of it makes no sense."""
    message = f"what is recorded about it makes no sense ({type(error).__name__}: {error})"
    condition = Condition(
        ConditionType.SET_ASIDE, status=True, reason="Inconsistent", message=message
    )
    status = replace(entry.status, message=message).with_condition(condition, now)
    changed = status != entry.status
    return Verdict(status, (News("SetAside", message, warning=True),) if changed else ())


class _Judge:
    """One job and what is to be said of it."""

    def __init__(self, scene: Scene, entry: Entry, rules: Rules) -> None:
        self.scene = scene
        self.now = scene.now
        self.entry = entry
        self.job = entry.job
        self.rules = rules
        self.status = entry.status
        self.news: list[News] = []
        self.seats = [
            seat
            for seat in scene.seats_of(entry.job.id).values()
            if seat.pod.phase is not PodPhase.ENDED
        ]

    def verdict(self) -> Verdict:
        self.status = _counted(self.entry, self.status, self.now, self.seats)
        if not self.status.is_final:
            self._look()
        return Verdict(self.status, tuple(self.news))

    def _look(self) -> None:
        if self.entry.cancelled:
            self._give_up(saves=False)
        elif self._has_finished():
            self._end(Event.FINISHED, "Finished", "its training ended well", exit_code=0)
        elif self._has_reached_target():
            self._end(Event.FINISHED, "TargetReached", self._describe_target(), exit_code=0)
        elif self._is_overdue():
            limit = self.job.limits.active_deadline_seconds
            self._end(Event.FAILED, "DeadlineExceeded", f"it took longer than {limit} s")
        else:
            self._resume()
            self._look_at_generation()
            self._look_at_progress()

    def _resume(self) -> None:
        if self.status.phase is Phase.SUSPENDED and not self.job.suspend:
            phase = lifecycle.advance(self.status.phase, Event.RESUMED)
            self.status = replace(self.status, phase=phase, cause=None, message="was resumed")
            self.news.append(News("Resumed", "it is in the queue again"))

    # --- how it ends

    def _has_finished(self) -> bool:
        """Whether all processes of its latest start ended by themselves, and well."""
        states = [seat.state for seat in self.seats]
        if not states or not all(_ended_well(state) for state in states):
            return False
        starts = {state.held_generation for state in states if state is not None}
        placement = self.status.placement
        whole = placement is None or len(states) >= len(placement.nodes)
        return len(starts) == 1 and whole

    def _has_reached_target(self) -> bool:
        target = self.job.training.target
        return target is not None and self.status.reached >= target.patience

    def _describe_target(self) -> str:
        target = self.job.training.target
        assert target is not None
        value = self.status.metric
        return f"{target.metric} is {value:g}, and {target.value:g} was asked for"

    def _is_overdue(self) -> bool:
        limit, started = self.job.limits.active_deadline_seconds, self.status.started_at
        return limit is not None and started is not None and self.now - started > limit

    def _end(
        self, event: Event, reason: str, message: str, *, exit_code: int | None = None
    ) -> None:
        done = self.status.decided(None, now=self.now, saves=event is Event.FINISHED)
        done = replace(
            done,
            phase=lifecycle.advance(done.phase, event),
            finished_at=self.now,
            exit_code=exit_code if exit_code is not None else done.exit_code,
            speed=0.0,
            message=message,
        )
        self.status = done.with_condition(
            Condition(ConditionType.FINISHED, status=True, reason=reason, message=message), self.now
        )
        self.news.append(News(reason, message, warning=event is Event.FAILED))

    def _give_up(self, *, saves: bool) -> None:
        """Take its GPUs, if it has any."""
        if self.status.placement is not None:
            self.status = self.status.decided(None, now=self.now, saves=saves)

    # --- whether its present start is sound

    def _look_at_generation(self) -> None:
        placement = self.status.placement
        if placement is None:
            return
        mine = [seat for seat in self.seats if seat.key.node in placement.nodes]
        begun = [seat for seat in mine if seat.has_begun(self.status.run_generation)]
        failed = [seat for seat in begun if seat.phase is SideCarPhase.FAILED]
        if failed:
            self._crash(failed)
        elif self._is_broken(mine, begun, len(placement.nodes)):
            self._renew()
        elif len(begun) == len(placement.nodes):
            self._note_running(begun)

    def _crash(self, failed: Sequence[Seat]) -> None:
        how = _how_it_failed(failed)
        status = replace(self.status, failures=self.status.failures + 1, exit_code=_code_of(failed))
        limit = self.job.limits.backoff_limit
        self.status = status
        if status.failures > limit:
            times = f"{status.failures} times" if status.failures > 1 else "once"
            self._end(
                Event.FAILED, "BackoffLimitExceeded", f"it failed {times}; the last time {how}"
            )
            return
        delay = min(
            self.rules.retry_seconds * 2 ** (status.failures - 1), self.rules.longest_retry_seconds
        )
        keeps = delay <= self.rules.keep_seconds
        message = f"{how}; attempt {status.failures + 1} of {limit + 1} in {delay:g} s"
        event = Event.CRASHED if keeps else Event.DISPLACED
        self.status = replace(
            status.decided(
                status.placement if keeps else None,
                now=self.now,
                saves=False,
                gang=status.gang,
                cause=status.cause,
            ),
            phase=lifecycle.advance(status.phase, event),
            retry_at=self.now + delay,
            speed=0.0,
            message=message,
        )
        self.news.append(News("Crashed", message, warning=True))

    def _is_broken(self, mine: Sequence[Seat], begun: Sequence[Seat], nodes: int) -> bool:
        """
        Whether some containers run this generation and others will never join them.

        Those that were not told yet are no breach, as long as all are the same starts of the
        containers as when we began to tell them.
        """
        generation, incarnations = self.scene.begun.get(self.job.id, (0, {}))
        told_by_us = generation == self.status.run_generation
        if told_by_us:
            return any(
                seat.state is not None
                and incarnations.get(seat.key.node, seat.state.incarnation)
                != seat.state.incarnation
                for seat in mine
            ) or len(mine) < len(incarnations)
        if begun:
            return len(begun) < nodes
        return self.status.phase is Phase.RUNNING and any(
            seat.is_stamped(self.scene.epoch) for seat in mine
        )

    def _renew(self) -> None:
        """Start it anew where it is, through no fault of its own."""
        status = self.status
        fault = next((seat.pod for seat in self.seats if seat.pod.fault), None)
        message = "a container of it was restarted, so that all processes start anew"
        if fault is not None:
            message = f"{fault.message or fault.reason}; all processes start anew"
        self.status = replace(
            status.decided(
                status.placement, now=self.now, saves=False, gang=status.gang, cause=status.cause
            ),
            phase=lifecycle.advance(status.phase, Event.CRASHED),
            restarts=status.restarts + 1,
            speed=0.0,
            message=message,
        )
        self.news.append(News("Restarted", message, warning=True))

    def _note_running(self, begun: Sequence[Seat]) -> None:
        if not all(seat.phase is SideCarPhase.RUNNING for seat in begun):
            return
        status = self.status
        if status.phase in (Phase.INITIALIZED, Phase.ADJUSTING):
            assert status.placement is not None
            self.status = replace(
                status,
                phase=lifecycle.advance(status.phase, Event.STARTED),
                started_at=status.started_at if status.started_at is not None else self.now,
                leftover=frozenset(self.scene.held[self.job.id]).difference(
                    status.placement.refs()
                ),
                bound_to=() if self.job.checkpoint.shared else status.placement.nodes,
            )
            self.news.append(News("Running", f"trains on {status.placement}"))

    # --- how far it is

    def _look_at_progress(self) -> None:
        progress = self._progress()
        if progress is None:
            return
        target = self.job.training.target
        status = self.status
        if progress.iteration != status.iteration and progress.iteration > 0:
            status = replace(status, iteration=progress.iteration, iterated_at=self.now)
        metric = progress.metrics.get(target.metric) if target is not None else None
        if metric is not None and target is not None and metric != status.metric:
            reached = status.reached + 1 if _is_reached(target, metric) else 0
            status = replace(status, metric=metric, reached=reached)
        self.status = replace(status, speed=progress.iterations_per_second)
        self._tell_of_stall(progress)

    def _progress(self) -> Progress | None:
        """What the processes of the present generation say."""
        placement = self.status.placement
        if placement is None:
            return None
        for node in placement.nodes:
            seat = self.scene.seats_of(self.job.id).get(node)
            state = seat.state if seat is not None else None
            if state is not None and state.held_generation > 0 and state.processes:
                return state.progress
        return None

    def _tell_of_stall(self, progress: Progress) -> None:
        moves = not progress.stalled
        told = next(
            (c for c in self.status.conditions if c.type is ConditionType.PROGRESSING), None
        )
        if told is None and moves:
            return
        idle = f"no iteration for {progress.idle_seconds:.0f} s" if not moves else "it moves again"
        if told is not None and told.status is moves:
            return
        reason = "Moving" if moves else "Stalled"
        condition = Condition(ConditionType.PROGRESSING, status=moves, reason=reason, message=idle)
        self.status = self.status.with_condition(condition, self.now)
        self.news.append(News(reason, idle, warning=not moves))


# --- the words of SideCars ----------------------------------------------------------------


def _ended_well(state: State | None) -> bool:
    return state is not None and state.phase is SideCarPhase.EXITED and state.released


def _is_reached(target: Target, metric: float) -> bool:
    if target.direction is Direction.RISES:
        return metric >= target.value
    return metric <= target.value


def _how_it_failed(failed: Sequence[Seat]) -> str:
    """Say it in half a sentence: what could not be started, or how the first rank ended."""
    for state in _states(failed):
        for problem in state.problems:
            if problem.name in _START_PROBLEMS:
                return problem.message
    for state in _states(failed):
        for process in state.processes:
            if process.signal is not None:
                return f"rank {process.rank} was ended by signal {process.signal}"
            if process.exit_code:
                return f"rank {process.rank} exited with status {process.exit_code}"
    return "its processes ended badly"


_START_PROBLEMS = frozenset({"CannotStart", "CommandNotFound"})


def _code_of(failed: Sequence[Seat]) -> int | None:
    for state in _states(failed):
        for process in state.processes:
            if process.signal is not None:
                return 128 + process.signal
            if process.exit_code:
                return process.exit_code
    return None


def _states(seats: Sequence[Seat]) -> Iterator[State]:
    return (seat.state for seat in seats if seat.state is not None)


# --- the books ----------------------------------------------------------------------------

COUNT_EVERY_S = 10.0
"""GPU-seconds are added up so often, because every record costs a write."""


def _counted(entry: Entry, status: Status, now: float, seats: Sequence[Seat]) -> Status:
    """Add the GPU-seconds since the last count, at a change of GPUs or when it is time again."""
    placement = status.placement
    if placement is None or not seats:
        return status
    since = max(status.counted_at, status.decided_at)
    if now - since < COUNT_EVERY_S or entry.status.is_final:
        return status
    return replace(status, service=status.service + placement.gpus * (now - since), counted_at=now)
