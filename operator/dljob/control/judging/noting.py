"""Notes on a job without a decisive event: that it runs, and its conditions."""

from dataclasses import replace

from dljob.control.judging.checkpoints import TO_BE_TRIED, tell_of_saving
from dljob.control.judging.conditions import tell_of_pods, tell_of_troubles
from dljob.control.judging.ends_and_retries import Case
from dljob.control.judging.progress import tell_of_stall
from dljob.control.judging.unchanged_pods import quiet_seconds
from dljob.control.situation.rules import News
from dljob.control.situation.status import Condition, ConditionType, Status
from dljob.core import lifecycle
from dljob.core.lifecycle import Event
from dljob.core.model import Phase, Placement
from dljob_wire.messages import Phase as SideCarPhase


def note_running(case: Case) -> None:
    status, placement = case.status, case.status.placement
    if placement is None:
        return
    begun = [job_pod for job_pod in case.job_pods if job_pod.has_begun(status.run_generation)]
    is_whole = {job_pod.key.node for job_pod in begun} >= set(placement.nodes)
    if is_whole and all(job_pod.phase is SideCarPhase.RUNNING for job_pod in begun):
        if status.phase in (Phase.INITIALIZED, Phase.ADJUSTING):
            _be_running(case, placement)
        elif status.setbacks and case.now - status.decided_at > case.rules.steady_seconds:
            case.status = replace(status, setbacks=0)
    elif status.phase is Phase.ADJUSTING and status.paused_at is None and not case.trains:
        case.status = replace(status, paused_at=case.now)


def _be_running(case: Case, placement: Placement) -> None:
    status = case.status
    was_changed = status.phase is Phase.ADJUSTING
    # Until its first step the job does not train, and the cost of the change is unknown.
    paused_at = status.paused_at if status.paused_at is not None else case.now
    case.status = replace(
        status,
        phase=lifecycle.advance(status.phase, Event.STARTED),
        running=status.run_generation,
        containers=len(placement.nodes),
        leftover=case.scene.held_by(case.job.id).difference(placement.refs()),
        bound_to=() if case.job.checkpoint.shared else placement.nodes,
        paused_at=paused_at if was_changed else None,
    )
    case.news.append(News("Running", f"trains on {placement}"))


def note_pods(case: Case) -> None:
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


def note_saving(case: Case) -> None:
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


def note_stall(case: Case) -> None:
    _tell_if_new(
        case,
        tell_of_stall(case.status, case.started, now=case.now),
        kind=ConditionType.PROGRESSING,
        well=True,
    )


def note_troubles(case: Case) -> None:
    _tell_if_new(
        case,
        tell_of_troubles(case.status, case.job_pods, now=case.now),
        kind=ConditionType.TROUBLED,
        well=False,
    )


def _tell_if_new(case: Case, status: Status, *, kind: ConditionType, well: bool) -> None:
    before, case.status = case.status, status
    fresh = status.condition(kind)
    if status is not before and fresh is not None and _says_more(fresh, before.condition(kind)):
        case.news.append(News(fresh.reason, fresh.message, warning=fresh.status is not well))


def _says_more(fresh: Condition, before: Condition | None) -> bool:
    """Return True if the condition does more than leave out some of its former reasons."""
    if before is None or fresh.status is not before.status:
        return True
    return not set(fresh.reason.split(",")) <= set(before.reason.split(","))
