"""
The assumptions of a policy about a job, where neither its user nor its history provides the facts;
for people to read.

A policy names in ``assumes`` every piece of knowledge that its decisions use, with its fallback.
Which pieces a job lacks follows from the snapshot (:class:`Assumptions`), so ``dljob why`` shows a
fallback exactly as long as it is used. Nothing is decided here.
"""

from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from math import inf, isfinite
from statistics import median
from typing import NamedTuple, Protocol, runtime_checkable

from dljob.core.contract import Policy
from dljob.core.explaining.phrases import duration
from dljob.core.model import GpuDemand, JobState, Snapshot
from dljob.core.placement.largest import acceptable_types, largest_possible
from dljob.core.placement.needs import Needs
from dljob.core.predicting.predictor import Predictor
from dljob.core.profiles import JobType
from dljob_wire.problems import listed

MOST_NAMED = 4
"""Up to this many numbers of GPUs are named; more are counted."""


class Knowledge(Enum):
    """The knowledge about a job that a decision may use, in the words of ``dljob policies``."""

    LENGTH = "the iterations that it needs"
    SPEED = "speed on at least one number of GPUs"
    MEASURED = "measured speed on each of its numbers of GPUs"
    BATCH = "measured speed with other batch sizes, where its batch is elastic"
    EPOCH = "iterations of one epoch"


Assumes = Mapping[Knowledge, str]
"""The behaviour of a policy without a piece of knowledge; its name is the subject of the
sentence."""

GUESSES = "uses a model's guess, made from the speeds of other numbers of GPUs and of other jobs"
USUAL_CURVE = "supposes that it scales like the usual job"
AS_LONG_AGAIN = "supposes that it needs as long again as it has trained, and at least an hour on its fewest GPUs"

BY_TIMES: Assumes = {
    Knowledge.LENGTH: AS_LONG_AGAIN,
    Knowledge.SPEED: "starts it on its fewest GPUs, and supposes that it scales like the usual job once it trains",
    Knowledge.MEASURED: GUESSES,
}
"""The fallbacks of the policies that compare predicted times
(:mod:`dljob.core.predicting.predictor`)."""

BY_RANK: Assumes = {
    Knowledge.LENGTH: "puts it behind all jobs of known length",
    Knowledge.SPEED: "puts it behind all jobs of known speed",
    Knowledge.MEASURED: GUESSES,
}
"""The fallbacks of the policies that order rigid jobs by the time left
(:mod:`dljob.core.policies.common.ranking`)."""


@runtime_checkable
class Assuming(Protocol):
    """A policy that names its fallbacks; a policy that uses no knowledge has none."""

    @property
    def assumes(self) -> Assumes:
        """Every piece of knowledge that its decisions use, and the fallback for each."""
        ...


@runtime_checkable
class Remembering(Protocol):
    """A policy that expects a job of unknown length to be like those that have ended."""

    def recall_lengths(self, state: object) -> Collection[float]:
        """Return the lengths that a state of the policy holds, in seconds on one GPU."""
        ...


class _Speeds(NamedTuple):
    """How a job's speeds are known on all numbers of GPUs that it may be given."""

    possible: int
    """How many such numbers there are, over all types."""
    known: int
    """For how many of them a speed is believed, measured or not."""
    guessed: Mapping[str, tuple[int, ...]]
    """The unmeasured ones, by type."""


class Assumptions:
    """The assumptions of one policy about the jobs of one snapshot."""

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        self._snapshot = snapshot
        self._name = policy.name
        self._assumes: Assumes = policy.assumes if isinstance(policy, Assuming) else {}
        self._predictor = Predictor.of(snapshot)
        state = snapshot.policy_state
        lengths = policy.recall_lengths(state) if isinstance(policy, Remembering) else ()
        self._usual = median(lengths) if lengths else inf
        self._waiting: dict[tuple[JobType, GpuDemand, Needs | None], _Speeds] = {}

    def of(self, state: JobState) -> tuple[str, ...]:
        """Return what is assumed about a job: a clause for each piece of knowledge that it
        lacks."""
        if not self._assumes:
            return ()
        lacks = dict(self._iter_lacks(state))
        told = [
            f"{lacks[piece]}; {self._name} {fallback}"
            for piece, fallback in self._assumes.items()
            if piece in lacks
        ]
        if Knowledge.LENGTH in self._assumes and state.iterations_between is not None:
            low, high = state.iterations_between
            told.append(
                f"its length follows from its target; {self._name} uses a prediction, between"
                f" {low:,.0f} and {high:,.0f} iterations"
            )
        return tuple(told)

    def _iter_lacks(self, state: JobState) -> Iterator[tuple[Knowledge, str]]:
        """Yield each missing piece of knowledge about a job, with its clause."""
        if not isfinite(state.iterations_total):
            yield Knowledge.LENGTH, "its length is unknown"
        speeds = self._find_speeds(state)
        if speeds.possible and not speeds.known:
            yield Knowledge.SPEED, self._describe_unknown(state)
        elif speeds.guessed:
            yield Knowledge.MEASURED, f"its speed{_on(speeds.guessed)} is not measured yet"
        own = state.job.type
        if state.job.batch.elastic and not any(
            (kind.model, kind.dataset) == (own.model, own.dataset)
            and kind.batch_size != own.batch_size
            for kind in self._snapshot.profiles
        ):
            yield Knowledge.BATCH, "its speed with other batch sizes is not measured yet"
        if not state.job.training.iterations_per_epoch:
            yield Knowledge.EPOCH, "how long its epochs are is unknown"

    def _describe_unknown(self, state: JobState) -> str:
        """Return the clause for a job of unknown speed, so that the time of its iterations is unknown too."""
        had, total = state.service_at(self._snapshot.now), state.iterations_total
        clause = "no speed of it is known" + (" but the present one" if _shows_speed(state) else "")
        if had > 0.0:
            clause += f" after {duration(had)} of GPU time"
        if had > self._usual:
            clause += ", more than half of the latest jobs needed"
        takes = f", nor how long its {total:,.0f} iterations take"
        return clause + (takes if isfinite(total) else "")

    def _find_speeds(self, state: JobState) -> _Speeds:
        if state.placement is not None or state.bound_to:
            return self._look_at_speeds(state)
        # Thousands of jobs may wait, and few of them differ in the inputs of this.
        key = (state.job.type, state.job.gpus, state.needs)
        known = self._waiting.get(key)
        if known is None:
            known = self._waiting[key] = self._look_at_speeds(state)
        return known

    def _look_at_speeds(self, state: JobState) -> _Speeds:
        """Look at every shape that the job may be given, packed on the fewest nodes."""
        possible = known = 0
        guessed: dict[str, tuple[int, ...]] = {}
        held = state.placement
        # A running job keeps its type of GPU.
        kinds = (held.gpu_type,) if held else acceptable_types(state, self._snapshot.cluster)
        for kind in kinds:
            unseen: list[int] = []
            options = state.job.gpus.options
            if held is None:
                most = largest_possible(state, self._snapshot.cluster, gpu_type=kind)
                options = tuple(gpus for gpus in options if gpus <= most)
            for gpus in options:
                speed, confidence = self._predictor.estimate(
                    state.job, self._predictor.shape(gpus, kind)
                )
                possible += 1
                known += speed > 0.0
                is_seen = held is not None and gpus == held.gpus and _shows_speed(state)
                if confidence < 1.0 and not is_seen:
                    unseen.append(gpus)
            if unseen:
                guessed[kind] = tuple(unseen)
        return _Speeds(possible, known, guessed)


def _shows_speed(state: JobState) -> bool:
    """Return whether the job trains now, so that its present speed is known."""
    return state.placement is not None and state.speed > 0.0 and not state.adjusting


def _on(guessed: Mapping[str, tuple[int, ...]]) -> str:
    """Name the GPUs: ``on 2, 4 or 8 GPUs``, or by type where there are several."""
    counts = {_write_counts(numbers) for numbers in guessed.values()}
    kinds = [kind for kind in guessed if kind]
    if len(guessed) == 1 or len(counts) > 1:
        parts = [
            f"{_write_counts(numbers)}{f' of type {kind}' if kind and len(guessed) > 1 else ''}"
            for kind, numbers in guessed.items()
        ]
        return f" on {', or on '.join(parts)}"
    return f" on {counts.pop()} of type {listed(kinds, 'or')}"


def _write_counts(numbers: tuple[int, ...]) -> str:
    if len(numbers) > MOST_NAMED:
        return f"{len(numbers)} of its numbers of GPUs"
    return f"{listed(numbers, 'or')} GPU{'' if numbers == (1,) else 's'}"
