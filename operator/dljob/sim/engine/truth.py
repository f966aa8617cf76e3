"""
The truth about the speeds and costs of jobs, and the lengths that policies believe.

:mod:`dljob.sim.engine.world` and :mod:`dljob.sim.engine.training` ask; nothing here changes a run, but for the points
of its metric that it has reached.
"""

from collections.abc import Iterable
from dataclasses import replace

from dljob.core.model import Cluster
from dljob.core.predicting import learning_curves
from dljob.core.predicting.predictor import Predictor
from dljob.core.profiles import AccuracyPoint, Costs
from dljob.sim import beliefs
from dljob.sim.engine.runs import Run
from dljob.sim.engine.settings import Setting
from dljob.sim.jobs.workloads import Learning, TracedJob, Workload

EVALUATIONS = 20
"""How often a job that trains to a target evaluates its metric, from its start to its end."""


class Truth:
    """The true speeds and costs of jobs."""

    def __init__(self, workload: Workload, setting: Setting) -> None:
        self.workload_name = workload.name
        """For messages about a job whose speed nothing says."""
        self._trials = setting.trials
        self._predictor = Predictor(
            profiles=workload.truths,
            costs=setting.costs,
            mechanism=setting.mechanism,
            cluster=Cluster(setting.nodes),
        )

    def speed(self, run: Run) -> float:
        """Return how fast it trains where its process is; 0 if nothing is known."""
        assert run.serving is not None
        state = run.state
        return self._predictor.speed_with(state.job, run.serving.shape, batch_size=state.batch_size)

    def speed_on_one_gpu(self, run: Run) -> float:
        """True speed with one GPU; of a job that runs on one number only, its part of that speed."""
        job, predictor = run.traced.job, self._predictor
        serving = run.serving
        kind = serving.gpu_type if serving is not None else predictor.best_type(job, 1)
        options = job.gpus.options
        if len(options) == 1:
            return predictor.speed(job, predictor.shape(options[0], kind)) / options[0]
        return predictor.speed(job, predictor.shape(1, kind))

    def seconds_isolated(self, traced: TracedJob) -> float:
        """Return how long a job trains on its requested GPUs if it is alone there."""
        job, gpus, predictor = traced.job, traced.job.gpus.requested, self._predictor
        speed = predictor.speed(job, predictor.shape(gpus, predictor.best_type(job, gpus)))
        return traced.iterations / speed if speed > 0 else 0.0

    def costs_of(self, run: Run) -> Costs:
        """The costs of a change; the first start of a job that is measured before it trains costs more."""
        costs = self._predictor.costs_of(run.state.job)
        trial_s = 0.0 if run.trained else self._trials.get(run.state.job.type, 0.0)
        if not trial_s:
            return costs
        return replace(costs, process_initialization=costs.process_initialization + trial_s)


class Forecasts:
    """The lengths of jobs that policies are given."""

    def __init__(self, workload: Workload) -> None:
        self._known = workload.known
        self.are_wrong = any(traced.believed is not None for traced in workload.jobs)
        """True if policies are given a length that is not the true one."""

    def at_first(self, traced: TracedJob) -> float:
        """Return how many iterations policies believe that a job needs which has not begun."""
        if traced.believed is not None:
            return traced.believed
        return traced.iterations if traced.learning is None else self._forecast(traced, ())

    def with_batch(self, run: Run) -> float:
        """Return how many iterations policies believe that it needs, if its batch stays as it is."""
        believed = run.traced.believed
        if believed is None:
            return run.needed
        # They err about these as they do about those of its own batch.
        total = run.needed * (believed / run.traced.iterations)
        return beliefs.revise(total, run.state.iterations_done)

    def renew(self, run: Run, now: float) -> float | None:
        """
        Let a job report the accuracies that it has reached since the last call.

        Returns how many iterations it will need by all that it has reported; ``None`` without news.
        """
        learning = run.traced.learning
        if learning is None or run.traced.believed is not None:
            return None
        if not self._report(run, learning, now=now):
            return None
        return self._forecast(run.traced, run.points)

    def _report(self, run: Run, learning: Learning, *, now: float) -> bool:
        """Add the points of the evaluations since the last one; return whether there were any."""
        every = run.traced.iterations / EVALUATIONS
        wasted = run.wasted_at(now)
        due = int((run.state.iterations_at(now) - wasted) / every)
        news = range(len(run.points) + 1, due + 1)
        # A job counts what it does; what it has learnt is less where batches were larger.
        run.points.extend(
            AccuracyPoint(n * every + wasted, learning.accuracy_at(n * every)) for n in news
        )
        return len(news) > 0

    def _forecast(self, traced: TracedJob, points: Iterable[AccuracyPoint]) -> float:
        """Return how many iterations the job will need, by its points so far."""
        job = traced.job
        assert job.training.target is not None
        profile = self._known.get(job.type)
        forecast = learning_curves.predict_iterations(
            profile.accuracy if profile is not None else (),
            tuple(points),
            target=job.training.target,
            asked=job.training.iterations,
        )
        return forecast.iterations
