"""Whether pods of a job are lost, do not come up, or are gone in part."""

from dataclasses import replace

from dlcontrol.judging.coming_up import NODES_REFUSE, patience_with
from dlcontrol.judging.ends_and_retries import Case
from dlcontrol.judging.lost_pods import explain_loss
from dlcontrol.judging.silence import is_lost
from dlcontrol.situation.ports import PodPhase
from dlcontrol.situation.rules import News
from dlcontrol.situation.scene import Seat
from dlcontrol.situation.status import Condition, ConditionType
from dlcore import lifecycle
from dlcore.lifecycle import Event


def judge_lost_pod(case: Case) -> bool:
    """Whether neither the platform nor the SideCar has reported on one of its pods for too long."""
    lost = [
        seat
        for seat in case.seats
        if is_lost(seat, now=case.now, lost_seconds=case.rules.lost_seconds)
    ]
    if not lost or case.status.placement is None:
        return False
    if len(case.started) > 1:
        case.status = replace(case.status, broken=max(case.latest.generation, case.status.broken))
    where = ", ".join(sorted(seat.key.node for seat in lost))
    message = (
        f"waits: its pod on {where} does not answer; it restarts once it is proven that"
        " no process of it is left there"
    )
    status = case.status.decided(None, now=case.now)
    phase = lifecycle.advance(status.phase, Event.DISPLACED)
    case.status = replace(
        status, phase=phase, speed=0.0, paused_at=None, message=message
    ).with_condition(
        Condition(ConditionType.SCHEDULED, status=False, reason="PodLost", message=message),
        case.now,
    )
    case.news.append(News("PodLost", message, warning=True))
    return True


def judge_coming_up(case: Case) -> bool:
    """A pod that it needs ended before anything ran in it, or takes too long."""
    placement = case.status.placement
    if placement is None or case.now < case.status.retry_at:
        return False
    needed = [seat for seat in case.all_seats if seat.key.node in placement.nodes]
    ended = [seat for seat in needed if seat.has_ended and seat.fresh]
    late = [seat for seat in needed if _is_late(case, seat)]
    pod = next((seat.pod for seat in (*ended, *late)), None)
    if pod is None:
        return False
    why = pod.message or pod.reason
    how = "ended before it could be used" if ended else "does not come up"
    message = f"its pod on {pod.key.node} {how}{f': {why}' if why else ''}"
    reason, times = pod.reason or "NotInitialized", case.status.setbacks
    if pod.fault:
        case.fail(message, reason=reason, keeps=False)
    elif reason in NODES_REFUSE:
        # The platform leaves that node out for some time, so it is another one or none.
        case.step_back(reason, message, 0.0)
    elif pod.stuck and times >= case.rules.most_setbacks:
        case.end(Event.FAILED, reason, f"{message}; it was tried {times + 1} times")
    else:
        case.set_back(reason, message, ran=False, keeps=False)
    _say_of_pods(case, reason, message)
    return True


def _say_of_pods(case: Case, reason: str, message: str) -> None:
    said = Condition(ConditionType.INITIALIZED, status=False, reason=reason, message=message)
    case.status = case.status.with_condition(said, case.now)


def _is_late(case: Case, seat: Seat) -> bool:
    if seat.has_ended or seat.contact.reachable or seat.pod.phase is PodPhase.LOST:
        return False
    since = case.status.booked_at if seat.fresh else seat.contact.since
    return case.now - since > patience_with(seat.pod, case.rules)


def judge_falling_apart(case: Case) -> bool:
    """Some of its processes or containers are gone, and the others would wait for ever."""
    if any(not seat.is_stamped(case.scene.epoch) and not seat.fresh for seat in case.seats):
        return False  # A command of a former controller may be on its way, and complete the start.
    is_incomplete, foreign = case.latest.is_incomplete, case.latest.foreign_generation
    if not (is_incomplete or foreign or case.latest.is_undone):
        return False
    status = case.status
    if is_incomplete:
        status = replace(status, broken=max(case.latest.generation, status.broken))
    # A command that SideCars have got counts, even if its record was lost.
    case.status = replace(status, generation=max(status.generation, foreign // 2))
    if status.placement is None or 0 < case.latest.generation < status.run_generation:
        return False  # It will have a new start anyway.
    if not is_incomplete:
        case.set_back("Restarted", "its start was interrupted", ran=True, keeps=True)
        return True
    loss = explain_loss(
        case.scene,
        case.all_seats,
        placement=status.placement,
        generation=case.latest.generation,
    )
    if loss.fault:
        case.fail(loss.what, reason=loss.reason, keeps=loss.keeps)
    else:
        case.set_back(loss.reason, loss.what, ran=True, keeps=loss.keeps)
    _say_of_pods(case, loss.reason, loss.what)
    return True
