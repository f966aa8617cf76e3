"""The epochs of jobs: how long one is, how many are processed, and how many are expected to be left."""

import math
from dataclasses import replace

from dljob.core.contract import View
from dljob.core.model import JobState
from dljob.core.placement.largest import acceptable_types
from dljob.core.predicting.predictor import SUPPOSED_S
from dljob_lab.policies.elastic.ones.progress import Features, Reported
from dljob_lab.policies.elastic.ones.searching import Speeds

SLACK = 1e-6
"""An epoch counts as finished although rounding says that this part of it is missing."""


class Epochs:
    """Epochs as jobs declare them, or else as the options of the policy cut jobs into them."""

    def __init__(self, view: View, speeds: Speeds, *, per_job: int, declared: bool) -> None:
        """``declared`` says whether the iterations that a job declares may be used."""
        self._view = view
        self._speeds = speeds
        self._per_job = per_job
        self._declared = declared

    def measure(self, state: JobState) -> float:
        """Iterations in an epoch of the job."""
        declared = state.job.training.iterations_per_epoch
        if declared:
            return float(declared)
        total = state.iterations_total
        if not 0.0 < total < math.inf or not self._declared:
            kinds = acceptable_types(state, self._view.cluster)
            held = state.placement.gpu_type if state.placement is not None else ""
            kind = held or (kinds[0] if kinds else "")
            total = SUPPOSED_S * self._speeds.find(
                replace(state, speed=0.0), state.least, kind=kind
            )
        return max(total / self._per_job, SLACK)

    def count_since(self, state: JobState, mark: float) -> float:
        """Epochs finished since the job had done ``mark`` iterations."""
        done = state.iterations_at(self._view.now) - mark
        return done / self.measure(state) + SLACK

    def look_at(self, state: JobState, reported: Reported) -> Features:
        """Return what is known of the job now: its declared length counts only while it reports nothing."""
        epoch = self.measure(state)
        expected = float(self._per_job)
        if reported.is_empty and self._declared and state.iterations_total < math.inf:
            expected = state.remaining_at(self._view.now) / epoch
        return Features(
            processed=state.iterations_at(self._view.now) / epoch,
            expected=expected,
            epoch_size=epoch * max(state.job.training.batch_size, 1),
            first_loss=reported.first_loss or 0.0,
            improvement=reported.improvement,
            accuracy=reported.share,
        )
