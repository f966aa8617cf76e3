"""
The plan for jobs that are not submitted yet, as documents: ``dljob submit --dry-run`` on one machine and on a cluster.

The decision is made with and without the new jobs, and the differences are shown. Nothing is recorded.
"""

from collections.abc import Callable, Mapping
from typing import Any

from dlcontrol.deciding.futures import foresee_in_time, turn_document
from dlcontrol.situation.status_documents import Json
from dlcore import foreseeing
from dlcore.contract import Policy
from dlcore.foreseeing import Effect, Turn
from dlcore.model import JobId, Placement, Snapshot
from dlcore.planning import Step, Wait
from dlstore.tables import placement_document


def plan_documents(
    before: Snapshot, after: Snapshot, *, policy: Policy, may_see: Callable[[JobId], bool]
) -> list[Json]:
    """Show the effects on all jobs; ``after`` has the new jobs too. This takes long with thousands of jobs."""
    effects = foreseeing.preview(before, after, policy=policy)
    coming = foresee_in_time(after, policy)
    return [
        effect_document(
            effect,
            coming.get(effect.job),
            now=after.now,
            is_whole=effect.is_new or may_see(effect.job),
        )
        for effect in effects
    ]


def effect_document(
    effect: Effect, turn: Turn | None = None, *, now: float = 0.0, is_whole: bool = True
) -> Json:
    """
    Show the effect of a plan on a job and, if the job waits, its expected turn.

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
        secondsAfter=_rounded(effect.seconds_after),
        iterationsPerSecond=_rounded(effect.speed.value) if effect.speed is not None else None,
        confidence=_rounded(effect.speed.confidence) if effect.speed is not None else None,
        queue=turn_document(turn, now) if turn is not None and _is_waiting(effect) else None,
    )


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
