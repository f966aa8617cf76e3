"""
The plan for jobs that are not submitted yet, as documents: ``dljob submit --dry-run`` on one machine and on a cluster.

The decision is made with and without the new jobs, and the differences are shown. Nothing is recorded.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from dljob.control.deciding.futures import foresee_courses_in_time, foresee_in_time
from dljob.control.situation.status_documents import Json, read_time, write_time
from dljob.core import foreseeing
from dljob.core.contract import Policy
from dljob.core.foreseeing import NO_TIME, Course, Effect, Turn
from dljob.core.model import JobId, Placement, Snapshot
from dljob.core.planning import Step, Wait
from dljob.core.predicting.predictor import Span
from dljob.store.tables import placement_document

REACTION_S: Final = 5.0
"""The longest time in seconds from news to the decision about them, on a machine that is not overloaded."""

MAY_KEEP: Final = "; it does not train yet on its present GPUs, and may keep them once it does"


class PolicyError(Exception):
    """The policy made no plan; ``str()`` is one line with the remedy."""


def plan_documents(
    before: Snapshot, after: Snapshot, *, policy: Policy, may_see: Callable[[JobId], bool]
) -> list[Json]:
    """
    Show the effects on all jobs; ``after`` has the new jobs too. This takes long with thousands of jobs.

    Raises :class:`PolicyError`.
    """
    try:
        effects = foreseeing.preview(before, after, policy=policy)
        coming = foresee_in_time(after, policy)
        new = [effect.job for effect in effects if effect.is_new and effect.job in coming]
        courses = foresee_courses_in_time(after, policy, jobs=new)
    except Exception as error:
        raise PolicyError(
            f"the policy {policy.name} cannot decide about these jobs ({type(error).__name__}:"
            f" {' '.join(str(error).split())}); choose another one in the setting policy, or"
            " correct it"
        ) from error
    starting = {state.id for state in after.running if state.adjusting}
    return [
        effect_document(
            # A decision after the first step, from which on a change may lose work, may differ.
            replace(effect, sentence=f"{effect.sentence}{MAY_KEEP}")
            if effect.job in starting and effect.old is not None
            else effect,
            coming.get(effect.job),
            course=courses.get(effect.job),
            now=after.now,
            is_whole=effect.is_new or may_see(effect.job),
        )
        for effect in effects
    ]


def effect_document(
    effect: Effect,
    turn: Turn | None = None,
    *,
    course: Course | None = None,
    now: float = 0.0,
    is_whole: bool = True,
) -> Json:
    """
    Show the effect of a plan on a job, its expected turn if the job waits, and the course of a new job.

    For another user's job (not ``is_whole``) only its GPUs are shown.
    """
    if not is_whole:
        return without_nothing(
            job=effect.job,
            submitted=effect.is_new,
            step=_kind(effect.step),
            message=_outlined(effect),
            old=show_placement(effect.old),
            new=show_placement(effect.new),
        )
    return without_nothing(
        job=effect.job,
        submitted=effect.is_new,
        step=_kind(effect.step),
        message=effect.sentence,
        old=show_placement(effect.old),
        new=show_placement(effect.new),
        secondsBefore=_rounded(effect.seconds_before),
        secondsAfter=_rounded(_seconds_after(effect, course)),
        iterationsPerSecond=_rounded(effect.speed.value) if effect.speed is not None else None,
        confidence=_rounded(effect.speed.confidence) if effect.speed is not None else None,
        queue=turn_document(turn, now) if turn is not None and _is_waiting(effect) else None,
        **(_course_document(course, now) if course is not None else {}),
    )


def turn_document(turn: Turn, now: float, *, former: Mapping[str, Any] | None = None) -> Json:
    """
    Return the turn that all verbs show.

    A start from a ``former`` forecast stays while the new forecast had no time to reach it.
    """
    if turn.starts_in is None:
        start = read_time((former or {}).get("expectedStart"))
        if turn.unknown_because == NO_TIME and start is not None and start > now:
            return {"ahead": turn.ahead, "expectedStart": write_time(start)}
        return {"ahead": turn.ahead, "unknownBecause": turn.unknown_because}
    return {"ahead": turn.ahead, "expectedStart": write_time(now + turn.starts_in)}


def _seconds_after(effect: Effect, course: Course | None) -> float | None:
    if course is not None and course.end.expected < math.inf:
        return course.end.expected
    return effect.seconds_after


def _course_document(course: Course, now: float) -> Json:
    return {
        "start": _bounds(course.start, now) or None,
        "end": _bounds(course.end, now) or {"unknownBecause": course.unknown_because},
    }


def _bounds(span: Span, now: float) -> Json:
    """Write a time with its bounds; the latest bound is left out if it is not known."""
    latest = span.high + REACTION_S
    named = {"expected": span.expected, "earliest": span.low, "latest": latest}
    if span.expected == math.inf:
        return {}
    return {name: write_time(now + at) for name, at in named.items() if at < math.inf}


def _outlined(effect: Effect) -> str:
    """Describe the effect on another user's job without the reason, which contains the job's numbers."""
    old, new = effect.old, effect.new
    if old is not None and new is not None:
        return f"goes from {_gpus(old)} to {_gpus(new)}"
    if new is not None:
        return f"starts on {_gpus(new)}"
    if old is not None:
        return f"gives up {_gpus(old)}"
    return "waits" if _is_waiting(effect) else "stays as it is"


def _gpus(placement: Placement) -> str:
    return f"{placement.gpus} GPU{'' if placement.gpus == 1 else 's'}"


def _is_waiting(effect: Effect) -> bool:
    return isinstance(effect.step, Wait)


def _kind(step: Step | None) -> str:
    return type(step).__name__.lower() if step is not None else "none"


def show_placement(placement: Placement | None) -> Mapping[str, Any] | None:
    return None if placement is None else placement_document(placement)


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 3)


def without_nothing(**fields: Any) -> Json:
    """Leave out empty fields, but not zeros."""
    return {name: value for name, value in fields.items() if value not in (None, "")}
