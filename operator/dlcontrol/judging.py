"""
What has happened, and what that makes of each job: from a scene to new statuses.

SideCars say what their processes do; here it is concluded that a job has started, has finished,
has crashed and gets another attempt, or will not be tried again. Like everything that leads to a
record, it is a function of one look at everything, so that a controller that starts in the middle
comes to the same conclusions as the one that was killed.

Processes are known by the *start* that they belong to, a generation on the wire. The decision that
a job is at may be newer than what lives of it, because it trains on until its new GPUs are free or
those are ready who get its old ones. What happens to an older start counts all the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from dlcontrol.asides import Asides
from dlcontrol.endings import code_of, describe_failure, ended_well
from dlcontrol.learning import Resumption
from dlcontrol.losses import explain_loss
from dlcontrol.platforms import UNSCHEDULABLE, Entry, PodPhase
from dlcontrol.progressing import (
    count_change,
    counted,
    follow_progress,
    idle_seconds,
    tell_of_stall,
    total_iterations,
)
from dlcontrol.records import Condition, ConditionType, Status
from dlcontrol.scene import Scene, Seat, Start
from dlcontrol.starts import Latest
from dlcontrol.troubles import tell_of_pods, tell_of_troubles
from dlcontrol.vanishing import cannot_prove, missing_in
from dlcontrol.verdicts import USUAL_RULES, Learnt, News, Rules, Verdict
from dlcore import lifecycle
from dlcore.fitting import Forecast
from dlcore.lifecycle import Event
from dlcore.model import JobId, NodeName, Phase, Placement
from dlwire.messages import Phase as SideCarPhase


def judge(
    scene: Scene,
    rules: Rules = USUAL_RULES,
    asides: Asides | None = None,
    forecasts: Mapping[JobId, Forecast] | None = None,
    resumptions: Mapping[JobId, Resumption] | None = None,
) -> dict[JobId, Verdict]:
    """Return the new status of every job for which something has changed."""
    asides = asides if asides is not None else Asides()
    verdicts: dict[JobId, Verdict] = {}
    for job, entry in scene.entries.items():
        if job in asides.unkept.jobs:
            continue
        expected = (forecasts or {}).get(job)
        iterations = expected.iterations if expected is not None else None
        learnt = Learnt(iterations, (resumptions or {}).get(job))
        judged = asides.attempt(job, _judge_one, scene, entry, rules, learnt)
        if judged is not None and (judged.status != entry.status or judged.news):
            verdicts[job] = judged
    return verdicts


def _is_at_rest(entry: Entry, forecast: float | None) -> bool:
    """Whether nothing can be said of it: it is over, or it just waits. Thousands may do so."""
    status = entry.status
    if status.is_final:
        return True
    if status.pods or status.placement is not None or entry.cancelled or status.reached:
        return False
    if status.started_at is not None and entry.job.limits.active_deadline_seconds is not None:
        return False
    total = total_iterations(entry.job, forecast)
    return status.phase is not Phase.SUSPENDED and status.iterations_total == total


def _judge_one(scene: Scene, entry: Entry, rules: Rules, learnt: Learnt) -> Verdict | None:
    if _is_at_rest(entry, learnt.forecast):
        return None
    return _Judge(scene, entry, rules).verdict(learnt)


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
        self.forecast: float | None = None
        self.all_seats = tuple(scene.seats_of(entry.job.id).values())
        self.seats = [seat for seat in self.all_seats if not seat.has_ended]
        self.latest = Latest(scene, entry)
        self.started = self.latest.seats

    def verdict(self, learnt: Learnt) -> Verdict:
        self.status = counted(self.status, self.now, is_held=bool(self.seats))
        if self.entry.cancelled:
            self._give_up()
        elif self.entry.problem:
            self._give_back_unused()
        else:
            self._look(learnt)
        return Verdict(self.status, tuple(self.news))

    def _look(self, learnt: Learnt) -> None:
        """See what has happened; the first that has decides, and the rest is for the next look."""
        self.forecast = learnt.forecast
        self._resume()
        for happens in self._happenings():
            if happens():
                return
        self._note_pods()
        self._note_running()
        if self.latest.generation == self.status.run_generation:
            self.status = count_change(self.status, self.started, learnt.resumption)
        self._follow_progress()
        self._note_stall()
        self._note_troubles()

    def _happenings(self) -> Sequence[Callable[[], bool]]:
        return (
            self._finishes,
            self._reaches_target,
            self._is_overdue,
            self._loses_gpus,
            self._crashes,
            self._stands_still,
            self._loses_its_pod,
            self._fails_to_come_up,
            self._falls_apart,
        )

    def _give_up(self) -> None:
        """Its user wants it gone: take its GPUs, if it has any."""
        if self.status.placement is not None:
            self.status = self.status.decided(None, now=self.now, saves=False)

    def _give_back_unused(self) -> None:
        """It is set aside. What trains goes on; where nothing does, nothing will before that is over."""
        status = self.status
        if status.placement is None or any(map(self._may_be_used, self.seats)):
            return
        message = f"has given its GPUs back, because it is set aside: {self.entry.problem}"
        said = Condition(ConditionType.SCHEDULED, status=False, reason="SetAside", message=message)
        done = status.decided(None, now=self.now, saves=False)
        phase = lifecycle.advance(done.phase, Event.DISPLACED)
        done = replace(done, phase=phase, paused_at=None, message=message)
        self.status = done.with_condition(said, self.now)
        self.news.append(News("GPUsGivenBack", message, warning=True))

    def _may_be_used(self, seat: Seat) -> bool:
        """Whether processes were ever begun in this pod, or may be yet, as far as anybody knows."""
        if seat.is_stamped(self.scene.epoch):
            return seat.start > 0 or bool(seat.contact.coming)
        return seat.booking.serial in self.status.used or seat.start > 0

    def _resume(self) -> None:
        if self.status.phase is Phase.SUSPENDED and not self.job.suspend:
            phase = lifecycle.advance(self.status.phase, Event.RESUMED)
            self.status = replace(self.status, phase=phase, cause=None, message="was resumed")
            self.news.append(News("Resumed", "it is in the queue again"))

    # --- how it ends

    def _finishes(self) -> bool:
        """Whether all processes of its latest start ended by themselves, and well."""
        well = ended_well(self.started)
        if not well or len(well) < len(self.started) or len(well) < self.latest.containers:
            return False
        self._end(Event.FINISHED, "Finished", "its training ended well", exit_code=0)
        return True

    def _reaches_target(self) -> bool:
        target = self.job.training.target
        if target is None or self.status.reached < target.patience:
            return False
        value = f"{target.metric} is {self.status.metric:g}"
        message = f"{value}, and {target.value:g} was asked for"
        self._end(Event.FINISHED, "TargetReached", message, exit_code=0)
        return True

    def _is_overdue(self) -> bool:
        limit, started = self.job.limits.active_deadline_seconds, self.status.started_at
        if limit is None or started is None or self.now - started <= limit:
            return False
        self._end(Event.FAILED, "DeadlineExceeded", f"it took longer than {limit} s")
        return True

    def _end(
        self, event: Event, reason: str, message: str, *, exit_code: int | None = None
    ) -> None:
        self._follow_progress()  # Its last word may be heard with its end.
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
        for kind, status in ((ConditionType.SCHEDULED, False), (ConditionType.FINISHED, True)):
            told = Condition(kind, status=status, reason=reason, message=message)
            done = done.with_condition(told, self.now)
        self.status = done
        self.news.append(News(reason, message, warning=event is Event.FAILED))

    # --- what goes wrong

    def _loses_gpus(self) -> bool:
        """A container cannot use GPUs that it shall; only a new one may, and what trains on trains."""
        if self.status.placement is None:
            return False
        wanted = set(self.status.placement.refs())
        for seat in self.seats:
            if seat.is_leaving or not _needs_its_gpus(seat):
                continue
            missing = missing_in(self.scene, seat)
            if ref := next((ref for ref in sorted(missing) if ref in wanted), None):
                if seat in self.started:
                    broken = max(self.latest.generation, self.status.broken)
                    self.status = replace(self.status, broken=broken)
                what = f"its container cannot use GPU {ref}: {missing[ref]}"
                self._set_back("GPUsVanished", what, ran=True, keeps=False)
                return True
        return False

    def _crashes(self) -> bool:
        failed = [seat for seat in self.started if seat.phase is SideCarPhase.FAILED]
        if not failed or self.latest.generation <= self.status.broken:
            return False
        self.status = replace(self.status, broken=self.latest.generation, exit_code=code_of(failed))
        self._fail(describe_failure(failed))
        return True

    def _stands_still(self) -> bool:
        """Its iterations have not advanced for as long as its user bears with: it hangs."""
        limit = self.job.progress.restart_seconds
        if limit is None or self.latest.generation <= self.status.broken or not self._trains:
            return False
        idle = idle_seconds(self.status, self.job, self.started, self.now)
        if idle < limit:
            return False
        # What hangs cannot be asked to save itself.
        self.status = replace(self.status, broken=self.latest.generation)
        self._fail(f"no iteration came for {idle:.0f} s", reason="StalledForTooLong")
        return True

    def _fail(self, how: str, *, reason: str = "Crashed", keeps: bool = True) -> None:
        """It failed through its own fault: try again, if that is allowed once more."""
        failures, limit = self.status.failures + 1, self.job.limits.backoff_limit
        self.status = replace(self.status, failures=failures)
        if failures > limit:
            times = f"{failures} times" if failures > 1 else "once"
            message = f"it failed {times}; the last time {how}"
            self._end(Event.FAILED, "BackoffLimitExceeded", message)
            return
        delay = self._delay_after(failures)
        message = f"{how}; attempt {failures + 1} of {limit + 1} in {delay:g} s"
        again = self._try_again if keeps else self._step_back
        again(reason, message, delay)

    def _delay_after(self, times: int) -> float:
        longest = self.rules.longest_retry_seconds
        return min(self.rules.retry_seconds * 2.0 ** min(times - 1, 30), longest)

    def _try_again(self, reason: str, message: str, delay: float) -> None:
        """Start it anew after some time; until then it keeps its GPUs only if that is soon."""
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

    def _set_back(self, reason: str, what: str, *, ran: bool, keeps: bool) -> None:
        """It could not go on, or begin, through no fault of its own that is known."""
        setbacks = self.status.setbacks + 1
        restarts = self.status.restarts + 1
        self.status = replace(self.status, setbacks=setbacks, restarts=restarts)
        # That what ran was lost is taken for an accident, the first time.
        times = setbacks - 1 if ran else setbacks
        delay = self._delay_after(times) if times else 0.0
        when = f"it is tried again in {delay:g} s" if delay else "all its processes start anew"
        again = self._try_again if keeps else self._step_back
        again(reason, f"{what}; {when}", delay)

    def _step_back(self, reason: str, message: str, delay: float) -> None:
        """Give back what it cannot use: all, or what it wanted beyond what it trains on."""
        status = self.status
        self.news.append(News(reason, message, warning=True))
        start = self._find_former_start()
        if start is None:
            status = replace(status.decided(None, now=self.now), paused_at=None)
            event = Event.DISPLACED
        else:
            status = status.decided(
                self._placement_of(start),
                now=self.now,
                batch_size=start.batch_size or None,
                cause=status.cause,
            )
            status = replace(status, adopted=start.generation)
            event = Event.CHANGED
        self.status = replace(
            status,
            phase=lifecycle.advance(status.phase, event),
            retry_at=self.now + delay,
            message=message,
        )

    def _find_former_start(self) -> Start | None:
        """What it still trains on undisturbed, if nobody else was given any of it."""
        start = self.scene.undisturbed(self.job.id)
        if start is None or start.generation <= self.status.broken:
            return None
        owners = {self.scene.claims.get(ref, self.job.id) for ref in start.gpus}
        return start if owners == {self.job.id} else None

    def _placement_of(self, start: Start) -> Placement:
        nodes: dict[NodeName, list[int]] = {}
        for ref in start.gpus:
            nodes.setdefault(ref.node, []).append(ref.number)
        kinds = {self.scene.nodes[node].gpu_type for node in nodes}
        return Placement.of(nodes, "+".join(sorted(kinds)))

    def _loses_its_pod(self) -> bool:
        """Nobody knows what goes on in one of its pods, and has not for long."""
        lost = [
            seat
            for seat in self.seats
            if seat.pod.phase is PodPhase.LOST
            and self.now - seat.contact.since > self.rules.lost_seconds
        ]
        if not lost or self.status.placement is None:
            return False
        if len(self.started) > 1:
            self.status = replace(
                self.status, broken=max(self.latest.generation, self.status.broken)
            )
        where = ", ".join(sorted(seat.key.node for seat in lost))
        message = (
            f"waits: nobody knows what its pod on {where} does; it starts anew when it is proven"
            " that nothing of it is left there"
        )
        status = self.status.decided(None, now=self.now)
        phase = lifecycle.advance(status.phase, Event.DISPLACED)
        self.status = replace(
            status, phase=phase, speed=0.0, paused_at=None, message=message
        ).with_condition(
            Condition(ConditionType.SCHEDULED, status=False, reason="PodLost", message=message),
            self.now,
        )
        self.news.append(News("PodLost", message, warning=True))
        return True

    def _fails_to_come_up(self) -> bool:
        """A pod that it needs ended before anything ran in it, or takes too long."""
        placement = self.status.placement
        if placement is None or self.now < self.status.retry_at:
            return False
        needed = [seat for seat in self.all_seats if seat.key.node in placement.nodes]
        ended = [seat for seat in needed if seat.has_ended and seat.fresh]
        late = [seat for seat in needed if self._is_late(seat)]
        pod = next((seat.pod for seat in (*ended, *late)), None)
        if pod is None:
            return False
        why = pod.message or pod.reason
        how = "ended before it could be used" if ended else "does not come up"
        message = f"its pod on {pod.key.node} {how}{f': {why}' if why else ''}"
        reason, times = pod.reason or "NotInitialized", self.status.setbacks
        if pod.fault:
            self._fail(message, reason=reason, keeps=False)
        elif reason == UNSCHEDULABLE:
            # The platform leaves that node out for some time, so it is another one or none.
            self._step_back(reason, message, 0.0)
        elif pod.stuck and times >= self.rules.most_setbacks:
            self._end(Event.FAILED, reason, f"{message}; it was tried {times + 1} times")
        else:
            self._set_back(reason, message, ran=False, keeps=False)
        self._say_of_pods(reason, message)
        return True

    def _say_of_pods(self, reason: str, message: str) -> None:
        said = Condition(ConditionType.INITIALIZED, status=False, reason=reason, message=message)
        self.status = self.status.with_condition(said, self.now)

    def _is_late(self, seat: Seat) -> bool:
        if seat.has_ended or seat.contact.reachable or seat.pod.phase is PodPhase.LOST:
            return False
        since = self.status.booked_at if seat.fresh else seat.contact.since
        rules = self.rules
        limit = rules.stuck_seconds if seat.pod.stuck else rules.initialize_seconds
        if seat.pod.reason == UNSCHEDULABLE:
            limit = rules.unscheduled_seconds
        return self.now - since > limit

    def _falls_apart(self) -> bool:
        """Some of its processes or containers are gone, and the others would wait for ever."""
        if any(not seat.is_stamped(self.scene.epoch) and not seat.fresh for seat in self.seats):
            return False  # Somebody else's command may be on its way, and complete it.
        is_incomplete, foreign = self.latest.is_incomplete, self.latest.foreign_generation
        if not (is_incomplete or foreign or self.latest.is_undone):
            return False
        status = self.status
        if is_incomplete:
            status = replace(status, broken=max(self.latest.generation, status.broken))
        # What SideCars were told counts, even if the record of it was lost.
        self.status = replace(status, generation=max(status.generation, foreign // 2))
        if status.placement is None or 0 < self.latest.generation < status.run_generation:
            return False  # It will have a new start anyway.
        if not is_incomplete:
            self._set_back("Restarted", "its start was disturbed", ran=True, keeps=True)
            return True
        loss = explain_loss(self.scene, self.all_seats, status.placement, self.latest.generation)
        if loss.fault:
            self._fail(loss.what, reason=loss.reason, keeps=loss.keeps)
        else:
            self._set_back(loss.reason, loss.what, ran=True, keeps=loss.keeps)
        self._say_of_pods(loss.reason, loss.what)
        return True

    # --- what goes well

    def _note_running(self) -> None:
        status, placement = self.status, self.status.placement
        if placement is None:
            return
        begun = [seat for seat in self.seats if seat.has_begun(status.run_generation)]
        is_whole = {seat.key.node for seat in begun} >= set(placement.nodes)
        if is_whole and all(seat.phase is SideCarPhase.RUNNING for seat in begun):
            if status.phase in (Phase.INITIALIZED, Phase.ADJUSTING):
                self._be_running(placement)
            elif status.setbacks and self.now - status.decided_at > self.rules.steady_seconds:
                self.status = replace(status, setbacks=0)
        elif status.phase is Phase.ADJUSTING and status.paused_at is None and not self._trains:
            self.status = replace(status, paused_at=self.now)

    def _follow_progress(self) -> None:
        self.status = follow_progress(self.status, self.job, self.started, self.now, self.forecast)

    def _note_pods(self) -> None:
        before = self.status.condition(ConditionType.INITIALIZED)
        quiet = self.rules.quiet_seconds * max(1.0, self.scene.starting / 100)
        self.status = tell_of_pods(self.status, self.all_seats, self.now, quiet)
        told = self.status.condition(ConditionType.INITIALIZED)
        if told is not None and told.status and told is not before:
            # It is about to be told to run, so that this costs no record of its own.
            placement = self.status.placement
            self.status = self.status.with_used(placement.nodes if placement is not None else ())
        # That they are up is told when it trains.
        if told is not None and not told.status and told != before:
            self.news.append(News(told.reason, told.message, warning=True))

    def _note_stall(self) -> None:
        self._tell_if_new(
            tell_of_stall(self.status, self.started, self.now), ConditionType.PROGRESSING, well=True
        )

    def _note_troubles(self) -> None:
        self._tell_if_new(
            tell_of_troubles(self.status, self.seats, self.now), ConditionType.TROUBLED, well=False
        )

    def _tell_if_new(self, status: Status, kind: ConditionType, *, well: bool) -> None:
        """Take this over; if that changes the condition, tell, and warn if it is not well."""
        before, self.status = self.status, status
        told = status.condition(kind)
        if status is not before and told is not None:
            self.news.append(News(told.reason, told.message, warning=told.status is not well))

    @property
    def _trains(self) -> bool:
        return any(seat.phase is SideCarPhase.RUNNING for seat in self.started)

    def _be_running(self, placement: Placement) -> None:
        status = self.status
        was_changed = status.phase is Phase.ADJUSTING
        # Until it takes a step it does not train, and what the change has cost is not known.
        paused_at = status.paused_at if status.paused_at is not None else self.now
        self.status = replace(
            status,
            phase=lifecycle.advance(status.phase, Event.STARTED),
            running=status.run_generation,
            containers=len(placement.nodes),
            leftover=self.scene.held_by(self.job.id).difference(placement.refs()),
            bound_to=() if self.job.checkpoint.shared else placement.nodes,
            paused_at=paused_at if was_changed else None,
        )
        self.news.append(News("Running", f"trains on {placement}"))


def _needs_its_gpus(seat: Seat) -> bool:
    """Whether processes could not begin or hang for want of GPUs; what trains has what it needs."""
    state = seat.state
    if state is None or state.phase is SideCarPhase.EXITED:
        return False
    hangs = state.phase is SideCarPhase.RUNNING and state.progress.stalled
    return hangs or not seat.is_living or cannot_prove(seat)
