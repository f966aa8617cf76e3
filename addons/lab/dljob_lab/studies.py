"""
Comparisons and bounds in a program or a notebook: ``from dljob_lab import studies``.

Each is played by the very simulator behind ``dljob compare`` and ``dljob bound``. A trace, a cluster and a policy are
given as to :func:`dljob.simulate`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike

from dljob.api.refusals import Problem, WrongUse, refusing
from dljob.api.studies import Cluster, Trace, make_contestant, make_scenario, prepare
from dljob.sim.scenarios import Scenario
from dljob_lab.bounding.bounds import ROUNDS, Bound, bound_mean_jct
from dljob_lab.comparing.planning import make_rows, plan
from dljob_lab.comparing.running import Failure, run_tasks
from dljob_lab.comparing.summing import Line, sum_up
from dljob_lab.comparing.tasks import Task, Values


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison."""

    rows: list[Values]
    """The figures of each simulation, with its scenario."""
    lines: list[Line]
    """A line for each policy: geometric means of its figures over those of the first policy."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """The reason for each policy without a result."""


def compare(
    traces: Trace | Sequence[Trace],
    policies: Sequence[str],
    *,
    cluster: Cluster = None,
    seeds: int = 1,
    processes: int = 1,
) -> Comparison:
    """
    Play every trace under every policy with each seed, and sum up how they compare with the first policy.

    The simulations may run in several processes; therefore a policy of one's own is given as
    ``FILE.py:Class``.
    """
    if not policies or not all(isinstance(each, str) for each in policies):
        raise WrongUse(
            Problem("policies are not all named", "give names, or FILE.py:Class", path="policies")
        )
    several = [traces] if isinstance(traces, str | PathLike | Scenario) else list(traces)
    for each in policies:
        make_contestant(each)
    tasks: list[Task] = []
    for trace in several:
        scenario = make_scenario(trace, cluster)
        axes = {"seed": range(scenario.seed, scenario.seed + seeds)}
        tasks += plan(scenario, [scenario.trace], axes=axes, policies=policies, bound=False)
    results: dict[int, Values] = {}
    failures: dict[str, str] = {}
    for number, result in run_tasks(list(enumerate(tasks)), processes=processes):
        if isinstance(result, Failure):
            failures[str(tasks[number].policy)] = result.message
        else:
            results[number] = result
    rows = make_rows({tasks[n]: results[n] for n in sorted(results)})
    return Comparison(rows, sum_up(rows, references=(policies[0],)), failures)


def bound(trace: Trace, *, cluster: Cluster = None, rounds: int = ROUNDS) -> Bound:
    """Compute a lower bound on the average completion time of a trace under any policy."""
    with refusing():
        workload, setting = prepare(make_scenario(trace, cluster))
        return bound_mean_jct(workload, setting, rounds=rounds)
