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

from dlcontrol.gpus.occupancy import find_refusal
from dlcontrol.gpus.visibility import cannot_prove, missing_in
from dlcontrol.judging import trials
from dlcontrol.judging.checkpoints import (
    TO_BE_TRIED,
    follow_saving,
    forgive,
    tell_of_saving,
)
from dlcontrol.judging.coming_up import (
    NODES_REFUSE,
    Coming,
    patience_with,
    quiet_seconds,
)
from dlcontrol.judging.conditions import (
    UNTRUSTED,
    say_untrusted,
    tell_of_pods,
    tell_of_troubles,
)
from dlcontrol.judging.consequences import Case
from dlcontrol.judging.exits import (
    ENDED_EARLY,
    Ending,
    code_of,
    describe_end,
    describe_failure,
    ended_well,
    find_missing_command,
)
from dlcontrol.judging.lost_pods import explain_loss
from dlcontrol.judging.progress import (
    count_change,
    count_every,
    counted,
    idle_seconds,
    tell_of_stall,
    total_iterations,
)
from dlcontrol.situation.ports import Entry, PodPhase
from dlcontrol.situation.quarantine import Asides
from dlcontrol.situation.rules import (
    USUAL_RULES,
    Learnt,
    News,
    Resumption,
    Rules,
    Verdict,
)
from dlcontrol.situation.scene import Scene, Seat
from dlcontrol.situation.status import Condition, ConditionType, Status
from dlcore import lifecycle
from dlcore.lifecycle import Event
from dlcore.model import JobId, Mechanism, Phase, Placement
from dlcore.predicting.fitting import Forecast
from dlwire.messages import Phase as SideCarPhase


def judge(
    scene: Scene,
    rules: Rules = USUAL_RULES,
    asides: Asides | None = None,
    *,
    forecasts: Mapping[JobId, Forecast] | None = None,
    resumptions: Mapping[JobId, Resumption] | None = None,
    coming: Coming | None = None,
) -> dict[JobId, Verdict]:
    """Return the new status of every job for which something has changed."""
    asides = asides if asides is not None else Asides()
    coming = coming if coming is not None else Coming()
    coming.keep(scene.entries)
    verdicts: dict[JobId, Verdict] = {}
    for job, entry in scene.entries.items():
        if job in asides.unwritable.jobs:
            continue
        expected = (forecasts or {}).get(job)
        iterations = expected.iterations if expected is not None else None
        learnt = Learnt(iterations, (resumptions or {}).get(job))
        judged = asides.attempt(job, _judge_one, scene, entry, rules, learnt, coming)
        if judged is not None:
            verdicts[job] = judged
    return verdicts


def _is_at_rest(entry: Entry, forecast: float | None) -> bool:
    """Whether nothing can be said of it: it is over, or it just waits. Thousands may do so."""
    status = entry.status
    if status.is_final:
        return True
    if status.has_anything or entry.cancelled or status.reached:
        return False
    if status.started_at is not None and entry.job.limits.active_deadline_seconds is not None:
        return False
    total = total_iterations(entry.job, forecast)
    return status.phase is not Phase.SUSPENDED and status.iterations_total == total


def _judge_one(
    scene: Scene, entry: Entry, rules: Rules, learnt: Learnt, coming: Coming
) -> Verdict | None:
    """What became of it; none if nothing did."""
    if _is_at_rest(entry, learnt.forecast):
        return None
    if coming.is_as_it_was(scene, entry, rules, learnt.forecast):
        return None
    verdict = _Judge(scene, entry, rules).verdict(learnt)
    if verdict.status != entry.status or verdict.news:
        return verdict
    coming.note(scene, entry, rules, learnt.forecast)
    return None


class _Judge(Case):
    """One job and what is to be said of it."""

    def verdict(self, learnt: Learnt) -> Verdict:
        every = count_every(self.scene.holding)
        self.status = counted(self.status, self.now, is_held=bool(self.seats), every=every)
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
        # Before anything else: who knows it may leave, and news of the next start may overtake it.
        self.status = follow_saving(self.status, self.all_seats, self.now)
        self.status, news = trials.follow_trial(self.status, self.job, self.started, self.now)
        self.news.extend(news)
        self._resume()
        self._take_up()
        for happens in self._happenings():
            if happens():
                return
        self._note_pods()
        self._note_running()
        if self.latest.generation == self.status.run_generation:
            self.status = count_change(self.status, self.started, learnt.resumption)
        self.follow_progress()
        self._note_saving()
        self._note_stall()
        self._note_troubles()

    def _happenings(self) -> Sequence[Callable[[], bool]]:
        return (
            self._is_untrusted,
            self._ends_by_its_trial,
            self._finishes,
            self._reaches_target,
            self._is_overdue,
            self._loses_gpus,
            self._is_refused_gpus,
            self._crashes,
            self._freezes_by_its_trial,
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
            status = forgive(self.status)
            self.status = replace(status, phase=phase, cause=None, message="was resumed")
            self.news.append(News("Resumed", "it is in the queue again"))

    def _take_up(self) -> None:
        """What it had on a node that was lost trains there yet: it goes on with that, as it is."""
        status, scene = self.status, self.scene
        if not self.entry.may_come_back or scene.mechanism is not Mechanism.IN_PLACE:
            return
        start = scene.undisturbed(self.job.id)
        if start is None or not self._has_heard_nothing_newer(start.generation):
            return
        placement = scene.placement_of(start)
        if placement is None or any(ref in scene.claims for ref in start.gpus):
            return
        message = f"continues at {placement}: its node is back, and the training never stopped"
        status = status.decided(placement, now=self.now, batch_size=start.batch_size)
        status = replace(
            status, phase=lifecycle.advance(status.phase, Event.PLACED), message=message
        )
        self.status = start.adopted_by(status, scene.held_by(self.job.id)).with_condition(
            Condition(ConditionType.SCHEDULED, status=True, reason="NodeBack", message=message),
            self.now,
        )
        self.news.append(News("NodeBack", message))

    def _has_heard_nothing_newer(self, generation: int) -> bool:
        """Whether all that live of it answer, and nothing newer may be on its way to them."""
        begun = self.scene.begun.get(self.job.id)
        if begun is not None and begun.generation > generation:
            return False  # It was forgotten with the address, and may arrive all the same.
        return all(
            seat.contact.reachable and seat.pod.phase is PodPhase.UP
            for seat in self.seats
            if seat.is_living
        )

    def _is_untrusted(self) -> bool:
        """A SideCar of it says what cannot be: that counts as a failure, once, and ends its pod."""
        seats = [seat for seat in self.seats if seat.untrusted]
        if not seats:
            return False
        if not self._told_of(message := say_untrusted(seats)):
            self._say_untrusted(message)
            broken = max(self.latest.generation, self.status.running, self.status.broken)
            self.status = replace(self.status, broken=broken)
            self.fail(message, reason=UNTRUSTED, keeps=False)
            if self.status.is_final:
                # Its last failure is told by another name.
                self.news.insert(0, News(UNTRUSTED, message, warning=True))
        return True

    def _told_of(self, message: str) -> bool:
        told = self.status.condition(ConditionType.TROUBLED)
        return told is not None and told.status and told.message == message

    def _say_untrusted(self, message: str) -> None:
        said = Condition(ConditionType.TROUBLED, status=True, reason=UNTRUSTED, message=message)
        self.status = self.status.with_condition(said, self.now)

    # --- how it ends

    def _ends_by_its_trial(self) -> bool:
        """It was asked to save itself and to go on, and has ended: it goes on where it was."""
        what = trials.find_ended(self.started)
        if not what or self.latest.generation <= self.status.broken:
            return False
        self.follow_progress()
        total = self.job.training.iterations
        if total is not None and self.status.iteration >= total:
            return False  # It was done, too.
        self._start_after_trial("EndedByTrial", what)
        return True

    def _freezes_by_its_trial(self) -> bool:
        what = trials.find_frozen(self.started)
        if not what or self.latest.generation <= self.status.broken:
            return False
        self._start_after_trial("FrozenByTrial", what)
        return True

    def _start_after_trial(self, reason: str, what: str) -> None:
        """It cannot save itself and go on, so that this is not asked of it any more."""
        self.status = replace(self.status, broken=self.latest.generation, ends=True)
        self.set_back(reason, what, ran=True, keeps=True)

    def _finishes(self) -> bool:
        """Whether all processes of its latest start ended by themselves, and well."""
        well = ended_well(self.started)
        if not well or len(well) < len(self.started) or len(well) < self.latest.containers:
            return False
        self.follow_progress()
        ending = describe_end(self.job, self.status, self.started)
        if ending.reason == ENDED_EARLY and not self.job.training.may_end_early:
            return self._fails_by_ending(ending)
        self.end(Event.FINISHED, ending.reason, ending.message, exit_code=0)
        return True

    def _fails_by_ending(self, ending: Ending) -> bool:
        """It ended before its user lets it: once for each start, whose end is seen until the next."""
        if self.latest.generation <= self.status.broken:
            return False
        self.status = replace(self.status, broken=self.latest.generation, exit_code=0)
        self.fail(ending.message, reason=ending.reason)
        return True

    def _reaches_target(self) -> bool:
        target = self.job.training.target
        if target is None or self.status.reached < target.patience:
            return False
        value = f"{target.metric} is {self.status.metric:g}"
        message = f"{value}, and {target.value:g} was asked for"
        self.end(Event.FINISHED, "TargetReached", message, exit_code=0)
        return True

    def _is_overdue(self) -> bool:
        limit, started = self.job.limits.active_deadline_seconds, self.status.started_at
        if limit is None or started is None or self.now - started <= limit:
            return False
        self.end(Event.FAILED, "DeadlineExceeded", f"it took longer than {limit} s")
        return True

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
                self.set_back("GPUsVanished", what, ran=True, keeps=False)
                return True
        return False

    def _is_refused_gpus(self) -> bool:
        """A SideCar started nothing, because others use its GPUs or it cannot tell them apart."""
        refusal = next(filter(None, map(find_refusal, self.started)), None)
        if refusal is None or self.latest.generation <= self.status.broken:
            return False
        self.status = replace(self.status, broken=self.latest.generation)
        self.set_back(refusal.name, refusal.message, ran=True, keeps=False)
        return True

    def _crashes(self) -> bool:
        failed = [seat for seat in self.started if seat.phase is SideCarPhase.FAILED]
        if not failed or self.latest.generation <= self.status.broken:
            return False
        self.status = replace(self.status, broken=self.latest.generation, exit_code=code_of(failed))
        missing = find_missing_command(failed)
        if missing is None:
            self.fail(describe_failure(failed))
        else:
            # Whatever is started again finds as little, so that the user hears of it at once.
            self.end_without_command(missing)
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
        self.fail(f"no iteration came for {idle:.0f} s", reason="StalledForTooLong")
        return True

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
            f"waits: its pod on {where} does not answer; it restarts once it is proven that"
            " no process of it is left there"
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
            self.fail(message, reason=reason, keeps=False)
        elif reason in NODES_REFUSE:
            # The platform leaves that node out for some time, so it is another one or none.
            self.step_back(reason, message, 0.0)
        elif pod.stuck and times >= self.rules.most_setbacks:
            self.end(Event.FAILED, reason, f"{message}; it was tried {times + 1} times")
        else:
            self.set_back(reason, message, ran=False, keeps=False)
        self._say_of_pods(reason, message)
        return True

    def _say_of_pods(self, reason: str, message: str) -> None:
        said = Condition(ConditionType.INITIALIZED, status=False, reason=reason, message=message)
        self.status = self.status.with_condition(said, self.now)

    def _is_late(self, seat: Seat) -> bool:
        if seat.has_ended or seat.contact.reachable or seat.pod.phase is PodPhase.LOST:
            return False
        since = self.status.booked_at if seat.fresh else seat.contact.since
        return self.now - since > patience_with(seat.pod, self.rules)

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
            self.set_back("Restarted", "its start was interrupted", ran=True, keeps=True)
            return True
        loss = explain_loss(self.scene, self.all_seats, status.placement, self.latest.generation)
        if loss.fault:
            self.fail(loss.what, reason=loss.reason, keeps=loss.keeps)
        else:
            self.set_back(loss.reason, loss.what, ran=True, keeps=loss.keeps)
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

    def _note_pods(self) -> None:
        before = self.status.condition(ConditionType.INITIALIZED)
        quiet = quiet_seconds(self.scene, self.rules)
        self.status = tell_of_pods(self.status, self.all_seats, self.now, quiet)
        told = self.status.condition(ConditionType.INITIALIZED)
        if told is not None and told.status and told is not before:
            # It is about to be told to run, so that this costs no record of its own.
            placement = self.status.placement
            self.status = self.status.with_used(placement.nodes if placement is not None else ())
        # That they are up is told when it trains.
        if told is not None and not told.status and told != before:
            self.news.append(News(told.reason, told.message, warning=True))

    def _note_saving(self) -> None:
        if self.status.phase is not Phase.RUNNING:
            return
        before = self.status.condition(ConditionType.SAVED)
        self.status = tell_of_saving(self.job, self.status, self.now)
        told = self.status.condition(ConditionType.SAVED)
        if (
            told is not None
            and not told.status
            and told.reason != TO_BE_TRIED
            and told != before
            and len(self.job.gpus.options) > 1
        ):
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
