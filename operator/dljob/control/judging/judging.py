"""Makes new statuses from a scene: judges each job by the news about its pods and processes.

SideCars report what their processes do; this package concludes that a job has started, has
finished, has crashed and gets another attempt, or will not be tried again. The result depends on
one scene only, so a restarted controller comes to the same conclusions as its predecessor.
Processes are identified by the *start* that they belong to, a generation on the wire. The current
decision about a job may be newer than its living processes, because the job trains on until its new
GPUs are free or the jobs that get its old ones are ready. The end of an older start still counts.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from dljob.control.judging import live_changes, trials
from dljob.control.judging.checkpoints import (
    TO_BE_TRIED,
    follow_saving,
    reset_trust,
    tell_of_saving,
)
from dljob.control.judging.conditions import (
    UNTRUSTED,
    tell_of_pods,
    tell_of_quota,
    tell_of_troubles,
)
from dljob.control.judging.ends_and_retries import Case, Happening, Then
from dljob.control.judging.happenings import (
    GIVEN_BACK,
    find_crash,
    find_deadline,
    find_end_by_live_trial,
    find_end_by_trial,
    find_end_when_asked,
    find_failed_start,
    find_falling_apart,
    find_finish,
    find_freeze_by_trial,
    find_live_change_not_made,
    find_lost_gpus,
    find_lost_newcomers,
    find_lost_pod,
    find_refused_gpus,
    find_stall,
    find_target,
    find_untrusted,
    has_just_ended,
    note_falling_apart,
)
from dljob.control.judging.progress import (
    count_change,
    count_every,
    counted,
    tell_of_stall,
    total_iterations,
)
from dljob.control.judging.unchanged_pods import UnchangedPods, quiet_seconds
from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.ports import Entry, PodPhase
from dljob.control.situation.process_sets import find_intact, placement_of
from dljob.control.situation.quarantine import Quarantine
from dljob.control.situation.rules import USUAL_RULES, Learnt, News, Rules, Verdict
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import Condition, ConditionType, Status
from dljob.core import lifecycle
from dljob.core.lifecycle import Event
from dljob.core.measuring import Resumption
from dljob.core.model import GpuRef, JobId, Mechanism, Phase, Placement
from dljob.core.predicting.learning_curves import Forecast
from dljob_wire.messages import Phase as SideCarPhase

HAPPENINGS: tuple[Callable[[Case], Happening | None], ...] = (
    find_untrusted,
    find_end_by_trial,
    find_end_by_live_trial,
    find_finish,
    find_target,
    find_deadline,
    find_end_when_asked,
    find_lost_gpus,
    find_refused_gpus,
    find_crash,
    find_freeze_by_trial,
    find_stall,
    find_live_change_not_made,
    find_lost_newcomers,
    find_lost_pod,
    find_failed_start,
    find_falling_apart,
)
"""In the order of the checks: the first match decides."""


def judge(
    scene: Scene,
    rules: Rules = USUAL_RULES,
    *,
    quarantine: Quarantine | None = None,
    forecasts: Mapping[JobId, Forecast] | None = None,
    resumptions: Mapping[JobId, Resumption] | None = None,
    starting: UnchangedPods | None = None,
) -> dict[JobId, Verdict]:
    """Return the new status of every job that has changed."""
    quarantine = quarantine if quarantine is not None else Quarantine()
    starting = starting if starting is not None else UnchangedPods()
    starting.keep(scene.entries)
    verdicts: dict[JobId, Verdict] = {}
    for job, entry in scene.entries.items():
        if job in quarantine.untouched:
            continue
        expected = (forecasts or {}).get(job)
        iterations = expected.iterations if expected is not None else None
        learnt = Learnt(iterations, (resumptions or {}).get(job))
        try:
            verdict = _judge_one(scene, entry, rules=rules, learnt=learnt, starting=starting)
        except Exception as error:  # noqa: BLE001 - one job's data never stops the others
            quarantine.add(job, error)
            continue
        if verdict is not None:
            verdicts[job] = verdict
    verdicts.update(_iter_takers(scene, verdicts, rules))
    return verdicts


def _iter_takers(
    scene: Scene, verdicts: Mapping[JobId, Verdict], rules: Rules
) -> Iterator[tuple[JobId, Verdict]]:
    """Yield the jobs that do not get GPUs after all, because their holders have just given that decision back."""
    kept: dict[GpuRef, JobId] = {}
    for job, verdict in verdicts.items():
        placement = verdict.status.placement
        if placement is not None and any(news.reason == GIVEN_BACK for news in verdict.news):
            kept.update(dict.fromkeys(placement.refs(), job))
    for job, entry in scene.entries.items() if kept else ():
        before = verdicts.get(job, Verdict(entry.status))
        placement = before.status.placement
        refs = placement.refs() if placement is not None else ()
        holder = next((kept[ref] for ref in refs if kept.get(ref, job) != job), None)
        if holder is None:
            continue
        case = Case(scene, entry, rules=rules)
        message = (
            f"job {holder} keeps GPUs that it was to get, because its processes do not change live"
        )
        case.apply(Happening(Then.STEP_BACK, before.status, reason=GIVEN_BACK, message=message))
        yield job, Verdict(case.status, (*before.news, *case.news))


def _is_at_rest(entry: Entry, forecast: float | None) -> bool:
    """Return True for a job that is over or just waits and needs no judging, as thousands may."""
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
    scene: Scene, entry: Entry, *, rules: Rules, learnt: Learnt, starting: UnchangedPods
) -> Verdict | None:
    told, ceiling = entry.status, scene.ceilings.get(entry.job.id)
    if ceiling is not None or told.condition(ConditionType.QUOTA_RESERVED) is not None:
        told = tell_of_quota(told, ceiling, now=scene.now)
    if told is entry.status:
        if _is_at_rest(entry, learnt.forecast):
            return None
        if starting.is_as_it_was(scene, entry, rules=rules, forecast=learnt.forecast):
            return None
    case = Case(scene, entry, rules=rules)
    case.status = told
    verdict = reach_verdict(case, learnt)
    if verdict.status != entry.status or verdict.news:
        return verdict
    starting.note(scene, entry, rules=rules, forecast=learnt.forecast)
    return None


def reach_verdict(case: Case, learnt: Learnt) -> Verdict:
    every = count_every(case.scene.holding)
    case.status = counted(case.status, case.now, is_held=bool(case.job_pods), every=every)
    if case.entry.cancelled:
        if case.status.placement is not None:
            case.status = case.status.decided(None, now=case.now, saves=False)
    elif case.entry.problem:
        _give_back_unused(case)
    else:
        _judge_all(case, learnt)
        case.note_end_of_pods()
    return Verdict(case.status, tuple(case.news))


def _judge_all(case: Case, learnt: Learnt) -> None:
    """Apply the first happening that is found; the next cycle judges the rest."""
    case.forecast = learnt.forecast
    # First, because the SideCar may leave, and news of the next start may overtake this report.
    judged = case.status.judged
    case.status = follow_saving(case.status, case.all_job_pods, now=case.now)
    if case.status.judged != judged:
        _note_saving(case)
    case.status, news = trials.follow_trial(
        case.status, case.job, started=case.started, now=case.now
    )
    case.news.extend(news)
    case.status, news = live_changes.follow(case.status, case.started, now=case.now)
    case.news.extend(news)
    _resume(case)
    _take_up(case)
    if has_just_ended(case):
        case.follow_progress()
    found = next(filter(None, (find(case) for find in HAPPENINGS)), None)
    if found is not None:
        _apply(case, found)
        return
    case.status = note_falling_apart(case)
    _note_pods(case)
    _note_running(case)
    if case.latest.generation == case.status.run_generation:
        case.status = count_change(case.status, case.started, resumption=learnt.resumption)
    case.follow_progress()
    if case.status.phase is Phase.RUNNING:
        _note_saving(case)
    stall = tell_of_stall(case.status, case.started, now=case.now)
    _tell_if_new(case, stall, kind=ConditionType.PROGRESSING, well=True)
    troubles = tell_of_troubles(case.status, case.job_pods, now=case.now)
    _tell_if_new(case, troubles, kind=ConditionType.TROUBLED, well=False)


def _apply(case: Case, found: Happening) -> None:
    if found.then is Then.FINISH:
        # A training that finished during the trial of its checkpoint needs no remedy.
        case.news[:] = [news for news in case.news if news.reason != trials.NOT_CONFIRMED]
    case.apply(found)
    if found.reason == UNTRUSTED and case.status.is_final:
        # The news of the end has another reason.
        case.news.insert(0, News(UNTRUSTED, found.message, warning=True))


def _give_back_unused(case: Case) -> None:
    """Release the GPUs of a job that is set aside, unless the job trains."""
    status = case.status
    if status.placement is None or any(_may_be_used(case, job_pod) for job_pod in case.job_pods):
        return
    message = f"has given its GPUs back, because it is set aside: {case.entry.problem}"
    said = Condition(ConditionType.SCHEDULED, status=False, reason="SetAside", message=message)
    done = status.decided(None, now=case.now, saves=False)
    phase = lifecycle.advance(done.phase, Event.DISPLACED)
    done = replace(done, phase=phase, paused_at=None, message=message)
    case.status = done.with_condition(said, case.now)
    case.news.append(News("GPUsGivenBack", message, warning=True))


def _may_be_used(case: Case, job_pod: JobPod) -> bool:
    if job_pod.is_stamped(case.scene.epoch):
        return job_pod.start > 0 or bool(job_pod.contact.coming)
    return job_pod.booking.serial in case.status.used or job_pod.start > 0


def _resume(case: Case) -> None:
    if case.status.phase is Phase.SUSPENDED and not case.job.suspend:
        phase = lifecycle.advance(case.status.phase, Event.RESUMED)
        status = reset_trust(case.status)
        case.status = replace(status, phase=phase, cause=None, message="was resumed")
        case.news.append(News("Resumed", "it is in the queue again"))


def _take_up(case: Case) -> None:
    """Let a job continue in place if its processes still train on a node that was lost and is back."""
    status, scene = case.status, case.scene
    if not case.entry.may_come_back or scene.mechanism is not Mechanism.IN_PLACE:
        return
    start = find_intact(scene, case.job.id)
    if start is None or not _has_heard_nothing_newer(case, start.generation):
        return
    placement = placement_of(scene, start)
    if placement is None or any(ref in scene.claims for ref in start.gpus):
        return
    message = f"continues at {placement}: its node is back, and the training never stopped"
    status = status.decided(placement, now=case.now, batch_size=start.batch_size)
    status = replace(status, phase=lifecycle.advance(status.phase, Event.PLACED), message=message)
    case.status = start.adopted_by(status, scene.held_by(case.job.id)).with_condition(
        Condition(ConditionType.SCHEDULED, status=True, reason="NodeBack", message=message),
        case.now,
    )
    case.news.append(News("NodeBack", message))


def _has_heard_nothing_newer(case: Case, generation: int) -> bool:
    """Return True if all living pods answer and no newer command may be on its way to them."""
    begun = case.scene.begun.get(case.job.id)
    if begun is not None and begun.generation > generation:
        return False  # The command was forgotten with the address, but may still arrive.
    return all(
        job_pod.contact.reachable and job_pod.pod.phase is PodPhase.UP
        for job_pod in case.job_pods
        if job_pod.is_living
    )


def _note_running(case: Case) -> None:
    status, placement = case.status, case.status.placement
    if placement is None:
        return
    # A SideCar that waits for the end of a trial, or goes on as before, has the command but not its processes.
    begun = [
        job_pod
        for job_pod in case.job_pods
        if job_pod.has_begun(status.run_generation) and job_pod.start == status.run_generation
    ]
    is_whole = {job_pod.key.node for job_pod in begun} >= set(placement.nodes)
    if is_whole and all(job_pod.phase is SideCarPhase.RUNNING for job_pod in begun):
        if status.phase in (Phase.INITIALIZED, Phase.ADJUSTING):
            _be_running(case, placement)
        elif status.setbacks and case.now - status.decided_at > case.rules.steady_seconds:
            case.status = replace(status, setbacks=0)
    elif status.phase is Phase.ADJUSTING and status.paused_at is None and not case.trains:
        case.status = replace(status, paused_at=case.now)


def _be_running(case: Case, placement: Placement) -> None:
    status = live_changes.count(case.status, case.started)
    was_changed = status.phase is Phase.ADJUSTING
    was_live = status is not case.status
    # Until its first step the job does not train, and the cost of the change is unknown.
    paused_at = status.paused_at if status.paused_at is not None else case.now
    case.status = replace(
        status,
        phase=lifecycle.advance(status.phase, Event.STARTED),
        running=status.run_generation,
        containers=len(placement.nodes),
        leftover=case.scene.held_by(case.job.id).difference(placement.refs()),
        bound_to=() if case.job.checkpoint.shared else placement.nodes,
        # The pause of a live change is over, and its SideCars have timed it.
        paused_at=paused_at if was_changed and not was_live else None,
        reshape_seconds=status.reshape_seconds + status.live_seconds - case.status.live_seconds,
    )
    how = ""
    if was_live:
        pause = status.live_seconds - case.status.live_seconds
        how = f"; its processes stayed and paused for {live_changes.in_ms(pause)}" if pause else ""
    case.news.append(News("Running", f"trains on {placement}{how}"))


def _note_pods(case: Case) -> None:
    before = case.status.condition(ConditionType.INITIALIZED)
    quiet = quiet_seconds(case.scene, case.rules)
    case.status = tell_of_pods(
        case.status,
        case.all_job_pods,
        now=case.now,
        quiet=quiet,
        # Half of the time after which the pod is ended.
        start=max(quiet, case.rules.lost_seconds / 2),
    )
    told = case.status.condition(ConditionType.INITIALIZED)
    if told is not None and told.status and told is not before:
        # The command to run follows at once, so this needs no write of its own.
        placement = case.status.placement
        case.status = case.status.with_used(placement.nodes if placement is not None else ())
    # DLJob reports that they are up when the job trains.
    if told is not None and not told.status and told != before:
        case.news.append(News(told.reason, told.message, warning=True))


def _note_saving(case: Case) -> None:
    before, pods = case.status.condition(ConditionType.SAVED), case.all_job_pods
    case.status = tell_of_saving(case.job, case.status, job_pods=pods, now=case.now)
    told = case.status.condition(ConditionType.SAVED)
    if (
        told is not None
        and not told.status
        and told.reason != TO_BE_TRIED
        and told != before
        and len(case.job.gpus.options) > 1
    ):
        case.news.append(News(told.reason, told.message, warning=True))


def _tell_if_new(case: Case, status: Status, *, kind: ConditionType, well: bool) -> None:
    before, case.status = case.status, status
    fresh = status.condition(kind)
    if status is before or fresh is None:
        return
    known = before.condition(kind)
    # A condition that only leaves out some of its former reasons is no news.
    if (
        known is None
        or fresh.status is not known.status
        or not set(fresh.reason.split(",")) <= set(known.reason.split(","))
    ):
        case.news.append(News(fresh.reason, fresh.message, warning=fresh.status is not well))
