"""
The beliefs of policies about a workload, where they differ from the truth.

``dljob simulate`` and ``dljob compare`` call it between reading a workload and playing it. On a
real cluster speeds are measured with errors and the length of a training is an estimate of its
user, or unknown. :func:`believe` makes such a workload of one whose policies know everything: the
truths stay, and with them all events of the world; only the knowledge of policies changes.

* **Speeds**: each speed in ``Workload.known`` is the true one times ``exp(speed_error * z)``, with
  a standard normal ``z`` for each job type, type of GPU and number of GPUs. All numbers of nodes
  share it, so the loss by spreading stays as it is. Policies go on seeing the true speed of a job
  in the shape in which it trains, as controllers do (``JobState.speed``), and the predictor
  corrects that job's other shapes by the same factor.
* **Lengths**: the number of iterations that policies are given is the true one times
  ``exp(size_error * z)``, with a ``z`` for each job. A job that trains to a target keeps the
  forecasts from its own metric, which are wrong in their own way.
* **Lengths unknown**: policies see infinitely many iterations, for jobs with targets too.

The median of these factors is 1. They depend on the seed and on the name of the job or type alone,
so every policy is misled in the same way, and so is a part of the same trace.
"""

import math
import random
from dataclasses import dataclass, replace

from dljob.core.profiles import Profile, Speed
from dljob.sim.jobs.workloads import TracedJob, Workload
from dljob_wire.messages import Shape

MORE_OVERDUE = 0.1
"""
How much more than it has done is believed of a job that outlives what was believed of it.

With errors of 20 % the mean overrun of such jobs is 18 %; a smaller share that is believed again
and again grows with the overrun, for any error.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beliefs:
    """How wrong policies are about jobs; the default is not at all."""

    speed_error: float = 0.0
    """The standard deviation of the logarithm of believed over true speeds."""
    size_error: float = 0.0
    """The same of the number of iterations."""
    sizes_known: bool = True
    """True if policies are given a number of iterations at all."""
    seed: int = 0


def believe(workload: Workload, beliefs: Beliefs) -> Workload:
    """Make the workload whose policies believe this; the same object where they know the truth."""
    if not beliefs.speed_error and not beliefs.size_error and beliefs.sizes_known:
        return workload
    known = workload.known
    if beliefs.speed_error:
        known = {kind: _blur(profile, beliefs) for kind, profile in known.items()}
    return replace(
        workload, jobs=tuple(_mislead(traced, beliefs) for traced in workload.jobs), known=known
    )


def revise(total: float, done: float) -> float:
    """
    Revise the belief about the length of a job that has done ``done`` and trains on.

    A job that has done all its believed work is evidently not done. The belief then leaves it a
    tenth of its past work (:data:`MORE_OVERDUE`), so it is ranked as one that ends soon, and the
    longer it goes on, the longer it is believed to go on.
    """
    return total if done < total else done * (1.0 + MORE_OVERDUE)


def _blur(profile: Profile, beliefs: Beliefs) -> Profile:
    kind, factors = profile.type, dict[tuple[str, int], float]()
    speeds: dict[Shape, Speed] = {}
    for shape, speed in profile.speeds.items():
        place = (shape.gpu_type, shape.gpus)
        if place not in factors:
            key = f"speed/{kind.model}/{kind.dataset}/{kind.batch_size}/{place[0]}/{place[1]}"
            factors[place] = _draw(beliefs.speed_error, key, seed=beliefs.seed)
        value = speed.iterations_per_s * factors[place]
        # The observations of the shape would reveal the truth.
        speeds[shape] = speed._replace(iterations_per_s=value, recent=())
    return replace(profile, speeds=speeds)


def _mislead(traced: TracedJob, beliefs: Beliefs) -> TracedJob:
    believed = _believe_length(traced, beliefs)
    if believed is None:
        return traced
    # Policies must not see in the job what the world hides from them.
    iterations = None if math.isinf(believed) else math.ceil(believed)
    training = replace(traced.job.training, iterations=iterations)
    return replace(traced, job=replace(traced.job, training=training), believed=believed)


def _believe_length(traced: TracedJob, beliefs: Beliefs) -> float | None:
    if not beliefs.sizes_known:
        return math.inf
    forecast = traced.learning is not None or traced.believed is not None
    if not beliefs.size_error or forecast:
        return None
    return traced.iterations * _draw(beliefs.size_error, f"size/{traced.job.id}", seed=beliefs.seed)


def _draw(error: float, key: str, *, seed: int) -> float:
    """Draw a lognormal factor with median 1."""
    # A string, because Python seeds with those alike in every process.
    return math.exp(random.Random(f"{seed}/{key}").gauss(0.0, error))
