"""
One sentence for every job in every state, with the numbers of this moment: ``dljob why``.

The message in a job's status was true at the time of the decision. This module explains the job's state again, from
the scene that the loop saw last and the snapshot that follows from it: which GPUs are free already, which job is to
release some and when, which SideCar has not answered yet. It decides nothing.
"""

from collections.abc import Iterator, Sequence

from dljob.control.acting.job_in_scene import is_ready
from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.ports import Entry, PodPhase
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import Condition, ConditionType
from dljob.core.assuming import Assumptions
from dljob.core.contract import Policy
from dljob.core.explaining import sentences
from dljob.core.explaining.comparing import Worths
from dljob.core.explaining.phrases import duration
from dljob.core.model import (
    Cause,
    CauseCode,
    GpuRef,
    JobId,
    JobState,
    NodeName,
    Phase,
    Placement,
    Snapshot,
)
from dljob.core.predicting.predictor import Predictor, Span
from dljob.core.predicting.spans import span_remaining
from dljob_wire.messages import Stop

_UNDECIDED = "was submitted just now, and nothing is decided about it yet"


class Outlook:
    """The explanations of all jobs at one instant."""

    def __init__(
        self,
        scene: Scene,
        snapshot: Snapshot,
        *,
        policy: Policy | None = None,
        worths: Worths = sentences.UNSAID,
    ) -> None:
        self._scene = scene
        self._snapshot = snapshot
        self._worths = worths
        self._assumptions = Assumptions(snapshot, policy) if policy is not None else None
        self._states = {state.id: state for state in (*snapshot.running, *snapshot.pending)}
        self._predictor = Predictor.of(snapshot)
        self._shares = sentences.describe_shares(snapshot) if snapshot.limits.shares else {}

    def remaining(self, job: JobId) -> Span | None:
        """Return the seconds until the job ends if nothing changes; infinite or ``None`` if unknown."""
        state = self._states.get(job)
        if state is None or state.placement is None or state.iterations_total == float("inf"):
            return None
        if state.gang > state.placement.gpus:
            return None  # A gang trains only when it is complete.
        span = span_remaining(self._predictor, state, now=self._snapshot.now)
        return None if span.low == float("inf") else span

    def sentence(self, entry: Entry) -> str:
        """Return what the job does now, and why."""
        aside, placement = _find(entry, ConditionType.SET_ASIDE), entry.status.placement
        if entry.status.is_final or (entry.problem and not entry.cancelled):
            return entry.problem or entry.status.message
        if entry.cancelled:
            return f"is cancelled{self._lingering(entry)}"
        if aside is not None and aside.status:
            return f"is set aside: {aside.message}"
        if placement is None:
            return self._waiting(entry)
        state = self._states.get(entry.job.id)
        if entry.status.phase is Phase.RUNNING and state is not None:
            return self._training(entry, state)
        return f"{entry.status.message}. Now {self._obstacle(entry, placement)}"

    def assumptions(self, job: JobId) -> tuple[str, ...]:
        """Return what the policy assumes about a job for lack of knowledge."""
        state = self._states.get(job)
        known = self._assumptions
        return known.of(state) if state is not None and known is not None else ()

    # --- without GPUs

    def _waiting(self, entry: Entry) -> str:
        status = entry.status
        pause = status.retry_at - self._scene.now
        if pause > 0.0:
            return f"is tried again in {duration(pause)}: {status.message}"
        state = self._states.get(entry.job.id)
        if entry.job.suspend:
            cause: Cause | None = Cause(CauseCode.SUSPENDED)
        else:
            cause = status.cause
        if state is None or cause is None:
            return status.message or _UNDECIDED
        told = sentences.sentence_for_wait(self._snapshot, state, cause=cause, worths=self._worths)
        return told + self._lingering(entry)

    def _lingering(self, entry: Entry) -> str:
        nodes = [
            str(node)
            for node, job_pod in self._scene.pods_of(entry.job.id).items()
            if job_pod.pod.phase is not PodPhase.ENDED
        ]
        return f"; on {' and '.join(nodes)} its processes are ending" if nodes else ""

    # --- with GPUs

    def _training(self, entry: Entry, state: JobState) -> str:
        told = sentences.sentence_for_training(self._snapshot, state)
        if share := self._shares.get(state.id):
            told += f"; {share}"
        stalled = _find(entry, ConditionType.PROGRESSING)
        if stalled is not None and not stalled.status:
            since = entry.status.iterated_at
            still = f"no iteration for {duration(self._scene.now - since)}" if since else ""
            told += f". It makes no progress: {still or stalled.message}"
        return f"{told}. Lately: {entry.status.message}"

    def _obstacle(self, entry: Entry, placement: Placement) -> str:
        pause = entry.status.retry_at - self._scene.now
        if pause > 0.0:
            return f"it waits {duration(pause)} before it is started again"
        found = (
            *self._iter_missing_pods(entry, placement),
            *self._iter_holders(entry.job.id, placement),
            *self._iter_unready(entry, placement),
        )
        if found:
            return found[0]
        return "its processes are being started"

    def _iter_missing_pods(self, entry: Entry, placement: Placement) -> Iterator[str]:
        job_pods = self._scene.pods_of(entry.job.id)
        for node in placement.nodes:
            job_pod = job_pods.get(node)
            if job_pod is None:
                yield f"its SideCar on {node} is about to be started"
            elif job_pod.pod.phase is not PodPhase.UP:
                reason = ": ".join(
                    part for part in (job_pod.pod.reason, job_pod.pod.message) if part
                )
                known = f" ({reason})" if reason else ""
                yield f"its SideCar on {node} is {job_pod.pod.phase.value.lower()}{known}"
            elif not job_pod.contact.reachable:
                yield f"its SideCar on {node} does not answer{_quoted(job_pod.contact.problem)}"

    def _iter_holders(self, job: JobId, placement: Placement) -> Iterator[str]:
        awaited: dict[JobId, list[GpuRef]] = {}
        for ref in placement.refs():
            for holder in self._scene.holders.get(ref, ()):
                if holder != job:
                    awaited.setdefault(holder, []).append(ref)
        for holder, refs in awaited.items():
            yield f"it waits for {holder} to release {_named(refs)}"

    def _iter_unready(self, entry: Entry, placement: Placement) -> Iterator[str]:
        scene, job_pods = self._scene, self._scene.pods_of(entry.job.id)
        former = [
            n
            for n, job_pod in job_pods.items()
            if (state := job_pod.state) is not None
            and not state.released
            and state.held_generation < entry.status.run_generation
        ]
        if any(isinstance(job_pods[node].told, Stop) for node in former):
            yield from map(_ending, former)
        for node in placement.nodes:
            job_pod = job_pods.get(node)
            if job_pod is None or job_pod.state is None or job_pod.is_living:
                continue
            if job_pod.is_warm(scene.warm_seconds, scene.now):
                continue
            what = f"its interpreters on {node} are getting ready{_warmth(job_pod)}"
            left = scene.warm_seconds - (scene.now - job_pod.contact.first_seen)
            if former:
                yield f"it trains on as before while {what}, for {left:.0f} s at most"
            else:
                yield f"{what}; it starts without them in {left:.0f} s at most"
        yield from map(_ending, former)
        if not is_ready(scene, entry.job.id):
            yield "its SideCars are getting ready"


def _find(entry: Entry, kind: ConditionType) -> Condition | None:
    return next((each for each in entry.status.conditions if each.type is kind), None)


def _ending(node: NodeName) -> str:
    return f"its former processes on {node} are saving and ending"


def _named(refs: Sequence[GpuRef]) -> str:
    """Name a few, and count the rest."""
    if len(refs) <= 4:
        return ", ".join(map(str, refs))
    return f"{refs[0]} and {len(refs) - 1} others"


def _quoted(problem: str) -> str:
    return f" ({problem})" if problem else ""


def _warmth(job_pod: JobPod) -> str:
    if job_pod.state is None:
        return ""
    warmth = job_pod.state.warmth
    return f" ({warmth.ready} of {warmth.wanted})" if warmth.wanted else ""
