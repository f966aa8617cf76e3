"""Decides what follows when a job ends, fails or cannot continue.

The job gets no further attempt, or another one after a growing pause, with its GPUs or without.
:mod:`dljob.control.judging.happenings` finds what has happened, and :meth:`Case.apply` applies the
result.
"""

from dataclasses import KW_ONLY, dataclass, replace
from enum import Enum, auto

from dljob.control.judging.checkpoints import count_loss
from dljob.control.judging.progress import follow_progress
from dljob.control.situation.ports import Entry
from dljob.control.situation.process_sets import IntactProcesses, ProcessSet, find_members
from dljob.control.situation.rules import News, Rules
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import Condition, ConditionType, Ended, StartNumber, Status
from dljob.core import lifecycle
from dljob.core.explaining.phrases import duration
from dljob.core.lifecycle import Event
from dljob.core.model import NodeName, Placement
from dljob.core.primitives.backoff import wait_after
from dljob_wire.messages import Phase as SideCarPhase


class Then(Enum):
    """How a job continues after something has happened to it."""

    FINISH = auto()
    GIVE_UP = auto()
    RETRY = auto()
    """The failure is the job's own and counts; another attempt follows after a pause, if any is
    left.
    """
    RESTART = auto()
    """The job is not known to be at fault; another start follows, after a pause if this recurs."""
    STEP_BACK = auto()
    """The job gives back the GPUs that it cannot use, and is placed again at once."""
    GIVE_BACK = auto()
    """Its processes go on as before a change that is not made, also if others were to get some of their GPUs."""
    WAIT = auto()
    """The job gives back its GPUs; another start waits for the proof that no process is left."""
    NOTHING = auto()
    """An earlier cycle has handled this already."""


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that has happened to a job; ``status`` has the facts, without the consequence."""

    then: Then
    status: Status
    _: KW_ONLY
    reason: str = ""
    message: str = ""
    keeps: bool = True
    """The job can start again on its GPUs."""
    ran: bool = True
    """The job's processes had started; their first loss counts as an accident."""
    exit_code: int | None = None
    condition: Condition | None = None


class Case:
    """One job in this cycle, with its new status and the news about it."""

    def __init__(self, scene: Scene, entry: Entry, *, rules: Rules) -> None:
        self.scene = scene
        self.now = scene.now
        self.entry = entry
        self.job = entry.job
        self.rules = rules
        self.status = entry.status
        self.news: list[News] = []
        self.forecast: float | None = None
        self.all_job_pods = tuple(scene.pods_of(entry.job.id).values())
        self.job_pods = [job_pod for job_pod in self.all_job_pods if not job_pod.has_ended]
        self.latest = ProcessSet(scene, entry)
        self.started = self.latest.job_pods
        has_ended = any(job_pod.has_ended or job_pod.left for job_pod in self.all_job_pods)
        self.last = ProcessSet(scene, entry, with_ended=True) if has_ended else self.latest
        """The same start including pods and containers that have ended since, whose exits still count."""
        ended = self.status.ended
        self.ended = ended if ended.start == self.last.generation else Ended()
        """The ends in already forgotten pods of this start."""

    @property
    def trains(self) -> bool:
        phases = (SideCarPhase.RUNNING, SideCarPhase.CHANGING)
        return any(job_pod.phase in phases for job_pod in self.started)

    def broken_status(self) -> Status:
        """Return the status with the note that the latest start cannot go on."""
        broken = max(self.latest.generation, self.status.broken)
        return replace(self.status, broken=broken)

    def apply(self, happening: Happening) -> None:
        self.status = happening.status
        reason, message = happening.reason, happening.message
        match happening.then:
            case Then.FINISH | Then.GIVE_UP as then:
                event = Event.FINISHED if then is Then.FINISH else Event.FAILED
                self._end(event, reason, message=message, exit_code=happening.exit_code)
            case Then.RETRY:
                self._fail(reason, message, keeps=happening.keeps)
            case Then.RESTART:
                self._restart(reason, message, ran=happening.ran, keeps=happening.keeps)
            case Then.STEP_BACK | Then.GIVE_BACK as then:
                self._step_back(reason, message, delay=0.0, insists=then is Then.GIVE_BACK)
            case Then.WAIT:
                self._wait(reason, message)
        if happening.condition is not None:
            self.status = self.status.with_condition(happening.condition, self.now)

    def _end(
        self, event: Event, reason: str, *, message: str, exit_code: int | None = None
    ) -> None:
        self.follow_progress()  # The last progress may arrive together with the end.
        done = self.status.decided(None, now=self.now)
        done = replace(
            done,
            phase=lifecycle.advance(done.phase, event),
            finished_at=self.now,
            exit_code=exit_code if exit_code is not None else done.exit_code,
            speed=0.0,
            paused_at=None,
            message=message,
        )
        how = ConditionType.FAILED if event is Event.FAILED else ConditionType.COMPLETE
        for kind in (ConditionType.SCHEDULED, ConditionType.FINISHED, how):
            is_true = kind is not ConditionType.SCHEDULED
            told = Condition(kind, status=is_true, reason=reason, message=message)
            done = done.with_condition(told, self.now)
        self.status = done
        self.news.append(News(reason, message, warning=event is Event.FAILED))

    def _fail(self, reason: str, how: str, *, keeps: bool) -> None:
        failures, limit = self.status.failures + 1, self.job.limits.backoff_limit
        self.status = replace(self.status, failures=failures)
        if failures > limit:
            times = f"{failures} times" if failures > 1 else "once"
            message = f"it failed {times}; the last time {how}"
            self._end(Event.FAILED, "BackoffLimitExceeded", message=message)
            return
        delay = self._delay_after(failures)
        message = f"{how}; attempt {failures + 1} of {limit + 1} follows a pause of {delay:g} s"
        again = self._try_again if keeps else self._step_back
        again(reason, message, delay=delay)

    def _wait(self, reason: str, message: str) -> None:
        status = self.status.decided(None, now=self.now)
        phase = lifecycle.advance(status.phase, Event.DISPLACED)
        said = Condition(ConditionType.SCHEDULED, status=False, reason=reason, message=message)
        self.status = replace(
            status, phase=phase, speed=0.0, paused_at=None, message=message
        ).with_condition(said, self.now)
        self.news.append(News(reason, message, warning=True))

    def _delay_after(self, times: int) -> float:
        return wait_after(
            times,
            first_seconds=self.rules.retry_seconds,
            longest_seconds=self.rules.longest_retry_seconds,
        )

    def _try_again(self, reason: str, message: str, *, delay: float) -> None:
        """Start the job again after a pause; it keeps its GPUs only through a short one."""
        status, keeps = self.status, delay <= self.rules.keep_seconds
        status = replace(
            status, retry_at=self.now + delay, speed=0.0, paused_at=None, message=message
        )
        if status.placement is not None:
            status = status.decided(
                status.placement if keeps else None,
                now=self.now,
                gang=status.gang if keeps else 0,
                cause=status.cause if keeps else None,
            )
        event = Event.CRASHED if keeps else Event.DISPLACED
        self.status = replace(status, phase=lifecycle.advance(status.phase, event))
        self.news.append(News(reason, message, warning=True))

    def _restart(self, reason: str, what: str, *, ran: bool, keeps: bool) -> None:
        setbacks = self.status.setbacks + 1
        restarts = self.status.restarts + 1
        self.status = replace(self.status, setbacks=setbacks, restarts=restarts)
        # The first loss of running processes counts as an accident.
        times = setbacks - 1 if ran else setbacks
        delay = self._delay_after(times) if times else 0.0
        when = f"it is tried again in {delay:g} s" if delay else "all its processes restart"
        again = self._try_again if keeps else self._step_back
        again(reason, f"{what}; {when}", delay=delay)

    def _step_back(self, reason: str, message: str, *, delay: float, insists: bool = False) -> None:
        """Give back the GPUs that the job cannot use: all, or those beyond its present start."""
        status = self.status
        self.news.append(News(reason, message, warning=True))
        start = self._find_former_start(insists=insists)
        is_given_up = start is not None and any(
            job_pod.run_before is not None for job_pod in self.job_pods
        )
        if start is None:
            status = replace(status.decided(None, now=self.now), paused_at=None)
            event = Event.DISPLACED
        else:
            nodes: dict[NodeName, list[int]] = {}
            for ref in start.gpus:
                nodes.setdefault(ref.node, []).append(ref.number)
            kinds = {self.scene.nodes[node].gpu_type for node in nodes}
            status = status.decided(
                Placement.of(nodes, "+".join(sorted(kinds))),
                now=self.now,
                batch_size=start.batch_size or None,
                cause=status.cause,
            )
            # A SideCar that has begun another change goes back under a newer generation.
            adopted = StartNumber(0) if is_given_up else start.generation
            status = replace(status, adopted=adopted)
            event = Event.CHANGED
        self.status = replace(
            status,
            phase=lifecycle.advance(status.phase, event),
            retry_at=self.now + delay,
            message=message,
        )

    def _find_former_start(self, *, insists: bool) -> IntactProcesses | None:
        """Return the processes that still train undisturbed; ``insists``: even if others were to get their GPUs."""
        start = find_members(self.scene, self.job.id)
        if start is None or start.generation <= self.status.broken:
            return None
        if any(ref.node not in self.scene.nodes for ref in start.gpus):
            return None
        owners = {self.scene.claims.get(ref, self.job.id) for ref in start.gpus}
        return start if insists or owners == {self.job.id} else None

    def follow_progress(self) -> None:
        before = self.status
        self.status = follow_progress(
            before, self.job, started=self.last.job_pods, now=self.now, forecast=self.forecast
        )
        self._tell_of_loss(before, "the training began again behind the work of its former start")

    def note_end_of_pods(self) -> None:
        """Count the work as lost whose checkpoints have ended with the job's pods."""
        before, place = self.status, self.job.checkpoint.ends_with_pod
        if not place or not self.all_job_pods or self.job_pods or before.is_final:
            return
        lost = count_loss(before, before.iteration)
        self.status = replace(lost, iteration=0, saved=0, saved_at=0.0)
        self._tell_of_loss(before, f"its checkpoint was on {place} and ended with its pod")

    def _tell_of_loss(self, before: Status, why: str) -> None:
        iterations = self.status.lost_iterations - before.lost_iterations
        if iterations:
            seconds = self.status.lost_seconds - before.lost_seconds
            time = f", {duration(seconds)} of training" if seconds else ""
            what = (
                "1 iteration of its work is"
                if iterations == 1
                else f"{iterations} iterations of its work are"
            )
            message = f"{what} lost{time}: {why}"
            self.news.append(News("WorkLost", message, warning=True))
