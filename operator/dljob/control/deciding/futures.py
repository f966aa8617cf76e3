"""
The answers of a controller about the future, as documents: when jobs start, a plan, and what if.

All of them are plays of :mod:`dljob.core.foreseeing` from a snapshot of the controller. A plan is the decision with and
without jobs that are not submitted yet (``dljob submit --dry-run``); *what if* is the future of all jobs, as it is and
with one change. Nothing is recorded. On one machine the controller answers at its socket. The operator of a cluster
has no socket for users, so the client makes the snapshot from the objects of the API server, and calls the same functions.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import count
from typing import Any, Final, NamedTuple

from dljob.control.gpus.marking import marked
from dljob.control.situation.ports import Entry
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import Status
from dljob.control.situation.status_documents import Json, read_time, write_time
from dljob.core.contract import Policy
from dljob.core.foreseeing import (
    NO_TIME,
    Course,
    Effect,
    Turn,
    foresee,
    foresee_all,
    foresee_courses,
    name_some,
    preview,
)
from dljob.core.model import GpuRef, Job, JobId, NodeName, Placement, Snapshot
from dljob.core.planning import Step, Wait
from dljob.core.predicting.predictor import Span
from dljob.known_policies import read_live_policy
from dljob.store.tables import placement_document
from dljob_wire.problems import Problem, WrongDocument

LONGEST_S: Final = 2.0
"""The time limit of a forecast for a plan or a list of jobs."""

REACTION_S: Final = 5.0
"""The longest time in seconds from news to the decision about them, on a machine that is not overloaded."""

MAY_KEEP: Final = "; it does not train yet on its present GPUs, and may keep them once it does"

WHAT_IF_S: Final = 40.0
"""The time limit of the two futures of a question together."""

LARGEST_NUMBER: Final = 10**6


class PolicyError(Exception):
    """The policy makes no plan; ``str()`` is one line with the remedy."""

    def __init__(self, policy: Policy, error: Exception) -> None:
        super().__init__(
            f"the policy {policy.name} cannot decide about these jobs ({type(error).__name__}:"
            f" {' '.join(str(error).split())}); choose another one in the setting policy, or"
            " correct it"
        )


def make_limit(seconds: float) -> Callable[[], bool]:
    """Return a function that returns true after these seconds."""
    until = time.monotonic() + seconds
    return lambda: time.monotonic() > until


# --- when waiting jobs start


def foresee_in_time(snapshot: Snapshot, policy: Policy) -> dict[JobId, Turn]:
    """Forecast starts for :data:`LONGEST_S` at most; the starts of later jobs stay unknown."""
    return foresee(snapshot, policy, is_late=make_limit(LONGEST_S))


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


# --- plans


def joined(scene: Scene, jobs: Sequence[Job]) -> Scene:
    """Return the scene as if these jobs had just been submitted."""
    order = 1 + max((entry.order for entry in scene.entries.values()), default=-1)
    newcomers = {
        job.id: Entry(
            replace(job, submitted_at=scene.now), order + place, Status(submitted_at=scene.now)
        )
        for place, job in enumerate(jobs)
    }
    return replace(scene, entries={**scene.entries, **newcomers})


def plan_documents(
    before: Snapshot, after: Snapshot, *, policy: Policy, may_see: Callable[[JobId], bool]
) -> list[Json]:
    """
    Show the effects on all jobs; ``after`` has the new jobs too. This takes long with thousands of jobs.

    Raises :class:`PolicyError`.
    """
    try:
        effects = preview(before, after, policy=policy)
        coming = foresee_in_time(after, policy)
        new = [effect.job for effect in effects if effect.is_new and effect.job in coming]
        courses = foresee_courses(after, policy, jobs=new, is_late=make_limit(LONGEST_S))
    except Exception as error:
        raise PolicyError(policy, error) from error
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
    seconds_after, bounds = effect.seconds_after, dict[str, Any]()
    if course is not None:
        end = _bounds(course.end, now)
        bounds = {"start": _bounds(course.start, now) or None}
        bounds["end"] = end or {"unknownBecause": course.unknown_because}
        seconds_after = course.end.expected if end else seconds_after
    return without_nothing(
        job=effect.job,
        submitted=effect.is_new,
        step=_kind(effect.step),
        message=effect.sentence,
        old=show_placement(effect.old),
        new=show_placement(effect.new),
        secondsBefore=_rounded(effect.seconds_before),
        secondsAfter=_rounded(seconds_after),
        iterationsPerSecond=_rounded(effect.speed.value) if effect.speed is not None else None,
        confidence=_rounded(effect.speed.confidence) if effect.speed is not None else None,
        queue=turn_document(turn, now) if turn is not None and _is_waiting(effect) else None,
        **bounds,
    )


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


# --- what if


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The differences from the system as it is; empty: none."""

    policy: str = ""
    job: str = ""
    """The job to which the next three fields belong."""
    priority: int | None = None
    least: int | None = None
    most: int | None = None
    another: str = ""
    """A copy of this job is submitted now."""
    cordon: str = ""
    """No job gets GPUs of this node any more."""


def read_question(document: Any) -> Question:
    """Read a question; raises :class:`WrongDocument`."""
    if not isinstance(document, dict):
        raise _wrong("", "the question is no JSON object", 'write such as {"policy": "fifo"}')
    known = sorted(field.name for field in fields(Question))
    for name, value in document.items():
        if name not in known:
            raise _wrong(name, "there is no such field", f"there are {', '.join(known)}")
        is_number = name in ("priority", "least", "most")
        if is_number and (type(value) is not int or abs(value) > LARGEST_NUMBER):
            wrong = f"it is no whole number of at most {LARGEST_NUMBER:,}"
            raise _wrong(name, wrong, "write a smaller one")
        if not is_number and not isinstance(value, str):
            raise _wrong(name, "it is no text", "write a name")
    question = Question(**document)
    if not question.job and (question.priority, question.least, question.most) != (None,) * 3:
        raise _wrong("job", "it is missing", "name the job with another priority or other GPUs")
    return question


def change_scene(scene: Scene, question: Question) -> Scene:
    """Return the scene with the differences of a question, except its policy; raises :class:`WrongDocument`."""
    if question.job:
        entry = _find(scene, question.job, field="job")
        changed = replace(entry, job=_change(entry.job, question))
        scene = replace(scene, entries={**scene.entries, entry.job.id: changed})
    if question.another:
        job = _find(scene, question.another, field="another").job
        names = (JobId(f"{job.id}-{number}") for number in count(2))
        name = next(each for each in names if each not in scene.entries)
        scene = joined(scene, [replace(job, id=name, suspend=False)])
    if question.cordon:
        node = scene.nodes.get(NodeName(question.cordon))
        if node is None:
            known = ", ".join(scene.nodes)
            raise _wrong("cordon", f"there is no node {question.cordon}", f"there are {known}")
        refs = {GpuRef(node.name, gpu.index): "cordoned" for gpu in node.gpus}
        scene = replace(scene, nodes={**scene.nodes, node.name: marked(node, refs)})
    return scene


def _find(scene: Scene, name: str, *, field: str) -> Entry:
    entry = scene.entries.get(JobId(name))
    if entry is None or entry.is_over:
        raise _wrong(field, f"there is no job {name}", "dljob get lists those that are")
    return entry


def _change(job: Job, question: Question) -> Job:
    if question.priority is not None:
        job = replace(job, priority=question.priority)
    if question.least is None and question.most is None:
        return job
    options = job.gpus.options
    least = options[0] if question.least is None else question.least
    most = options[-1] if question.most is None else question.most
    if not 1 <= least <= most:
        wrong = f"{least} GPUs at least and {most} at most is no range"
        raise _wrong("least", wrong, "give 1 or more, and no more than most")
    allowed = tuple(sorted({least, most, *(each for each in options if least <= each <= most)}))
    requested = min(max(job.gpus.requested, least), most)
    return replace(job, gpus=replace(job.gpus, options=allowed, requested=requested))


def _wrong(path: str, message: str, remedy: str) -> WrongDocument:
    return WrongDocument((Problem(path, None, message, remedy),))


class Posed(NamedTuple):
    """The present, and the present with the differences of a question."""

    snapshots: tuple[Snapshot, Snapshot]
    policies: tuple[Policy, Policy]


def pose(
    question: Question, scene: Scene, *, snapshot: Callable[[Scene], Snapshot], policy: Policy
) -> Posed:
    """Prepare the futures of a question; ``policy`` is the present one. Raises :class:`WrongDocument`."""
    other = policy
    if question.policy:
        try:
            other = read_live_policy(question.policy)
        except ValueError as error:
            raise _wrong("policy", str(error), "see dljob policies") from error
    then = snapshot(change_scene(scene, question))
    if other.name != policy.name:
        then = replace(then, policy_state=None)
    return Posed((snapshot(scene), then), (policy, other))


def show_futures(
    posed: Posed,
    *,
    seconds: float = WHAT_IF_S,
    limits: Sequence[str] = (),
    is_gone: Callable[[], bool] = lambda: False,
) -> Json:
    """
    Play the future as it is and the one with the differences of a question, each for half of this time at most.

    ``limits`` are what the snapshots do not know, and ``is_gone`` ends both plays. Raises :class:`PolicyError`.
    """
    notes, futures = [*limits], []
    supposed: dict[JobId, None] = {}
    for snapshot, policy in zip(*posed, strict=True):
        is_late = make_limit(seconds / 2)
        try:
            found = foresee_all(snapshot, policy, is_late=lambda late=is_late: is_gone() or late())
        except Exception as error:
            raise PolicyError(policy, error) from error
        supposed |= {job: None for job, future in found.items() if future.supposes}
        jobs = [
            {
                "job": job,
                "gpus": future.gpus,
                "endsInSeconds": _rounded(future.ends_in),
                "spans": [round(number, 1) for span in future.spans for number in span],
                **({"unknownBecause": future.unknown_because} if future.ends_in is None else {}),
            }
            for job, future in found.items()
        ]
        futures.append({"policy": policy.name, "jobs": jobs})
    if supposed:
        notes.append(
            f"the length or the speed of {name_some(list(supposed))} is not known; such a job trains for a supposed"
            " time, an hour at least (dljob profiles import --shipped adds the speeds that DLJob ships)"
        )
    return {"notes": notes, "futures": futures}
