"""
The jobs that have had GPUs: what one decision finds remembered of them, and what it leaves.

:class:`Trainees` keeps the marks from which epochs are counted, and the limits on batch sizes
(section 3.3.2). :mod:`dljob_lab.policies.elastic.ones.policy` makes one for each decision.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from dljob.core.contract import Share, View
from dljob.core.model import JobId, JobState
from dljob_lab.policies.elastic.ones.epochs import Epochs
from dljob_lab.policies.elastic.ones.memory import (
    MOST_LOGGED,
    Memory,
    Trainee,
    grow_limit,
    resume_limit,
    shrink_limit,
    start_limit,
)
from dljob_lab.policies.elastic.ones.progress import Features, Reported
from dljob_lab.policies.elastic.ones.searching import most_gpus


class Trainees:
    """The memory of the jobs that run, and of those that have had GPUs and wait."""

    def __init__(
        self, memory: Memory, view: View, *, stopped: Iterable[JobState], epochs: Epochs
    ) -> None:
        self._view = view
        self._epochs = epochs
        self._updated_at = memory.updated_at
        self._states = (*view.running, *stopped)
        self._known = {
            state.id: self._hear(state, self._find(state, memory.trainees.get(state.id)))
            for state in self._states
        }

    def __contains__(self, job: JobId) -> bool:
        return job in self._known

    def _find(self, state: JobState, known: Trainee | None) -> Trainee:
        now = self._view.now
        done = state.iterations_at(now)
        if known is None:
            held = state.placement.gpus if state.placement is not None else state.least
            return Trainee(limit=max(held, state.least), mark=done, since=now)
        if state.placement is None and known.since is not None:
            # It lost its GPUs by no decision of ours.
            return replace(known, since=None, ran_seconds=known.ran_at(now))
        if state.placement is not None and known.since is None:
            return replace(known, since=now, mark=done)
        # A failure may have taken it back behind the mark.
        return replace(known, mark=min(known.mark, done))

    def _hear(self, state: JobState, trainee: Trainee) -> Trainee:
        reported = trainee.reported.after(state)
        return replace(trainee, reported=reported) if reported != trainee.reported else trainee

    def look_at(self, state: JobState) -> Features:
        """Return what is known of a job now."""
        trainee = self._known.get(state.id)
        return self._epochs.look_at(state, Reported() if trainee is None else trainee.reported)

    def count_epochs(self, state: JobState) -> float:
        """Epochs finished since the schedule was updated."""
        return self._epochs.count_since(state, self._known[state.id].mark)

    def has_finished(self, state: JobState) -> bool:
        """Return whether it has finished an epoch, so that it may be changed."""
        return not state.adjusting and self.count_epochs(state) >= 1.0

    def has_run_since_update(self, state: JobState) -> bool:
        """Return whether it ran at the last update: an update does not wait for jobs started later."""
        since = self._known[state.id].since
        return since is not None and since <= self._updated_at

    def ran_seconds(self, job: JobId) -> float:
        """For how long the job has trained."""
        trainee = self._known.get(job)
        return trainee.ran_at(self._view.now) if trainee is not None else 0.0

    # --- limits

    def limit_waiting(self, state: JobState) -> int:
        """Return how many GPUs a job without any may get."""
        trainee = self._known.get(state.id)
        return trainee.limit if trainee is not None else start_limit(state)

    def raise_limit(self, state: JobState, *, penalty: float) -> int:
        """The limit of a job by the four rules; it is remembered without the penalty."""
        if state.placement is None:
            return self.limit_waiting(state)
        trainee = self._known[state.id]
        most = max(state.least, most_gpus(state, self._view, kind=state.placement.gpu_type))
        epochs = int(self.count_epochs(state))
        # The penalty is left out, because it would shrink its own result at each update.
        limit = grow_limit(trainee.limit, epochs, most=most)
        self._known[state.id] = replace(trainee, limit=limit)
        return shrink_limit(
            trainee.limit,
            epochs,
            most=most,
            ran_seconds=trainee.ran_at(self._view.now),
            penalty=penalty,
            least=state.least,
        )

    # --- what is remembered

    def remember(self, shares: Mapping[JobId, Share], *, is_update: bool) -> dict[JobId, Trainee]:
        """The trainees for the next decision, those among them that start now."""
        now = self._view.now
        trainees = {
            state.id: self._remember(state, shares.get(state.id), is_update=is_update)
            for state in self._states
        }
        for state in self._view.pending.select(shares.keys() - trainees.keys()).values():
            done = state.iterations_at(now)
            limit = max(start_limit(state), shares[state.id].gpus)
            trainees[state.id] = self._log(Trainee(limit=limit, mark=done, since=now), state)
        return trainees

    def _remember(self, state: JobState, share: Share | None, *, is_update: bool) -> Trainee:
        trainee, now = self._known[state.id], self._view.now
        if share is None and state.placement is not None:
            # It may come back with the GPUs that it had.
            return replace(
                trainee,
                limit=state.placement.gpus,
                since=None,
                ran_seconds=trainee.ran_at(now),
            )
        if share is None:
            limit = resume_limit(trainee.limit, least=state.least)
            return replace(trainee, limit=limit) if is_update else trainee
        done = state.iterations_at(now)
        if state.placement is None:
            return replace(trainee, since=now, mark=done)
        if not is_update or not self.has_finished(state):
            return trainee
        return self._log(replace(trainee, mark=done), state)

    def _log(self, trainee: Trainee, state: JobState) -> Trainee:
        """Note how far a job is, for the regression when it has ended."""
        features = self._epochs.look_at(state, trainee.reported)
        logged = trainee.logged
        if features.processed > 0.0:
            logged = (*logged, features)
        if len(logged) > MOST_LOGGED:
            logged = logged[::2]
        done = state.iterations_at(self._view.now)
        # Not JSON's: an infinite number is none of its numbers.
        total = state.iterations_total if state.iterations_total < math.inf else 1e300
        return replace(
            trainee,
            logged=logged,
            latest=(done, state.speed, total, self._epochs.measure(state)),
            seen_at=self._view.now,
        )
