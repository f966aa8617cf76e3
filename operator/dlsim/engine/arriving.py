"""A job arrives in the world: the run that :mod:`dlsim.engine.world` follows from then on."""

from dlcore.model import JobState
from dlsim.engine.runs import Run
from dlsim.engine.settings import Setting
from dlsim.engine.truth import Forecasts, Truth
from dlsim.errors import BadInput
from dlsim.inputs.tables import MOST_SECONDS
from dlsim.jobs.workloads import Standing, TracedJob
from dlsim.results.records import JobRecord


def make_run(
    traced: TracedJob,
    order: int,
    *,
    now: float,
    setting: Setting,
    truth: Truth,
    forecasts: Forecasts,
) -> Run:
    """Return the run of a job that begins to wait, or goes on where a live system has it."""
    job, standing = traced.job, traced.standing or Standing()
    growth = setting.growth
    # Times of a job that was there before count from the beginning.
    begin = job.submitted_at if traced.standing is None else now
    isolated_s = truth.seconds_isolated(traced, done=standing.iterations_done)
    if isolated_s > MOST_SECONDS:
        raise BadInput(
            truth.workload_name,
            f"job {job.id} would train for {isolated_s:.3g} s on the GPUs that it requests",
            remedy=f"give it a length of at most {MOST_SECONDS:,.0f} s, which are 126 years",
        )
    record = JobRecord(job.id, job.gpus.requested, begin, isolated_s=isolated_s)
    state = JobState(
        job=job if growth is None else growth.limit(job, 0),
        order=order,
        observed_at=now,
        iterations_done=standing.iterations_done,
        iterations_total=forecasts.at_first(traced),
        service=standing.service,
        started_at=standing.started_at,
        bound_to=standing.bound_to,
        batch_size=standing.batch_size,
        keeps_first=setting.keeps_work and not traced.declares,
    )
    run = Run(traced=traced, record=record, state=state)
    run.safe_iterations = standing.iterations_done
    return run
