"""
Events in the life of a job: each function finds one, and changes nothing.

In the order of this file: the end of a job, failures of its processes, and failures of its pods.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from dljob.control.gpus.occupancy import find_refusal
from dljob.control.gpus.visibility import cannot_prove, missing_in
from dljob.control.judging import live_changes, trials
from dljob.control.judging.checkpoints import counts
from dljob.control.judging.conditions import UNTRUSTED, say_untrusted
from dljob.control.judging.ends_and_retries import Case, Happening, Then
from dljob.control.judging.exits import (
    ENDED_EARLY,
    EXIT_NOT_EXECUTABLE,
    EXIT_NOT_FOUND,
    NOT_EXECUTABLE,
    NOT_FOUND,
    Ending,
    describe_end,
    describe_failure,
    ended_with_zero,
    exited,
    exited_unasked,
    find_culprit,
    has_done_all,
    states_of,
)
from dljob.control.judging.progress import idle_seconds
from dljob.control.judging.silence import is_lost
from dljob.control.judging.unchanged_pods import NODES_REFUSE, patience_with
from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.ports import PodPhase
from dljob.control.situation.process_sets import ProcessSet, find_members
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import (
    Condition,
    ConditionType,
    DecisionNumber,
    StartNumber,
    Status,
    Trust,
)
from dljob.core.model import Placement
from dljob_wire.messages import Phase as SideCarPhase
from dljob_wire.messages import Run
from dljob_wire.training import is_at_end

GIVEN_BACK: Final = "LiveChangeGivenBack"


def has_just_ended(case: Case) -> bool:
    """Return True if the job may have ended, so that its last progress counts before that is judged."""
    return _have_ended_with_zero(case) or bool(_find_end_of_trial(case))


def find_end_by_trial(case: Case) -> Happening | None:
    """Find a job that ended during the trial of its checkpoint; it starts again."""
    what = _find_end_of_trial(case)
    is_over = False
    if what and _have_exited(case):
        # A training that exits when it has saved itself ends like this, too.
        has_saved = trials.has_saved(case.last.job_pods)
        is_over = _has_reported_all(case) if has_saved else _has_done_all(case)
    if not what or is_over:
        return None
    return _start_after_trial(case, "EndedByTrial", message=what)


def _find_end_of_trial(case: Case) -> str:
    is_new = case.latest.generation > case.status.broken
    return trials.find_ended(case.started) if is_new else ""


def find_end_by_live_trial(case: Case) -> Happening | None:
    """Find a job whose live trial has ended its training; it starts again from its checkpoint."""
    what = live_changes.find_end_by_trial(case.started)
    if not what or case.latest.generation <= case.status.broken:
        return None
    status = case.broken_status()
    return Happening(Then.RESTART, status, reason="EndedByLiveTrial", message=what)


def find_freeze_by_trial(case: Case) -> Happening | None:
    what = trials.find_frozen(case.started)
    if not what or case.latest.generation <= case.status.broken:
        return None
    return _start_after_trial(case, "FrozenByTrial", message=what)


def _start_after_trial(case: Case, reason: str, *, message: str) -> Happening:
    # The training cannot save itself and go on, so no further trial is made.
    status = replace(case.broken_status(), ends=True)
    return Happening(Then.RESTART, status, reason=reason, message=message)


def find_finish(case: Case) -> Happening | None:
    """Find a job whose processes of the latest start all ended well, even if they were asked to end."""
    ending = _describe_end(case) if _have_ended_with_zero(case) else None
    if ending is None:
        return None
    if ending.reason == ENDED_EARLY and not case.job.training.may_end_early:
        if case.latest.generation <= case.status.broken:
            return None  # It was reported once for this start.
        status = replace(case.broken_status(), exit_code=0)
        return Happening(Then.RETRY, status, reason=ending.reason, message=ending.message)
    return _finish(case, ending)


def _describe_end(case: Case) -> Ending | None:
    """Return how the training ended; None if it is not done, as far as DLJob knows."""
    done = Ending("Finished", "its training finished")
    if _has_reported_all(case):
        return done
    if case.last.generation <= case.status.broken:
        return None  # This end was judged before.
    unasked = exited_unasked(case.last.job_pods)
    status = case.status
    # A trial may have shown that the training saves itself and goes on.
    goes_on = status.tried > 0 and status.trust is Trust.CONFIRMED and not status.ends
    if _all_ended(case.last, unasked, forgotten=case.ended.unasked) or (
        goes_on and _have_exited(case)
    ):
        return describe_end(case.job, case.status, job_pods=case.last.job_pods)
    # A training that exits when it has saved itself looks the same, so its count decides.
    return done if _have_exited(case) and _has_done_all(case) else None


def find_end_when_asked(case: Case) -> Happening | None:
    """
    Find a training that ended when it was asked to save itself, before it was done and without a confirmation.

    Its SideCar starts nothing until the controller has judged this end.
    """
    if not _have_ended_with_zero(case) or case.status.placement is None:
        return None
    wanted = case.status.run_generation
    if not any(_waits_for_judgement(job_pod, wanted) for job_pod in case.last.job_pods):
        return None
    message = "its training ended when it was asked to save itself, and confirmed no checkpoint"
    return Happening(Then.RESTART, case.broken_status(), reason="EndedWhenAsked", message=message)


def _waits_for_judgement(job_pod: JobPod, wanted: StartNumber) -> bool:
    state, told = job_pod.state, job_pod.told
    if state is None or state.phase is not SideCarPhase.EXITED or not isinstance(told, Run):
        return False
    is_waiting = state.held_generation < told.generation == wanted
    return is_waiting and told.ended not in (None, state.held_generation)


def _finish(case: Case, ending: Ending) -> Happening:
    return Happening(
        Then.FINISH, case.status, reason=ending.reason, message=ending.message, exit_code=0
    )


def _have_ended_with_zero(case: Case) -> bool:
    last = case.last
    return bool(last.job_pods) and _all_ended(
        last, ended_with_zero(last.job_pods), forgotten=case.ended.containers
    )


def _all_ended(last: ProcessSet, ended: Sequence[JobPod], *, forgotten: int) -> bool:
    """Return True if the ``ended`` are all pods of the latest start, and no container is unaccounted for."""
    return len(ended) >= len(last.job_pods) and len(ended) + forgotten >= last.containers


def _have_exited(case: Case) -> bool:
    return _all_ended(case.last, exited(case.last.job_pods), forgotten=case.ended.unasked)


def _is_counted(case: Case) -> bool:
    """Return True if the iteration in the status is of the latest start, and not of a former one."""
    return case.status.heard == case.last.generation


def _has_reported_all(case: Case) -> bool:
    total = case.job.training.iterations or 0
    return _is_counted(case) and is_at_end(case.status.iteration, total)


def _has_done_all(case: Case) -> bool:
    return _is_counted(case) and has_done_all(case.job, case.status, job_pods=case.last.job_pods)


def find_target(case: Case) -> Happening | None:
    target = case.job.training.target
    if target is None or case.status.reached < target.patience:
        return None
    value = f"{target.metric} is {case.status.metric:g}"
    message = f"{value}, and {target.value:g} was asked for"
    return _finish(case, Ending("TargetReached", message))


def find_deadline(case: Case) -> Happening | None:
    limit, started = case.job.limits.active_deadline_seconds, case.status.started_at
    if limit is None or started is None or case.now - started <= limit:
        return None
    return Happening(
        Then.GIVE_UP,
        case.status,
        reason="DeadlineExceeded",
        message=f"it took longer than {limit} s",
    )


def find_untrusted(case: Case) -> Happening | None:
    """Find pods whose SideCar contradicts itself: that counts as one failure of the job."""
    untrusted = [pod for pod in case.job_pods if pod.untrusted]
    if not untrusted:
        return None
    message = say_untrusted(untrusted)
    known = case.status.condition(ConditionType.TROUBLED)
    if known is not None and known.status and known.message == message:
        return Happening(Then.NOTHING, case.status)
    broken = max(case.latest.generation, case.status.running, case.status.broken)
    return Happening(
        Then.RETRY,
        replace(case.status, broken=broken),
        reason=UNTRUSTED,
        message=message,
        keeps=False,
        condition=Condition(ConditionType.TROUBLED, status=True, reason=UNTRUSTED, message=message),
    )


def find_lost_gpus(case: Case) -> Happening | None:
    """Find a container that cannot use GPUs of its command; only a new container may see them again."""
    if case.status.placement is None:
        return None
    wanted = set(case.status.placement.refs())
    for pod in case.job_pods:
        if pod.is_leaving or not _needs_its_gpus(pod):
            continue
        missing = missing_in(case.scene, pod)
        if ref := next((ref for ref in sorted(missing) if ref in wanted), None):
            status = case.broken_status() if pod in case.started else case.status
            return Happening(
                Then.RESTART,
                status,
                reason="GPUsVanished",
                message=f"its processes cannot use GPU {ref}: {missing[ref]}",
                keeps=False,
            )
    return None


def find_refused_gpus(case: Case) -> Happening | None:
    """Find a SideCar that started nothing, because others use its GPUs or it cannot identify them."""
    refusal = next(filter(None, map(find_refusal, case.started)), None)
    if refusal is None or case.latest.generation <= case.status.broken:
        return None
    return Happening(
        Then.RESTART,
        case.broken_status(),
        reason=refusal.name,
        message=refusal.message,
        keeps=False,
    )


def find_crash(case: Case) -> Happening | None:
    failed = [pod for pod in case.started if pod.phase is SideCarPhase.FAILED]
    if not failed or case.latest.generation <= case.status.broken:
        return None
    culprit, code = find_culprit(failed), None
    if culprit is not None:  # As a shell reports it.
        code = culprit.exit_code if culprit.signal is None else 128 + culprit.signal
    status = replace(case.broken_status(), exit_code=code)
    problems = (problem for state in states_of(failed) for problem in state.problems)
    missing = next((each for each in problems if each.name in (NOT_FOUND, NOT_EXECUTABLE)), None)
    if missing is None:
        return Happening(Then.RETRY, status, reason="Crashed", message=describe_failure(failed))
    # The command is missing or not executable. Another attempt would change nothing.
    return Happening(
        Then.GIVE_UP,
        replace(status, failures=status.failures + 1),
        reason=missing.name,
        message=f"{missing.message}; {missing.remedy}",
        exit_code=EXIT_NOT_FOUND if missing.name == NOT_FOUND else EXIT_NOT_EXECUTABLE,
    )


def find_stall(case: Case) -> Happening | None:
    """Find a job whose iterations have not advanced for the time that its user allows."""
    limit = case.job.progress.restart_seconds
    if limit is None or case.latest.generation <= case.status.broken or not case.trains:
        return None
    idle = idle_seconds(case.status, case.job, started=case.started, now=case.now)
    if idle < limit:
        return None
    # A training that hangs cannot save itself.
    return Happening(
        Then.RETRY,
        case.broken_status(),
        reason="StalledForTooLong",
        message=f"no iteration came for {idle:.0f} s",
    )


def _needs_its_gpus(job_pod: JobPod) -> bool:
    """Return True if processes could not begin, or hang, for want of GPUs."""
    state = job_pod.state
    if state is None or state.phase is SideCarPhase.EXITED:
        return False
    hangs = state.phase is SideCarPhase.RUNNING and state.progress.stalled
    return hangs or not job_pod.is_living or cannot_prove(job_pod)


def find_live_change_not_made(case: Case) -> Happening | None:
    """Find a decision that the processes of the job cannot carry out live, and that a restart may not carry out."""
    placement, status = case.status.placement, case.status
    why = live_changes.find_withdrawal(case.entry.status, case.job_pods)
    if placement is not None and not why:
        is_late = live_changes.are_late(case.job, status, case.started, now=case.now)
        if is_late and not counts(case.job, status, now=case.now):
            status = live_changes.give_up(status, case.started, now=case.now)
            why = "its processes have not registered for live changes"
    if placement is None or not why or find_members(case.scene, case.job.id) is None:
        return None
    message = f"keeps its GPUs, and the decision for {placement} is given back: {why}"
    return Happening(Then.GIVE_BACK, status, reason=GIVEN_BACK, message=message)


def find_lost_newcomers(case: Case) -> Happening | None:
    """Find lost nodes on which processes were to join the others: these go on without them."""
    scene, placement = case.scene, case.status.placement
    if placement is None:
        return None
    gone = {pod.key.node for pod in case.job_pods if is_lost(pod, scene)}
    lost = [node for node in placement.nodes if node in gone or node not in scene.nodes]
    start = find_members(scene, case.job.id) if lost else None
    if start is None or any(ref.node in lost for ref in start.gpus):
        return None
    message = f"trains on as before: {', '.join(lost)} was lost before its processes there had joined the others"
    return Happening(Then.GIVE_BACK, case.status, reason="NodeLost", message=message)


def find_lost_pod(case: Case) -> Happening | None:
    """Find pods on which neither the platform nor the SideCar has reported for too long."""
    placement = case.status.placement
    lost = [pod for pod in case.job_pods if is_lost(pod, case.scene)]
    if not lost or placement is None:
        return None
    is_elsewhere = not any(pod.key.node in placement.nodes for pod in lost)
    if is_elsewhere and find_members(case.scene, case.job.id) is not None:
        return None  # The processes there have never joined those that train.
    status = case.broken_status() if len(case.started) > 1 else case.status
    where = ", ".join(sorted(pod.key.node for pod in lost))
    message = (
        f"waits: its SideCar on {where} does not answer; it restarts once it is proven that"
        " no process of it is left there"
    )
    return Happening(Then.WAIT, status, reason="PodLost", message=message)


def find_failed_start(case: Case) -> Happening | None:
    """Find a pod that ended before anything ran in it, or that takes too long to come up."""
    placement = case.status.placement
    if placement is None or case.now < case.status.retry_at:
        return None
    needed = [pod for pod in case.all_job_pods if pod.key.node in placement.nodes]
    ended = [pod for pod in needed if pod.has_ended and pod.fresh]
    late = [pod for pod in needed if _is_late(case, pod)]
    pod = next((found.pod for found in (*ended, *late)), None)
    if pod is None:
        return None
    why = pod.message or pod.reason
    how = "ended before it could be used" if ended else "does not start"
    message = f"its SideCar on {pod.key.node} {how}{f': {why}' if why else ''}"
    reason, times = pod.reason or "NotInitialized", case.status.setbacks
    condition = _not_initialized(reason, message)
    then = Then.RESTART
    if pod.fault:
        then = Then.RETRY
    elif reason in NODES_REFUSE:
        # The platform leaves that node out for some time, so the job gets another one or none.
        then = Then.STEP_BACK
    elif pod.stuck and times >= case.rules.most_setbacks:
        then, message = Then.GIVE_UP, f"{message}; it was tried {times + 1} times"
    return Happening(
        then,
        case.status,
        reason=reason,
        message=message,
        ran=False,
        keeps=False,
        condition=condition,
    )


def _not_initialized(reason: str, message: str) -> Condition:
    return Condition(ConditionType.INITIALIZED, status=False, reason=reason, message=message)


def _is_late(case: Case, job_pod: JobPod) -> bool:
    if job_pod.has_ended or job_pod.contact.reachable or job_pod.pod.phase is PodPhase.LOST:
        return False
    since = case.status.booked_at if job_pod.fresh else case.scene.silent_since(job_pod)
    return case.now - since > patience_with(job_pod.pod, case.rules)


def find_falling_apart(case: Case) -> Happening | None:
    """Find a start that lost some of its processes or containers, for which the others would wait for ever."""
    status = note_falling_apart(case)
    if status is case.status:
        return None
    if status.placement is None or 0 < case.latest.generation < status.run_generation:
        return None  # A new start follows in any case.
    if not case.latest.is_incomplete:
        message = "its start was interrupted"
        return Happening(Then.RESTART, status, reason="Restarted", message=message)
    # These pods took part in the start and no longer do; a fresh pod never did.
    start = max(case.latest.generation, 1)
    lost = [
        pod
        for pod in case.all_job_pods
        if pod.key.node in status.placement.nodes
        and (pod.has_ended or (not pod.fresh and pod.start < start))
    ]
    lost.sort(key=lambda pod: (not pod.pod.fault, not pod.has_ended, not pod.pod.reason))
    then, reason, message = Then.RESTART, "Restarted", "one of its SideCars was started again"
    if lost and lost[0].pod.reason:
        first = lost[0].pod
        then = Then.RETRY if first.fault else Then.RESTART
        # The restart of a container is the news, not the failure before it.
        reason = first.reason if first.fault or lost[0].has_ended else reason
        message = first.message or f"its SideCar on {first.key.node} is gone ({first.reason})"
    return Happening(
        then,
        status,
        reason=reason,
        message=message,
        keeps=all(_may_return(case.scene, pod, placement=status.placement) for pod in lost),
        condition=_not_initialized(reason, message),
    )


def note_falling_apart(case: Case) -> Status:
    """Return the status with the broken start and the newest generation; the same object if nothing is broken."""
    if any(not pod.is_stamped(case.scene.epoch) and not pod.fresh for pod in case.job_pods):
        return (
            case.status
        )  # A command of a former controller may be on its way, and complete the start.
    is_incomplete, foreign = case.latest.is_incomplete, case.latest.foreign_generation
    if not (is_incomplete or foreign or case.latest.is_undone):
        return case.status
    status = case.broken_status() if is_incomplete else case.status
    # A command that SideCars have received counts, even if its record was lost.
    generation = max(case.status.generation, DecisionNumber(foreign // 2))
    return replace(status, generation=generation)


def _may_return(scene: Scene, job_pod: JobPod, *, placement: Placement) -> bool:
    """Return True if the node can take a new pod of the job at once."""
    if not job_pod.has_ended:
        return True
    node = scene.nodes.get(job_pod.key.node)
    if node is None or job_pod.pod.unwelcome:
        return False
    needed = {ref.number for ref in placement.refs() if ref.node == job_pod.key.node}
    return needed <= set(node.usable)
