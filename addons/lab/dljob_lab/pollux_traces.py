"""
Pollux's applications, of which a trace of Pollux is made.

Called by :mod:`dljob.sim.jobs.scaling` for such traces, and by :mod:`dljob_lab.worlds`, which gives the jobs of other
traces an application each.
"""

import math
from collections.abc import Mapping
from pathlib import Path

from dljob.core.profiles import JobType, Profile
from dljob.sim.inputs.shipped import StepTimes, find_folder, load_step_times
from dljob.sim.inputs.tables import Table
from dljob.sim.inputs.traces import Request
from dljob.sim.jobs.scaling import Profiles, find_measured


class PolluxApplications:
    """
    Pollux's applications: speeds from measured step times, work from measured trainings.

    A workload says with which global batch a job trains. Speeds follow at any number of GPUs
    that was measured and leaves each of them no smaller a part of the batch than was measured.
    """

    def __init__(self, table: Profiles) -> None:
        self._table = table
        self._times: Mapping[str, StepTimes] = load_step_times()
        self._iterations = _load_iterations(find_folder() / "pollux_iterations.csv")

    def find(self, request: Request, kind: JobType) -> Profile:
        """The speeds at the batch of this job."""
        return self.profile_at(kind) or find_measured(self._table, request, kind)

    def profile_at(self, kind: JobType) -> Profile | None:
        """The speeds at a batch, unless it is too small or the application unknown."""
        times = self._times.get(kind.model)
        if kind in self._table or times is None:
            return self._table.get(kind)
        speeds = times.speeds_at(kind.batch_size)
        return Profile(kind, speeds) if speeds else None

    def batches_of(self, model: str) -> Mapping[int, float]:
        """The batches with which the application was trained, with the iterations of each."""
        return self._iterations.get(model, {})

    def identify(self, request: Request) -> tuple[JobType, float]:
        """The type of this job, and when its training is complete."""
        measured = self._iterations.get(request.model)
        if measured is None:
            raise request.row.error(
                f"how long {request.model!r} trains was never measured",
                field="application",
                remedy=f"take one of {', '.join(self._iterations)}",
            )
        iterations = _between(measured, request.batch_size)
        if iterations is None:
            raise request.row.error(
                f"{request.model} was not trained with a batch of {request.batch_size}",
                field="batch_size",
                remedy=f"take one from {min(measured)} to {max(measured)}",
            )
        return JobType(request.model, "", request.batch_size), iterations


def _load_iterations(path: Path) -> Mapping[str, Mapping[int, float]]:
    columns = ("application", "global_batch_size", "epochs", "iterations")
    iterations: dict[str, dict[int, float]] = {}
    for row in Table.read(path, required=columns):
        batch = row.whole("global_batch_size", least=1)
        iterations.setdefault(row.name("application"), {})[batch] = row.positive("iterations")
    return iterations


def _between(measured: Mapping[int, float], batch: int) -> float | None:
    """Interpolate, straight on logarithmic scales, between the nearest batches measured."""
    lower = max((each for each in measured if each <= batch), default=None)
    upper = min((each for each in measured if each >= batch), default=None)
    if lower is None or upper is None:
        return None
    if lower == upper:
        return measured[lower]
    share = math.log(batch / lower) / math.log(upper / lower)
    return float(measured[lower] * (measured[upper] / measured[lower]) ** share)
