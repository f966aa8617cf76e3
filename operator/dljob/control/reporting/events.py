"""Makes Events for people when GPUs are given, changed, taken or refused.

The text of a step's Event is the message of the job's status. A waiting job gets an Event when the
kind of its reason changes, and not each time that the numbers in it do: otherwise a thousand jobs
in the queue would cause a thousand Events for each job that ends.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence

from dljob.control.acting.task_pool import do_all
from dljob.control.situation.ports import Fenced, Platform
from dljob.control.situation.rules import News
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import ConditionType, Status
from dljob.core.model import CauseCode, JobId
from dljob.core.planning import Move, Plan, Reshape, Start, Step, Stop, Wait

log = logging.getLogger(__name__)

HOPELESS_CODES = frozenset({CauseCode.TOO_LARGE, CauseCode.CHECKPOINT_ELSEWHERE})
HOPELESS = frozenset({*(code.value for code in HOPELESS_CODES), "PolicyFailed"})
"""Reasons to wait that last until a person acts."""

_NAMES: Mapping[type[Step], str] = {
    Start: "Scheduled",
    Reshape: "Reshaping",
    Move: "Moving",
    Stop: "Stopping",
}

_NAMES_BY_KIND = {kind.__name__.lower(): name for kind, name in _NAMES.items()} | {
    Wait.__name__.lower(): "Waiting"
}


def event_name(kind: str) -> str:
    """Return the reason of the Event for a kind of history entry."""
    return _NAMES_BY_KIND.get(kind, kind[:1].upper() + kind[1:])


def news_of_decision(
    before: Scene, statuses: Mapping[JobId, Status], *, plan: Plan | None
) -> Iterator[tuple[JobId, News]]:
    """Yield the news of a decision; there is no plan if the policy failed."""
    steps = {step.job: step for step in plan.steps} if plan is not None else {}
    for job, status in statuses.items():
        step = steps.get(job)
        if step is not None and not isinstance(step, Wait):
            yield job, News(_NAMES[type(step)], status.message)
        else:
            yield from _news_of_wait(job, before.entries[job].status, after=status)


def _news_of_wait(job: JobId, before: Status, *, after: Status) -> Iterator[tuple[JobId, News]]:
    old, new = (each.condition(ConditionType.SCHEDULED) for each in (before, after))
    if new is None or (old is not None and (old.status, old.reason) == (new.status, new.reason)):
        return
    # The name of the Event says already that it waits.
    message = new.message.removeprefix("waits: ")
    yield job, News("Waiting", message, warning=new.reason in HOPELESS)


def news_of_quarantine(
    before: Scene, statuses: Mapping[JobId, Status]
) -> Iterator[tuple[JobId, News]]:
    """Yield the news of jobs that are set aside or readmitted."""
    for job, status in statuses.items():
        old = before.entries[job].status.condition(ConditionType.SET_ASIDE)
        new = status.condition(ConditionType.SET_ASIDE)
        if new is None or new == old:
            continue
        if new.status:
            yield job, News("SetAside", f"is set aside: {new.message}", warning=True)
        elif old is not None and old.status:
            yield job, News("Readmitted", new.message)


async def tell_all(platform: Platform, all_news: Iterable[tuple[JobId, News]]) -> None:
    """Write the Events, those of each job in their order."""
    told: dict[JobId, list[News]] = {}
    for job, news in all_news:
        told.setdefault(job, []).append(news)
    await do_all(_tell_of(platform, job, all_news=news) for job, news in told.items())


async def _tell_of(platform: Platform, job: JobId, *, all_news: Sequence[News]) -> None:
    for news in all_news:
        try:
            await platform.tell(job, news.reason, news.message, warning=news.warning)
        except Fenced:
            raise
        except Exception:
            # Events are for people, so scheduling does not fail without them.
            log.exception("cannot write the Event of job %s: %s", job, news.message)
